"""What the policy writes itself, and how far it is from the reference there: the KL that no text of others shows.

The pairs' answers were written by someone else, so a KL on them says how far the policy went where it was pushed. How
far it went where it goes by itself takes samples of its own: always the same prompts, with the same noise, so that two
measurements differ by the policy alone.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from kleash.kl.measure import measure
from kleash.models.frozen import Reference
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.models.prompts import decode
from kleash.models.sampling import Sampling, sample
from kleash.models.stopping import Ends
from kleash.records import KLKind, Prompt, Reading, Unit
from kleash.runlog.schema import Sample
from kleash.training.evaluate import KEY
from kleash.training.passes import ByPlan, spans

#: Samples of each measurement that go into samples.jsonl.
SAMPLES_LOGGED = 16


class Heard(NamedTuple):
    """The readings by their field in a record, and what the samples are like."""

    readings: dict[str, Reading]
    length: float
    truncated: float
    entropy: float
    samples: tuple[Sample, ...]

    def figures(self) -> dict[str, Any]:
        """Fields of `PairEvaluation`."""
        return {**self.readings, "length": self.length, "truncated": self.truncated, "entropy": self.entropy}


class _Rows(NamedTuple):
    mask: Bool[Tensor, "B T"]
    kl: Float[Tensor, "B T"]
    kl_origin: Float[Tensor, "B T"] | None
    entropy: Float[Tensor, "B T"]
    group: Int[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    texts: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWords:
    """prompts: as they are told; ids: their tokens. samples: of each. length: at most, in tokens.

    rows: that go through the model at a time in a step, in groups of `group_size`.
    """

    policy: Policy
    reference: Reference
    tokenizer: Any
    ends: Ends
    prompts: list[Prompt]
    ids: list[list[int]]
    samples: int
    length: int
    seed: int
    rows: int
    group_size: int

    def measure(self, step: int, by_plan: ByPlan) -> Heard:
        """Exact KL(policy‖reference) on samples at temperature 1, with a standard error clustered by prompt."""
        parts = by_plan(self._heard)
        mask, kl = (torch.cat([getattr(part, name) for part in parts]) for name in ("mask", "kl"))
        group, truncated = (torch.cat([getattr(part, name) for part in parts]) for name in ("group", "truncated"))
        origin = None
        if all(part.kl_origin is not None for part in parts):
            origin = torch.cat([part.kl_origin for part in parts if part.kl_origin is not None])
        entropy = torch.cat([part.entropy for part in parts])
        kinds: list[tuple[KLKind, Tensor | None]] = [("kl_ref", kl), ("kl_origin", origin)]
        units: list[tuple[str, Unit]] = [("", "nats/sequence"), ("_token", "nats/token")]
        readings = {
            f"{kind}{suffix}": measure(values, mask, group, kind=kind, estimator="exact", unit=unit)
            for kind, values in kinds
            if values is not None
            for suffix, unit in units
        }
        return Heard(
            readings=readings,
            length=float(mask.sum(1).double().mean()),
            truncated=float(truncated.double().mean()),
            entropy=float(entropy[mask].double().mean()),
            samples=self._told(step, parts, mask, kl),
        )

    @torch.no_grad()
    def _heard(self, plan: Plan) -> list[_Rows]:
        plan = plan.for_groups_of(self.samples, self.group_size)
        most = max(1, self.rows // self.samples)
        parts: list[_Rows] = []
        for first, last in spans(len(self.ids), min(most, plan.groups or most)):
            rollout = sample(
                self.policy,
                self.ids[first:last],
                Sampling(max_new_tokens=self.length),
                self.ends,
                group_size=self.samples,
                seed=self.seed,
                step=KEY,
                prompt_index=list(range(first, last)),
            )
            states = self.reference.states(rollout, plan.path, plan.rows)
            look = self.policy(rollout, reference=states, path=plan.path, rows=plan.rows)
            room = (0, self.length - rollout.mask.shape[1])
            origin = None if look.kl_origin is None else pad(look.kl_origin, room).cpu()
            parts.append(
                _Rows(
                    mask=pad(rollout.mask, room).cpu(),
                    kl=pad(look.kl, room).cpu(),
                    kl_origin=origin,
                    entropy=pad(look.entropy, room).cpu(),
                    group=rollout.group.cpu() + first,
                    truncated=rollout.truncated.cpu(),
                    texts=decode(rollout, self.tokenizer),
                )
            )
        return parts

    def _told(
        self, step: int, parts: list[_Rows], mask: Bool[Tensor, "B T"], kl: Float[Tensor, "B T"]
    ) -> tuple[Sample, ...]:
        texts = [text for part in parts for text in part.texts][:SAMPLES_LOGGED]
        truncated = torch.cat([part.truncated for part in parts])
        return tuple(
            Sample(
                step=step,
                prompt=self.prompts[i // self.samples],
                completion=text,
                score=None,
                kl_ref=float((kl[i] * mask[i]).sum()),
                length=int(mask[i].sum()),
                truncated=bool(truncated[i]),
            )
            for i, text in enumerate(texts)
        )
