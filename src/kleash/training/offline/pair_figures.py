"""From what a pass saw of pairs, or of judged texts, to the figures of a record and the words that a terminal shows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.algorithms.preference import PairLoss, TextLoss
from kleash.masked import clustered_ratio
from kleash.records import Reading
from kleash.runlog.offline import PairEvaluation
from kleash.tensors import Look
from kleash.training.progress import number


class Seen(NamedTuple):
    """What a pass saw, detached, on the CPU in float64: of L losses, and of the R texts they are of. Nats per sequence.

    good: the texts that are chosen, or wanted; of pairs every other one. right: 1 where a loss's texts are told apart
    as they should be, ½ at a tie, else 0. kl, entropy: sums over all counted tokens. ref, kl: None where not looked at.
    """

    loss: Float[Tensor, " L"]
    right: Float[Tensor, " L"]
    rewards: Float[Tensor, " R"]
    logprobs: Float[Tensor, " R"]
    ref: Float[Tensor, " R"] | None
    good: Bool[Tensor, " R"]
    kl: float | None
    entropy: float
    tokens: int
    bounded: int


def seen_pairs(look: Look, mask: Bool[Tensor, "B T"], found: PairLoss) -> Seen:
    """Of pairs: right is a higher implicit reward of the chosen answer."""
    rewards = torch.stack([_plain(side) for side in found.rewards], 1)
    good = torch.tensor([True, False]).repeat(len(rewards))
    right = _ordered(rewards[:, 0] - rewards[:, 1])
    return _seen(look, mask, (_plain(found.loss), right, rewards.flatten(), good), found.bounded)


def seen_texts(
    look: Look, mask: Bool[Tensor, "B T"], found: TextLoss, good: Bool[Tensor, " B"], threshold: float
) -> Seen:
    """Of single texts: right is an implicit reward above the threshold where the text is wanted, else below it."""
    rewards, good = _plain(found.rewards), good.cpu()
    right = _ordered(torch.where(good, 1.0, -1.0) * (rewards - threshold))
    return _seen(look, mask, (_plain(found.loss), right, rewards, good), 0)


def _seen(look: Look, mask: Bool[Tensor, "B T"], found: tuple[Tensor, Tensor, Tensor, Tensor], bounded: int) -> Seen:
    def sums(x: Tensor) -> Tensor:
        return _plain(torch.where(mask, x.detach(), 0.0).double().sum(1))

    loss, right, rewards, good = found
    return Seen(
        loss=loss,
        right=right,
        rewards=rewards,
        logprobs=sums(look.logprobs),
        ref=None if look.ref is None else sums(look.ref),
        good=good,
        kl=None if look.kl is None else float(sums(look.kl).sum()),
        entropy=float(sums(look.entropy).sum()),
        tokens=int(mask.sum()),
        bounded=bounded,
    )


def together(parts: Sequence[Seen]) -> Seen:
    """Passes over consecutive rows as one."""
    refs = [part.ref for part in parts if part.ref is not None]
    kls = [part.kl for part in parts if part.kl is not None]
    joined = {name: torch.cat([getattr(part, name) for part in parts])
              for name in ("loss", "right", "rewards", "logprobs", "good")}  # fmt: skip
    return Seen(
        **joined,
        ref=torch.cat(refs) if refs else None,
        kl=sum(kls) if kls else None,
        entropy=sum(part.entropy for part in parts),
        tokens=sum(part.tokens for part in parts),
        bounded=sum(part.bounded for part in parts),
    )


def step_figures(found: Seen) -> dict[str, Any]:
    """Fields of `PairStep`."""
    reward, logprob = _sides(found.rewards, found.good), _sides(found.logprobs, found.good)
    ratio = (None, None) if found.ref is None else _sides(found.logprobs - found.ref, found.good)
    return {
        "accuracy": float(found.right.mean()),
        "reward_margin": _difference(reward),
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


def judged_figures(found: Seen, prompt: Int[Tensor, " L"]) -> dict[str, Any]:
    """Fields of `PairEvaluation` that are of the watched rows; `prompt` says which of them share one."""
    accuracy, error = clustered_ratio(found.right, torch.ones(len(found.right), dtype=torch.float64), prompt)
    reward, logprob = _sides(found.rewards, found.good), _sides(found.logprobs, found.good)
    return {
        "accuracy": accuracy,
        "accuracy_error": error,
        "loss": float(found.loss.mean()),
        "reward_margin": _difference(reward),
        "logprob_chosen": logprob[0],
        "logprob_rejected": logprob[1],
    }


def _ordered(margin: Float[Tensor, " L"]) -> Float[Tensor, " L"]:
    return (margin > 0).double() + (margin == 0).double() / 2


def _sides(x: Float[Tensor, " R"], good: Bool[Tensor, " R"]) -> tuple[float | None, float | None]:
    """Means over the good texts and over the others; None where there are none."""
    one, other = (float(x[side].mean()) if side.any() else None for side in (good, ~good))
    return one, other


def _difference(sides: tuple[float | None, float | None]) -> float | None:
    return None if sides[0] is None or sides[1] is None else sides[0] - sides[1]


def pair_line(record: Any) -> list[str]:
    """What the terminal shows of a step or of an evaluation."""
    if isinstance(record, PairEvaluation):
        where = "held out" if record.held_out else "training pairs"
        return [
            f"{where}: accuracy {record.accuracy:.3f}{_error(record.accuracy_error, '.3f')}",
            f"own words: KL {_reading(record)}",
            f"chosen {number(record.chosen_change, '+.2f')} nats since the start",
            f"beta {record.beta:.4g}",
            f"len {record.length:.1f}",
        ]
    return [
        f"loss {record.loss:.4f}",
        f"accuracy {record.accuracy:.2f}",
        f"margin {number(record.reward_margin, '+.3f')}",
        f"log π chosen {number(record.logprob_chosen, '.1f')} rejected {number(record.logprob_rejected, '.1f')}",
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
