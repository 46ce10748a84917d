"""From one step's tensors and texts to its record: every figure of `records.Step` is computed here."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kleash import text
from kleash.kl.divergence_penalties import Chi2, Renyi, beyond_chi2_bound
from kleash.kl.estimators import beyond_bound, k3
from kleash.kl.measure import measure
from kleash.kl.penalties import InLoss
from kleash.masked import masked_mean
from kleash.records import ControllerState, Estimator, KLKind, Reading, Step, Target
from kleash.rewards.ensembles import disagreement
from kleash.rewards.score import Scored
from kleash.rl.mismatch import Mismatch
from kleash.runlog.price import WINDOW, slope
from kleash.tensors import Look, Rollout
from kleash.training.dynamic import Draws
from kleash.training.learn import Learned
from kleash.training.passes import Update
from kleash.training.shaped import ShapedScores
from kleash.training.token_weights import by_class

try:
    import resource
except ImportError:  # Windows
    resource = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A step's samples with all that was measured on them before the update. One entry per sample, in row order.

    classes [B, T]: that of each token, as in CLASSES. completions: what the policy wrote. texts: what was scored; with
    a rollout of the user's own, a tool's words too. greedy: raw total of each prompt's greedy completion; None: it was
    not decoded.
    """

    rollout: Rollout
    prompts: list[object]
    completions: list[str]
    texts: list[str]
    scored: Scored
    shaped: ShapedScores
    mismatch: str | None
    draws: Draws | None = None
    greedy: list[float | None] | None = None
    classes: torch.Tensor | None = None

    @property
    def redrawn(self) -> int:
        """Groups drawn beyond the batch itself."""
        return 0 if self.draws is None else self.draws.groups - self.rollout.n_prompts


def kl_readings(
    kind: KLKind, kl: Float[Tensor, "B T"] | None, collected: Collected
) -> tuple[Reading | None, Reading | None]:
    """An exact KL per sequence and per token; None where it was not looked at."""
    if kl is None:
        return None, None
    rollout = collected.rollout
    per_sequence, per_token = (
        measure(
            kl,
            rollout.mask,
            rollout.group,
            kind=kind,
            estimator="exact",
            unit=unit,
            invalid=collected.mismatch,
        )
        for unit in ("nats/sequence", "nats/token")
    )
    return per_sequence, per_token


def gauge(
    step: int, beta: float, target: Target | None, collected: Collected, look: Look, history: Sequence[Step]
) -> Step:
    """The record of a step before its update; what the update itself measured is in `update_figures`."""
    rollout, completions = collected.rollout, collected.completions
    kl_ref, kl_ref_token = kl_readings("kl_ref", look.kl, collected)
    kl_origin, kl_origin_token = kl_readings("kl_origin", look.kl_origin, collected)
    totals = [s for s in collected.scored.total if s is not None]
    mean, std = _mean_std(totals)
    trained = _mean_std([s for s in collected.shaped.scored.total if s is not None])[0]
    named = {name: _mean_std([s for s in scores if s is not None]) for name, scores in collected.scored.by_name.items()}
    return Step(
        step=step,
        beta=beta,
        target=None if target is None else str(target),
        kl_ref=kl_ref,
        kl_ref_token=kl_ref_token,
        kl_origin=kl_origin,
        kl_origin_token=kl_origin_token,
        **_class_figures(look, collected),
        **_sampler_figures(look, rollout),
        price=_price(history, None if kl_ref is None else kl_ref.value, trained),
        score=mean,
        score_std=std,
        scores={name: m for name, (m, _) in named.items()},
        scores_std={name: s for name, (_, s) in named.items()},
        **_shape_figures(collected, trained),
        unscored=sum(s is None for s in collected.shaped.scored.total),
        score_length_correlation=_correlation(collected.scored.total, rollout.mask.sum(1).tolist()),
        groups_without_spread=_without_spread(collected),
        **_draw_figures(collected.draws),
        **_greedy_figures(collected.greedy),
        bits_per_byte=_bits_per_byte(look, rollout, completions),
        entropy=float(masked_mean(look.entropy, rollout.mask)),
        length=float(rollout.mask.sum(1).double().mean()),
        truncated=float(rollout.truncated.double().mean()),
        distinct_1=text.distinct_n(completions, 1),
        distinct_2=text.distinct_n(completions, 2),
        seq_rep_4=text.seq_rep_n(completions, 4),
        compression_ratio=text.compression_ratio(completions),
        peak_memory_gb=peak_memory_gb(),
    )


def update_figures(learned: Learned, update: Update, rollout: Rollout) -> dict[str, float | int | None]:
    """What the update measured about itself, as fields of `Step`."""
    linear, penalty = None, update.penalty
    if isinstance(penalty, InLoss) and penalty.estimator == "k3" and learned.look.ref is not None:
        beyond = beyond_bound(learned.look.logprobs - learned.look.ref)
        linear = float((beyond & rollout.mask).sum() / rollout.mask.sum())
    charged, steep = None, None
    if isinstance(penalty, Chi2 | Renyi):
        sums = torch.where(rollout.mask, penalty.measure(learned.look).double(), 0.0).sum(1)
        charged = float(sums[rollout.mask.any(1)].mean())
    if isinstance(penalty, Chi2):
        steep = float((beyond_chi2_bound(learned.look) & rollout.mask).sum() / rollout.mask.sum())
    return {
        "loss": learned.loss,
        "grad_norm": learned.grad_norm,
        "updates": learned.updates,
        "updates_skipped": len(learned.skipped),
        "clip_fraction": learned.clip_fraction,
        "ratio_truncations": learned.truncations,
        "mismatch_fraction": _bounded(learned.look, rollout, update.mismatch),
        "value_loss": learned.value_loss,
        "value_clip_fraction": learned.value_clip_fraction,
        "explained_variance": learned.explained_variance,
        "ptx_loss": learned.ptx_loss,
        "k3_linear_fraction": linear,
        "divergence": charged,
        "chi2_linear_fraction": steep,
    }


