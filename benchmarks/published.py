"""Published and closed-form figures, recomputed: Schulman's estimators, Beirami's best-of-n, Ziegler's controller.

Each function returns its figures: what, as computed here, as printed there.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kleash.beta.adaptive import Ziegler, ziegler_factor
from kleash.kl.estimators import k1, k2, k3
from kleash.records import Reading, Target


class Figure(NamedTuple):
    """A computed number beside a printed one; it agrees when it is within half a unit of the last printed digit.

    The half itself included, for a tie goes either way: Schulman prints 0.0025 as 0.002.
    """

    what: str
    computed: float
    printed: str

    @property
    def agrees(self) -> bool:
        digits = len(self.printed.partition(".")[2])
        return abs(self.computed - float(self.printed)) <= 0.5000001 * 10.0**-digits


def moments(fn: Callable[[Tensor], Tensor], m: float) -> tuple[float, float]:
    """bias/KL and std/KL of an estimator for x ~ q = N(0,1) against p = N(m,1), by Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weight, kl = torch.from_numpy(weights / weights.sum()), m * m / 2
    values = fn(kl - m * torch.from_numpy(nodes))  # log q − log p
    mean = float((weight * values).sum())
    return (mean - kl) / kl, math.sqrt(float((weight * (values - mean).square()).sum())) / kl


#: m: bias/true and std/true as printed in Schulman 2020, then to more digits from the closed forms
#: k1: 0, 2/m; k2: m²/4, √(2+m²); k3: 0, (2/m²)√(exp(m²)−1−m²).
SCHULMAN = {
    ("k1", 0.1): ("0", "20", "0.0000000000", "20.00000"),
    ("k1", 1.0): ("0", "2", "0.0000000000", "2.00000"),
    ("k2", 0.1): ("0.002", "1.42", "0.0025", "1.41774"),
    ("k2", 1.0): ("0.25", "1.73", "0.2500", "1.73205"),
    ("k3", 0.1): ("0", "1.42", "0.0000000000", "1.41657"),
    ("k3", 1.0): ("0", "1.7", "0.0000000000", "1.69503"),
}


def schulman() -> list[Figure]:
    """kleash's k1, k2, k3 on the Gaussian pair of the post's table, and the optimal control-variate weight."""
    figures = []
    for (name, m), (bias, std, bias_exact, std_exact) in SCHULMAN.items():
        found_bias, found_std = moments({"k1": k1, "k2": k2, "k3": k3}[name], m)
        figures += [
            Figure(f"Schulman, N({m:g},1), {name}: bias/true", abs(found_bias), bias),
            Figure(f"Schulman, N({m:g},1), {name}: std/true", found_std, std),
            Figure(f"closed form, N({m:g},1), {name}: bias/true", abs(found_bias), bias_exact),
            Figure(f"closed form, N({m:g},1), {name}: std/true", found_std, std_exact),
        ]
    for m, weight in ((0.1, "0.99501"), (0.5, "0.88020"), (1.0, "0.58198")):
        figures.append(Figure(f"closed form, N({m:g},1): weight of r − 1 of least variance", best_weight(m), weight))
    return figures


def best_weight(m: float) -> float:
    """λ* = −Cov(k1, r − 1)/Var(r − 1), from second moments of k1 and of k3 = k1 + (r − 1)."""
    var1, var3 = ((moments(fn, m)[1] * m * m / 2) ** 2 for fn in (k1, k3))
    ratio = moments(lambda x: torch.expm1(-x), m)[1] * m * m / 2
    return -(var3 - var1 - ratio**2) / 2 / ratio**2


#: Beirami et al. 2401.01879, uniform over L letters, best of n: exact KL, their estimator, the bound, the win rate.
BEIRAMI = {
    (2, 4): ("0.459356", "0.499124", "0.636294", "0.718750"),
    (10, 16): ("1.733063", "1.756142", "1.835089", "0.928293"),
    (100, 256): ("4.313704", "4.331981", "4.549084", "0.994176"),
    (1000, 1024): ("5.889868", "5.905183", "5.932448", "0.998941"),
    (2, 1024): ("0.693147", "0.693147", "5.932448", "0.750000"),
}


def beirami() -> list[Figure]:
    """KL(best of n ‖ reference) by summing over the letters, beside the folklore formula log n − (n−1)/n."""
    figures = []
    for (letters, n), printed in BEIRAMI.items():
        below = np.arange(letters + 1) / letters
        best = np.diff(below**n)  # P(best = k) = F(k)ⁿ − F(k−)ⁿ
        kl = float((best[best > 0] * np.log(best[best > 0] * letters)).sum())
        win = float((best * (below[:-1] + 0.5 / letters)).sum())  # against one draw, ties half
        bound = math.log(n) - (n - 1) / n
        computed = (kl, beirami_estimator(1 / letters, n), bound, win)
        for what, value, figure in zip(("KL", "estimator", "bound", "win rate"), computed, printed, strict=True):
            figures.append(Figure(f"Beirami, L = {letters}, n = {n}: {what}", value, figure))
    return figures


def beirami_estimator(e: float, n: int) -> float:
    """Their estimate of the KL from e = ref(selected sample)."""
    none = (1 - e) ** n
    near = math.log(n) + (n - 1) * math.log1p(-e) - (n - 1) / n
    return none * near + (1 - none) * math.log((1 - none) / e)


def ziegler() -> list[Figure]:
    """kleash.beta's controller at the authors' settings: 256 sequences a step, horizon 10 000, target 6 nats."""
    target = Target(6.0, "nats/sequence")

    def after(controller: Ziegler, kl: float, steps: int) -> float:
        reading = Reading(
            kind="kl_ref", value=kl, unit="nats/sequence", estimator="k1",
            n_prompts=256, n_sequences=256, n_tokens=256 * 24,
        )  # fmt: skip
        state = controller.init(0.2)
        for _ in range(steps):
            state = controller.update(state, reading, target)
        return state.beta

    code, paper = Ziegler(form="code"), Ziegler(form="paper")
    published_negative = 0.2 * ziegler_factor(-0.2, 256 / 10_000)

    def steps_to(factor: float, controller: Ziegler, kl: float) -> float:
        return math.log(factor) / math.log(after(controller, kl, 1) / 0.2)

    return [
        Figure("Ziegler, code: beta after 1 step from 0.2 at KL 12", after(code, 12.0, 1), "0.201024"),
        Figure("Ziegler, code: after 100 steps", after(code, 12.0, 100), "0.3332893739"),
        Figure("Ziegler, code: steps to double", steps_to(2, code, 12.0), "135.73"),
        Figure("Ziegler, paper: steps to double", steps_to(2, paper, 12.0), "35.003"),
        Figure("Ziegler, paper: steps to halve", steps_to(0.5, paper, 1.0), "34.310"),
        Figure("Ziegler, as published: after 1 step at a measured KL of −5", published_negative, "0.198976"),
        Figure("Ziegler, kleash: the same; a negative KL holds beta", after(code, -5.0, 1), "0.200000"),
    ]
