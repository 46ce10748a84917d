"""How far a temperature moves a model: a yardstick for a KL that a person can feel."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.kl.tiles import Recipe, Side
from kleash.tensors import Head

#: Bytes of the rows of logits that are held at a time; twice as much with what is made of them.
CHUNK_BYTES = 64 << 20
#: log-temperatures tried first, either way from 0, and then between the two that enclose the answer.
FIRST_STEPS = tuple(0.001 * math.sqrt(2) ** n for n in range(24))
BETWEEN = 8


@torch.no_grad()
def tempered_kl(
    hidden: Float[Tensor, "n H"], head: Head, temperatures: Sequence[float]
) -> Float[Tensor, "temperatures"]:
    """The mean over n positions of KL(p ‖ p_T), nats, for each T: p_T ∝ p^(1/T). Positions with a NaN are left out.

    KL(p ‖ p_T) = (1 − 1/T) Σ p z − log Σ exp z + log Σ exp(z / T), of which no tensor of n × vocabulary is made.

    Source: the definition.
    Proved by: tests/kl/test_tempering.py::test_equals_float64_from_full_logits
    """
    dtype = torch.float64 if torch.float64 in (hidden.dtype, head.weight.dtype) else torch.float32
    rows = max(1, CHUNK_BYTES // dtype.itemsize // head.vocab)
    total, counted = torch.zeros(len(temperatures), dtype=torch.float64), 0
    for start in range(0, len(hidden), rows):
        part = hidden[start : start + rows]
        with torch.autocast(hidden.device.type, enabled=False):
            side = Side.of(part, head.weight, head.bias, Recipe.of(head, part, 1.0, dtype))
            buffer = part.new_empty(len(part) * head.vocab, dtype=dtype)
            z = side.logits(slice(0, len(part)), slice(0, head.vocab), buffer)
            z = z.sub_(z.amax(-1, keepdim=True))
            z = z[torch.isfinite(z).all(-1)]
            e = z.exp()
            mass = e.sum(-1).cpu().double()
            mean = e.mul_(z).sum(-1).cpu().double() / mass
            for i, temperature in enumerate(temperatures):
                warm = torch.mul(z, 1 / temperature, out=e).exp_().sum(-1).cpu().double()
                total[i] += ((1 - 1 / temperature) * mean - mass.log() + warm.log()).sum()
        counted += len(z)
    return total / counted if counted else total.fill_(torch.nan)


def equivalent_temperature(curve: Callable[[Sequence[float]], Sequence[float]], kl: float, *, cooler: bool) -> float:
    """The temperature T at which `curve`, a mean KL(p ‖ p_T) for each T, is `kl`: below 1 if `cooler`, else above.

    The KL grows with |log T|, near 0 with its square, so it is interpolated between logarithms. NaN where even the
    farthest temperature tried (2.9 nats of log T) does not move so far, or `kl` is not positive.

    Source: secant in log–log; the KL to a tempered self is monotone in |log T|.
    Proved by: tests/kl/test_tempering.py::test_the_temperature_is_found_again
    """
    sign = -1 if cooler else 1
    steps: Sequence[float] = FIRST_STEPS
    for last in (False, True):
        values = curve([math.exp(sign * s) for s in steps])
        above = next((i for i, value in enumerate(values) if value >= kl), None)
        if not kl > 0 or above is None:
            return float("nan")
        low = (steps[above - 1], values[above - 1]) if above else (0.0, 0.0)
        high = (steps[above], values[above])
        if last or low[0] == 0.0:
            break
        ratio = high[0] / low[0]
        steps = [low[0] * ratio ** (n / BETWEEN) for n in range(BETWEEN + 1)]
    return math.exp(sign * _between(low, high, kl))


def _between(low: tuple[float, float], high: tuple[float, float], kl: float) -> float:
    """The log-temperature between two (log-temperature, KL) at which the KL is `kl`; from 0 it grows as the square."""
    if low[1] <= 0:
        return high[0] * (kl / high[1]) ** 0.5
    (a, x), (b, y) = low, high
    if x == y:
        return a
    return a * (b / a) ** (math.log(kl / x) / math.log(y / x))