def _bounded(look: Look, rollout: Rollout, mismatch: Mismatch | None) -> float | None:
    if mismatch is None:
        return None
    weights = mismatch.weights(look.logprobs, rollout.sampler, rollout.mask)
    return float(weights.bounded.sum() / rollout.mask.sum())


def controller_figures(state: ControllerState) -> dict[str, int | str | None]:
    """What the controller says of its own update, as fields of `Step`."""
    return {"controller_held": state.held, "beta_clipped": state.clipped, "error_clipped": state.saturated}


def _price(history: Sequence[Step], kl: float | None, trained: float | None) -> float | None:
    """Over the last steps, this one included: kl_ref and the score that was trained on, the shaped one where it is."""
    kls = [None if s.kl_ref is None else s.kl_ref.value for s in history[1 - WINDOW :]]
    scores = [s.score if s.score_shaped is None else s.score_shaped for s in history[1 - WINDOW :]]
    return slope([*kls, kl], [*scores, trained])


def _sampler_figures(look: Look, rollout: Rollout) -> dict[str, Any]:
    """How far the sampler's own numbers are from the policy's, as fields of `Step`."""
    log_ratio = rollout.sampler - look.logprobs

    def reading(x: Float[Tensor, "B T"], estimator: Estimator) -> Reading | None:
        return measure(x, rollout.mask, rollout.group, kind="kl_sampler", estimator=estimator, unit="nats/token")

    return {
        "kl_sampler": reading(log_ratio, "k1"),
        "kl_sampler_k3": reading(k3(log_ratio), "k3"),
        "sampler_ratio_max": float((-log_ratio)[rollout.mask].max().double().exp()),
    }


def _class_figures(look: Look, collected: Collected) -> dict[str, Any]:
    """kl_ref by class of token, as fields of `Step`."""
    if look.kl is None or collected.classes is None:
        return {}
    mean, share = by_class(look.kl, collected.rollout.mask, collected.classes)
    return {"kl_class": mean, "kl_share": share}


def _shape_figures(collected: Collected, trained: float | None) -> dict[str, Any]:
    """What shapes and ensembles did, as fields of `Step`."""
    shaped = collected.shaped
    return {
        "score_shaped": None if shaped.scored is collected.scored else trained,
        "scores_shaped": {n: _mean_std([s for s in v if s is not None])[0] for n, v in shaped.by_name.items()},
        "scores_clipped": shaped.clipped,
        "disagreement": {name: disagreement(members) for name, members in collected.scored.members.items()},
    }


def _draw_figures(draws: Draws | None) -> dict[str, Any]:
    """What dynamic sampling drew, as fields of `Step`."""
    if draws is None:
        return {}
    return {"groups_drawn": draws.groups, "groups_unreplaced": draws.unreplaced, "score_drawn": draws.score}


def _greedy_figures(scores: list[float | None] | None) -> dict[str, Any]:
    """Of the greedy completions, as fields of `Step`."""
    if scores is None:
        return {}
    known = [s for s in scores if s is not None]
    return {"score_greedy": _mean_std(known)[0], "greedy_unscored": len(scores) - len(known)}


def _correlation(scores: Sequence[float | None], lengths: Sequence[int]) -> float | None:
    """Pearson's, over the samples that have a score; None where either does not vary."""
    pairs = [(s, float(n)) for s, n in zip(scores, lengths, strict=True) if s is not None]
    xs, ys = [s for s, _ in pairs], [n for _, n in pairs]
    return correlation(xs, ys) if len(set(xs)) > 1 and len(set(ys)) > 1 else None


def _mean_std(values: list[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std(correction=0))


def _without_spread(collected: Collected) -> float | None:
    """None where every group is a single sample: nothing could be spread."""
    if len(collected.completions) == collected.rollout.n_prompts:
        return None
    groups: dict[int, set[float]] = {}
    for group, value in zip(collected.rollout.group.tolist(), collected.shaped.scored.total, strict=True):
        groups.setdefault(group, set()).update(() if value is None else (value,))
    return sum(len(values) < 2 for values in groups.values()) / len(groups)


def _bits_per_byte(look: Look, rollout: Rollout, completions: list[str]) -> float | None:
    size = sum(len(c.encode()) for c in completions)
    if look.ref is None or size == 0:
        return None
    return float(-look.ref[rollout.mask].double().sum() / math.log(2)) / size


def peak_memory_gb() -> float | None:
    """Peak so far in GiB: of the CUDA allocator, or of the process's resident memory; None where neither is known."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
