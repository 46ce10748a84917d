"""From what a pass saw of pairs to the figures of a record, and to the words that a terminal shows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.algorithms.preference import PairLoss
from kleash.masked import clustered_ratio
from kleash.records import Reading
from kleash.runlog.offline import PairEvaluation
from kleash.tensors import Look


class Seen(NamedTuple):
    """Of N pairs, detached, on the CPU in float64: loss, and rewards and log-probs (nats) of chosen and rejected.

    kl, entropy: sums over all counted tokens. ref, kl: None where they were not looked at.
    """

    loss: Float[Tensor, " N"]
    rewards: Float[Tensor, "N 2"]
    logprobs: Float[Tensor, "N 2"]
    ref: Float[Tensor, "N 2"] | None
    kl: float | None
    entropy: float
    tokens: int
    bounded: int


def seen(look: Look, mask: Bool[Tensor, "B T"], found: PairLoss) -> Seen:
    def sides(x: Tensor) -> Tensor:
        return _plain(torch.where(mask, x.detach(), 0.0).double().sum(1)).reshape(-1, 2)

    return Seen(
        loss=_plain(found.loss),
        rewards=torch.stack([_plain(side) for side in found.rewards], 1),
        logprobs=sides(look.logprobs),
        ref=None if look.ref is None else sides(look.ref),
        kl=None if look.kl is None else float(sides(look.kl).sum()),
        entropy=float(sides(look.entropy).sum()),
        tokens=int(mask.sum()),
        bounded=found.bounded,
    )


def together(parts: Sequence[Seen]) -> Seen:
    """Passes over consecutive pairs as one."""
    refs = [part.ref for part in parts if part.ref is not None]
    kls = [part.kl for part in parts if part.kl is not None]
    return Seen(
        loss=torch.cat([part.loss for part in parts]),
        rewards=torch.cat([part.rewards for part in parts]),
        logprobs=torch.cat([part.logprobs for part in parts]),
        ref=torch.cat(refs) if refs else None,
        kl=sum(kls) if kls else None,
        entropy=sum(part.entropy for part in parts),
        tokens=sum(part.tokens for part in parts),
        bounded=sum(part.bounded for part in parts),
    )


def right(found: Seen) -> Float[Tensor, " N"]:
    """1 where the chosen answer has the higher implicit reward, ½ where both are equal, else 0."""
    margin = found.rewards[:, 0] - found.rewards[:, 1]
    return (margin > 0).double() + (margin == 0).double() / 2


def step_figures(found: Seen) -> dict[str, Any]:
    """Fields of `PairStep`."""
    reward, logprob = found.rewards.mean(0).tolist(), found.logprobs.mean(0).tolist()
    ratio = [None, None] if found.ref is None else (found.logprobs - found.ref).mean(0).tolist()
    return {
        "accuracy": float(right(found).mean()),
        "reward_margin": reward[0] - reward[1],
        "reward_chosen": reward[0],
        "reward_rejected": reward[1],
        "logprob_chosen": logprob[0],
        "logprob_rejected": logprob[1],
        "log_ratio_chosen": ratio[0],
        "log_ratio_rejected": ratio[1],
        "kl_text": None if found.kl is None else found.kl / found.tokens,
        "entropy": found.entropy / found.tokens,
        "bounded": found.bounded,
        "pairs": len(found.loss),
        "tokens": found.tokens,
    }


def judged_figures(found: Seen, prompt: Int[Tensor, " N"]) -> dict[str, Any]:
    """Fields of `PairEvaluation` that are of the watched pairs; `prompt` says which pairs share one."""
    accuracy, error = clustered_ratio(right(found), torch.ones(len(found.loss), dtype=torch.float64), prompt)
    reward, logprob = found.rewards.mean(0).tolist(), found.logprobs.mean(0).tolist()
    return {
        "accuracy": accuracy,
        "accuracy_error": error,
        "loss": float(found.loss.mean()),
        "reward_margin": reward[0] - reward[1],
        "logprob_chosen": logprob[0],
        "logprob_rejected": logprob[1],
    }


def pair_line(record: Any) -> list[str]:
    """What the terminal shows of a step or of an evaluation."""
    if isinstance(record, PairEvaluation):
        where = "held out" if record.held_out else "training pairs"
        return [
            f"{where}: accuracy {record.accuracy:.3f}{_error(record.accuracy_error, '.3f')}",
            f"own words: KL {_reading(record)}",
            f"chosen {record.chosen_change:+.2f} nats since the start",
            f"beta {record.beta:.4g}",
            f"len {record.length:.1f}",
        ]
    return [
        f"loss {record.loss:.4f}",
        f"accuracy {record.accuracy:.2f}",
        f"margin {record.reward_margin:+.3f}",
        f"log π chosen {record.logprob_chosen:.1f} rejected {record.logprob_rejected:.1f}",
        f"lr {record.learning_rate:.2e}",
    ]


def _reading(record: PairEvaluation) -> str:
    per_token = record.target is not None and record.target.endswith("token")
    reading: Reading | None = record.kl_ref_token if per_token else record.kl_ref
    assert reading is not None, "it is measured at every evaluation"
    digits = ".4f" if per_token else ".2f"
    aim = "" if record.target is None else f" (target {record.target.split()[0]})"
    return f"{reading.value:{digits}}{_error(reading.standard_error, digits)} {reading.unit}{aim}"


def _error(value: float | None, digits: str) -> str:
    return "" if value is None else f"±{value:{digits}}"


def _plain(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64)
