"""A reward model's objective: Bradley and Terry's loss on pairs; accuracy and calibration on held-out ones."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.models.plan import Plan
from kleash.models.scorer import Scorer, as_rollout
from kleash.rl.bradley_terry import bradley_terry
from kleash.rl.calibration import calibration
from kleash.runlog.offline import ScoreEvaluation, ScoreStep
from kleash.training.data import indices
from kleash.training.offline.job import Judged, Taught, Tensors
from kleash.training.offline.reward_config import BradleyTerry
from kleash.training.passes import ByPlan


class Pair(NamedTuple):
    """Both texts as token ids, each with its prompt; margin: by how much the chosen one should be ahead."""

    chosen: list[int]
    rejected: list[int]
    margin: float = 0.0


def digest(pairs: Sequence[Pair]) -> str:
    """sha256 of all pairs in their order."""
    return hashlib.sha256(json.dumps([list(pair) for pair in pairs]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferring:
    """The objective. It remembers nothing from step to step."""

    scorer: Scorer
    pairs: Sequence[Pair]
    batch_size: int
    seed: int
    pad_id: int
    loss: BradleyTerry
    held_out: Sequence[Pair] | None = None

    record = ScoreStep

    def begin(self) -> None:
        return None

    def keep(self, own: None) -> tuple[dict[str, Any], Tensors]:
        return {}, {}

    def recall(self, plain: Mapping[str, Any], tensors: Tensors, step: int) -> None:
        return None

    def learn(self, step: int, own: None, by_plan: ByPlan) -> Taught:
        """The gradient of the mean loss over the step's pairs. Passes of a few pairs add up to that of all."""
        index = indices(step, self.batch_size, len(self.pairs), self.seed)
        pairs = [self.pairs[i] for i in index]
        seen = by_plan(partial(self._gradients, pairs))
        chosen, rejected = seen.scores.unbind(1)
        ahead = chosen - rejected
        figures = {
            "epoch": step / (len(self.pairs) // self.batch_size),
            "preference": seen.preference,
            "centring": float((chosen + rejected).square().mean()),
            "accuracy": float(((ahead > 0).double() + (ahead == 0).double() / 2).mean()),
            "margin": float(ahead.mean()),
            "score": float(seen.scores.mean()),
            "pairs": len(pairs),
        }
        return Taught(self._rollout(pairs), seen.loss, own, figures)

    def _gradients(self, pairs: Sequence[Pair], plan: Plan) -> "_Seen":
        loss, preference, scores = 0.0, 0.0, []
        for some in self._passes(pairs, plan.groups):
            chosen, rejected = self._scores(some, plan).unbind(1)
            margin = torch.tensor([pair.margin for pair in some], device=chosen.device).to(chosen.dtype)
            found = bradley_terry(chosen, rejected, margin, centre=self.loss.centre, careless=self.loss.careless)
            (found.loss.sum() / len(pairs)).backward()
            loss += float(found.loss.detach().sum()) / len(pairs)
            preference += float(found.preference.detach().sum()) / len(pairs)
            scores.append(torch.stack([chosen, rejected], 1).detach())
        return _Seen(loss, preference, torch.cat(scores).double().cpu())

    def judge(self, step: int, own: None, by_plan: ByPlan) -> Judged | None:
        """On the held-out pairs, whose loss the best checkpoint is chosen by."""
        if self.held_out is None:
            return None
        began = time.perf_counter()
        scores = by_plan(partial(self.scored, self.held_out))
        found = calibration(scores[:, 0] - scores[:, 1])
        event = ScoreEvaluation(
            step=step,
            loss=found.nll,
            accuracy=found.accuracy.value,
            accuracy_low=found.accuracy.low,
            accuracy_high=found.accuracy.high,
            n_pairs=len(scores),
            brier=found.brier,
            calibration_error=found.error,
            bins=[(one.pairs, one.confidence, one.accuracy) for one in found.bins],
            margin=float((scores[:, 0] - scores[:, 1]).mean()),
            score=float(scores.mean()),
            score_std=float(scores.std(correction=0)),
            rows=digest(self.held_out),
            seconds=round(time.perf_counter() - began, 4),
        )
        return Judged(event, own, -found.nll)

    @torch.no_grad()
    def scored(self, pairs: Sequence[Pair], plan: Plan) -> Float[Tensor, "N 2"]:
        """The scores of given pairs, float64 on the CPU, in their order; as many at a time as in training."""
        order = sorted(range(len(pairs)), key=lambda i: max(len(pairs[i].chosen), len(pairs[i].rejected)))
        found = torch.zeros(len(pairs), 2, dtype=torch.float64)
        size = plan.groups or self.batch_size
        for first in range(0, len(order), size):
            index = order[first : first + size]
            found[index] = self._scores([pairs[i] for i in index], plan).double().cpu()
        return found

    def line(self, record: Any) -> list[str]:
        if isinstance(record, ScoreEvaluation):
            return [
                f"held out: accuracy {record.accuracy:.3f} ({record.accuracy_low:.3f} to {record.accuracy_high:.3f})",
                f"loss {record.loss:.4f}",
                f"calibration error {record.calibration_error:.3f}",
            ]
        return [
            f"loss {record.loss:.4f}",
            f"accuracy {record.accuracy:.2f}",
            f"margin {record.margin:.2f}",
            f"lr {record.learning_rate:.2e}",
        ]

    def _scores(self, pairs: Sequence[Pair], plan: Plan) -> Float[Tensor, "N 2"]:
        return self.scorer(self._rollout(pairs), path=plan.path, rows=plan.rows).view(-1, 2)

    def _rollout(self, pairs: Sequence[Pair]) -> Any:
        return as_rollout([(pair.chosen, pair.rejected) for pair in pairs], self.pad_id, self.scorer.device)

    @staticmethod
    def _passes(pairs: Sequence[Pair], most: int | None) -> list[Sequence[Pair]]:
        size = most or len(pairs)
        return [pairs[first : first + size] for first in range(0, len(pairs), size)]


class _Seen(NamedTuple):
    """Of a step's pairs: what was minimised, and both scores of each."""

    loss: float
    preference: float
    scores: Float[Tensor, "N 2"]
