"""Supervised fine-tuning: the mean −log π of the answers' tokens. Its result is the reference of what comes after."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from kleash.errors import UsageError
from kleash.masked import clustered_ratio
from kleash.models.frozen import Reference
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.models.rows import Row, even_spans, rollout_of
from kleash.runlog.offline import TextEvaluation, TextStep
from kleash.tensors import Rollout
from kleash.training.data import indices
from kleash.training.offline.job import Judged, Taught, Tensors
from kleash.training.offline.own_words import OwnWords
from kleash.training.passes import ByPlan

#: Share of padding that rows may make together before the next ones go through the model apart from them.
PADDING = 0.1


class Held(NamedTuple):
    """Held-out rows, and their digest."""

    rows: Sequence[Row]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """The objective. reference: what the KL of an evaluation is measured from; words: on which of the policy's own."""

    policy: Policy
    rows: Sequence[Row]
    batch_size: int
    seed: int
    pad_id: int
    held_out: Held | None = None
    reference: Reference | None = None
    words: OwnWords | None = None

    record = TextStep

    def begin(self) -> None:
        return None

    def keep(self, own: None) -> tuple[dict[str, Any], Tensors]:
        return {}, {}

    def recall(self, plain: Mapping[str, Any], tensors: Tensors, step: int) -> None:
        return None

    def learn(self, step: int, own: None, by_plan: ByPlan) -> Taught:
        """The gradient of the step's loss: the sum over its counted tokens, divided by their number.

        Passes are rows of like length; their gradients add up to that of all rows at once.
        """
        index = indices(step, self.batch_size, len(self.rows), self.seed)
        rollout = self._rollout([self.rows[i] for i in index])
        loss, entropy, padding = by_plan(partial(self._gradients, rollout))
        figures = {
            "epoch": step / (len(self.rows) // self.batch_size),
            "entropy": entropy,
            "rows": len(index),
            "tokens": int(rollout.mask.sum()),
            "padding": padding,
        }
        return Taught(rollout, loss, own, figures)

    def _gradients(self, rollout: Rollout, plan: Plan) -> tuple[float, float, float]:
        """Loss, entropy, and the share of positions that were padding; the gradient is in `.grad`."""
        tokens = int(rollout.mask.sum())
        loss, entropy, computed = 0.0, 0.0, 0
        for part in self._passes(rollout, plan):
            look = self.policy(part, path=plan.path, rows=plan.rows)
            value = -(look.logprobs * part.mask).sum() / tokens
            value.backward()
            loss += float(value.detach())
            entropy += float((look.entropy.detach() * part.mask).sum()) / tokens
            computed += part.mask.shape[0] * (part.mask.shape[1])
        return loss, entropy, 1 - sum(self._lengths(rollout)) / computed

    def judge(self, step: int, own: None, by_plan: ByPlan) -> Judged | None:
        """The loss on the held-out rows and, with a reference, how far the policy is from it on their text."""
        if self.held_out is None:
            return None
        began = time.perf_counter()
        rollout = self._rollout(self.held_out.rows)
        losses, kls = by_plan(partial(self._seen, rollout))
        counted, each = rollout.mask.sum(1).double().cpu(), torch.arange(len(losses))
        loss, error = clustered_ratio(losses, counted, each)
        heard = None if self.words is None else self.words.measure(step, by_plan)
        kl, kl_error = (None, None) if kls is None else clustered_ratio(kls, counted, each)
        event = TextEvaluation(
            step=step,
            loss=loss,
            loss_error=error,
            kl_text=kl,
            kl_text_error=kl_error,
            n_rows=len(losses),
            n_tokens=int(counted.sum()),
            rows=self.held_out.digest,
            **({} if heard is None else heard.figures()),
            seconds=round(time.perf_counter() - began, 4),
        )
        return Judged(event, own, -loss, said=() if heard is None else heard.samples)

    @torch.no_grad()
    def _seen(self, rollout: Rollout, plan: Plan) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of each row, the sums of −log π and of the KL over its counted tokens."""
        losses, kls = [], []
        for part in self._passes(rollout, plan):
            states = None if self.reference is None else self.reference.states(part, plan.path, plan.rows)
            look = self.policy(part, reference=states, path=plan.path, rows=plan.rows)
            losses.append(-(look.logprobs * part.mask).sum(1).double().cpu())
            if look.kl is not None:
                kls.append((look.kl * part.mask).sum(1).double().cpu())
        return torch.cat(losses), torch.cat(kls) if kls else None

    def line(self, record: Any) -> list[str]:
        if isinstance(record, TextEvaluation):
            error = "" if record.loss_error is None else f"±{record.loss_error:.4f}"
            found = [f"held out: loss {record.loss:.4f}{error} nats/token"]
            found += [] if record.kl_text is None else [f"KL on their text {record.kl_text:.4f} nats/token"]
            return found + ([] if record.kl_ref is None else [f"on own words {record.kl_ref.value:.2f} nats/sequence"])
        return [
            f"loss {record.loss:.4f} nats/token",
            f"entropy {record.entropy:.2f}",
            f"{record.tokens} tokens",
            f"lr {record.learning_rate:.2e}",
        ]

    def _rollout(self, rows: Sequence[Row]) -> Rollout:
        return rollout_of(sorted(rows, key=lambda row: len(row.ids)), self.pad_id, self.policy.device)

    def _passes(self, rollout: Rollout, plan: Plan) -> list[Rollout]:
        spans = even_spans(self._lengths(rollout), plan.groups, PADDING)
        return [rollout.groups(first, last) for first, last in spans]

    @staticmethod
    def _lengths(rollout: Rollout) -> list[int]:
        """Up to the last counted token: what lies behind it is not computed."""
        steps = torch.arange(1, rollout.mask.shape[1] + 1, device=rollout.mask.device)
        return (rollout.mask * steps).amax(1).tolist()


def fitting(rows: Sequence[Row], context: int, max_tokens: int | None) -> tuple[list[Row], int]:
    """Rows that fit: cut at `max_tokens` (how many were is the second value), or refused above the context.

    Raises:
        UsageError: a row is too long, or nothing of it is left to learn.
    """
    limit = min(context, max_tokens or context)
    cut = 0
    kept: list[Row] = []
    for number, row in enumerate(rows):
        if len(row.ids) > limit:
            if max_tokens is None:
                raise UsageError(
                    f"row {number} has {len(row.ids)} tokens, and the model's context is {context}: shorten it, or set "
                    f"data.max_tokens = {context} to have rows cut there"
                )
            cut += 1
        short = row.cut(limit)
        if not any(short.counts):
            raise UsageError(
                f"row {number}: nothing of its answer is left within data.max_tokens = {max_tokens} tokens; raise it, "
                "or leave the row out"
            )
        kept.append(short)
    return kept, cut
