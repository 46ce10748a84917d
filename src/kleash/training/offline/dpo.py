"""DPO's family on the offline loop: preference losses, with the KL on the policy's own words measured all along."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from kleash.algorithms.preference import PreferenceLoss
from kleash.models.answers import Encoded
from kleash.models.following import Following
from kleash.models.frozen import Reference
from kleash.models.moving import Moving
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.records import Controller, ControllerState, Target
from kleash.runlog.offline import PairEvaluation, PairStep
from kleash.runlog.schema import Event, Notice, ReferenceChange
from kleash.tensors import Look, Rollout
from kleash.training.budget import exceeded
from kleash.training.data import indices
from kleash.training.moving import Moves, kept, moved, put_back, told
from kleash.training.offline.displacement import change, displaced
from kleash.training.offline.job import Judged, Taught, Tensors
from kleash.training.offline.own_words import OwnWords
from kleash.training.offline.pair_figures import Seen, judged_figures, pair_line, seen, step_figures, together
from kleash.training.offline.reference_cache import ReferenceCache
from kleash.training.passes import ByPlan, spans


@dataclass(frozen=True, slots=True)
class PairMemory:
    """What a run on pairs remembers: beta's state, the reference's moves, and the watched pairs' first log-probs.

    first [N, 2]: log π of chosen and rejected, nats per sequence; None before the first evaluation. warned: of
    displacement.
    """

    controller: ControllerState
    moves: Moves = field(default_factory=Moves)
    first: torch.Tensor | None = None
    warned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The pairs of every evaluation. prompt: a number for each different prompt. held_out: they are not trained on."""

    pairs: Encoded
    prompt: torch.Tensor
    held_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Leash:
    """What the KL does: the law that moves beta to hold `target`, and the budget above which the run ends."""

    law: Controller
    target: Target | None
    budget: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferring:
    """The objective. following: how the reference follows the policy; cache: of its log-probs, where they are kept."""

    policy: Policy
    reference: Reference
    pairs: Encoded
    loss: PreferenceLoss
    batch_size: int
    seed: int
    leash: Leash
    watched: Watched
    words: OwnWords
    following: Following | None = None
    cache: ReferenceCache | None = None

    record = PairStep

    def begin(self) -> PairMemory:
        if isinstance(self.reference, Moving):
            self.reference.restart()
        return PairMemory(self.leash.law.init(self.loss.beta))

    def keep(self, own: PairMemory) -> tuple[dict[str, Any], Tensors]:
        plain = {
            "controller": asdict(own.controller),
            "reference": kept(self.reference, own.moves),
            "warned": own.warned,
        }
        tensors: Tensors = {} if own.first is None else {"watched": {"first": own.first}}
        if isinstance(self.reference, Moving) and self.reference.moved:
            tensors["reference"] = self.reference.tensors()
        return plain, tensors

    def recall(self, plain: Mapping[str, Any], tensors: Tensors, step: int) -> PairMemory:
        return PairMemory(
            controller=ControllerState(**plain["controller"]),
            moves=put_back(self.reference, plain["reference"], tensors.get("reference"), step),
            first=tensors["watched"]["first"] if "watched" in tensors else None,
            warned=plain["warned"],
        )

    def learn(self, step: int, own: PairMemory, by_plan: ByPlan) -> Taught:
        """The gradient of the mean loss over the step's pairs; passes are pairs, and add up."""
        moves, said = self._follow(step, own.moves)
        if self.cache is not None and (text := self.cache.fill(by_plan)):
            said += (Notice(what="reference_logprobs", text=text, step=step),)
        index = indices(step, self.batch_size, len(self.pairs), self.seed)
        rollout = self.pairs.rollout(index, self.policy.device)
        beta = own.controller.beta
        found = by_plan(partial(self._gradients, rollout, index, beta))
        figures = {"epoch": step / (len(self.pairs) // self.batch_size), "beta": beta, **step_figures(found)}
        return Taught(rollout, float(found.loss.mean()), replace(own, moves=moves), figures, said)

    def _gradients(self, rollout: Rollout, index: Sequence[int], beta: float, plan: Plan) -> Seen:
        parts: list[Seen] = []
        for first, last in spans(len(index), plan.groups or len(index)):
            part = rollout.groups(first, last)
            ref = None if self.cache is None else self.cache.of(index[first:last], part)
            look = self._look(part, ref, plan)
            found = self.loss.loss(look, part.mask, beta)
            (found.loss.sum() / len(index)).backward()
            parts.append(seen(look, part.mask, found))
        return together(parts)

    def _look(self, part: Rollout, ref: torch.Tensor | None, plan: Plan) -> Look:
        """What the loss reads. The reference's log-probs are those given, or come from its own pass."""
        if ref is not None:
            look = self.policy(part, path=plan.path, rows=plan.rows)
            return replace(look, ref=ref.to(look.logprobs.dtype))
        source = self.reference.current if isinstance(self.reference, Moving) else self.reference
        states = source.states(part, plan.path, plan.rows)
        return self.policy(part, reference=states, path=plan.path, rows=plan.rows)

    def _follow(self, step: int, before: Moves) -> tuple[Moves, tuple[Event, ...]]:
        """Where the reference follows the policy and a move is due, before the step's gradients."""
        if self.following is None:
            return before, ()
        moves, share = moved(self.following, self.reference, before, step, stalled=0)
        if share is None or moves.fingerprint is None:
            return moves, ()
        kind = self.following.kind
        events: tuple[Event, ...] = (ReferenceChange(step=step, kind=kind, fingerprint=moves.fingerprint, share=share),)
        if kind != "ema" or moves.number == 1:
            text = told(kind, moves, self.leash.target)
            events += (Notice(what="reference_moved", text=text, step=step),)
        return moves, events

    def judge(self, step: int, own: PairMemory, by_plan: ByPlan) -> Judged:
        """Accuracy on the watched pairs, and the KL on the policy's own words, which moves beta where it is held."""
        began = time.perf_counter()
        found = by_plan(partial(self._watch, own.controller.beta))
        heard = self.words.measure(step, by_plan)
        first = found.logprobs if own.first is None else own.first
        moved_by = change(first, found.logprobs, self.watched.prompt)
        target, controller = self.leash.target, own.controller
        if target is not None and step:  # before the first update nothing has moved
            name = "kl_ref" if target.unit == "nats/sequence" else "kl_ref_token"
            controller = self.leash.law.update(controller, heard.readings[name], target)
        event = PairEvaluation(
            step=step,
            held_out=self.watched.held_out,
            n_pairs=len(self.watched.pairs),
            pairs=self.watched.pairs.digest,
            **judged_figures(found, self.watched.prompt),
            chosen_change=moved_by.chosen,
            chosen_change_error=moved_by.chosen_error,
            margin_change=moved_by.margin,
            margin_change_error=moved_by.margin_error,
            **heard.figures(),
            beta=controller.beta,
            target=None if target is None else str(target),
            controller_held=controller.held,
            seconds=round(time.perf_counter() - began, 4),
        )
        said = self._warnings(step, own, controller, displaced(moved_by))
        over = exceeded(self.leash.budget, event)
        merit = event.accuracy if self.watched.held_out and not over else None
        warned = own.warned or any(notice.what == "likelihood_displacement" for notice in said)
        own = replace(own, controller=controller, first=first, warned=warned)
        return Judged(event, own, merit, over, (*said, *heard.samples))

    def _warnings(
        self, step: int, own: PairMemory, controller: ControllerState, displacement: str | None
    ) -> tuple[Notice, ...]:
        said = {} if displacement is None or own.warned else {"likelihood_displacement": displacement}
        if controller.held and controller.held != own.controller.held:
            said["controller_held"] = f"beta stays at {controller.beta:.4g}: {controller.held}"
        return tuple(Notice(what=what, text=text, step=step) for what, text in said.items())

    @torch.no_grad()
    def _watch(self, beta: float, plan: Plan) -> Seen:
        pairs, parts = self.watched.pairs, []
        for first, last in spans(len(pairs), min(self.batch_size, plan.groups or self.batch_size)):
            part = pairs.rollout(range(first, last), self.policy.device)
            look = self._look(part, None, plan)
            parts.append(seen(look, part.mask, self.loss.loss(look, part.mask, beta)))
        return together(parts)

    def line(self, record: Any) -> list[str]:
        return pair_line(record)
