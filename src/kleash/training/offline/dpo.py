"""DPO's family on the offline loop: preference losses, with the KL on the policy's own words measured all along."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from kleash.algorithms.preference import AdaptsToPairs, DynamicBeta, GapStatistics, PreferenceLoss, TextsLoss
from kleash.models.answers import Encoded
from kleash.models.draw import keyed_noise
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
from kleash.training.offline.kto_baseline import at_once, put_elsewhere
from kleash.training.offline.own_words import OwnWords
from kleash.training.offline.pair_figures import (
    Seen,
    judged_figures,
    pair_line,
    seen_pairs,
    seen_texts,
    step_figures,
    together,
)
from kleash.training.offline.reference_cache import ReferenceCache
from kleash.training.passes import ByPlan, spans


@dataclass(frozen=True, slots=True)
class PairMemory:
    """What a run on pairs remembers: beta's state, the reference's moves, and the watched pairs' first log-probs.

    first: log π of each watched text, nats per sequence; None before the first evaluation. warned: of
    displacement. gap: the usual gap of the pairs, for a loss whose beta follows it. heard: the KL on the policy's own
    words when it was last measured, nats per sequence.
    """

    controller: ControllerState
    moves: Moves = field(default_factory=Moves)
    first: torch.Tensor | None = None
    warned: bool = False
    gap: GapStatistics | None = None
    heard: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The rows of every evaluation. prompt: a number for each different prompt. held_out: they are not trained on.

    labels: of judged texts, which are wanted; None of pairs.
    """

    pairs: Encoded
    prompt: torch.Tensor
    held_out: bool
    labels: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leash:
    """What the KL does: the law that moves beta to hold `target`, and the budget above which the run ends."""

    law: Controller
    target: Target | None
    budget: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferring:
    """The objective. following: how the reference follows the policy; cache: of its log-probs, where they are kept.

    labels: of judged texts, one a row, as a loss of texts needs them; None of pairs. context: the model's positions.
    """

    policy: Policy
    reference: Reference
    pairs: Encoded
    loss: PreferenceLoss | TextsLoss
    batch_size: int
    seed: int
    leash: Leash
    watched: Watched
    words: OwnWords
    following: Following | None = None
    cache: ReferenceCache | None = None
    labels: torch.Tensor | None = None
    context: int = sys.maxsize

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
            "gap": own.gap,
            "heard": own.heard,
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
            gap=None if plain["gap"] is None else GapStatistics(*plain["gap"]),
            heard=plain["heard"],
        )

    def learn(self, step: int, own: PairMemory, by_plan: ByPlan) -> Taught:
        """The gradient of the mean loss over the step's pairs; passes are pairs, and add up."""
        moves, said = self._follow(step, own.moves)
        if self.cache is not None and (text := self.cache.fill(by_plan)):
            said += (Notice(what="reference_logprobs", text=text, step=step),)
        index = indices(step, self.batch_size, len(self.pairs), self.seed)
        beta, figures = own.controller.beta, {"epoch": step / (len(self.pairs) // self.batch_size)}
        if isinstance(self.loss, AdaptsToPairs):
            adapted = self._adapted(self.loss, step, index, own.gap, by_plan)
            beta, own = adapted.beta, replace(own, gap=adapted.statistics)
            index = [i for i, kept in zip(index, adapted.keep.tolist(), strict=True) if kept]
            figures["beta_floored"] = int(adapted.floored)
        rollout = self.pairs.rollout(index, self.policy.device)
        baseline = 0.0
        if isinstance(self.loss, TextsLoss):
            baseline, clamped = self._baseline(self.loss, index, own, by_plan)
            figures |= {"kto_baseline": baseline, "kto_baseline_clamped": int(clamped)}
        found = by_plan(partial(self._gradients, rollout, index, beta, baseline))
        figures |= {"beta": beta, **step_figures(found)}
        return Taught(rollout, float(found.loss.mean()), replace(own, moves=moves), figures, said)

    def _adapted(
        self, loss: AdaptsToPairs, step: int, index: Sequence[int], before: GapStatistics | None, by_plan: ByPlan
    ) -> DynamicBeta:
        """The step's beta and the pairs it keeps, from a look at all of them before their gradients."""
        gap = by_plan(partial(self._gaps, loss, index))
        noise = int(keyed_noise(self.seed, step, [0], 1, 1))
        return loss.adapt(gap, before, torch.Generator().manual_seed(noise))

    @torch.no_grad()
    def _gaps(self, loss: AdaptsToPairs, index: Sequence[int], plan: Plan) -> torch.Tensor:
        found = []
        for first, last in spans(len(index), plan.groups or len(index)):
            part = self.pairs.rollout(index[first:last], self.policy.device)
            ref = None if self.cache is None else self.cache.of(index[first:last], part)
            found.append(loss.gap(self._look(part, ref, plan), part.mask).cpu())
        return torch.cat(found)

    def _baseline(self, loss: TextsLoss, index: Sequence[int], own: PairMemory, by_plan: ByPlan) -> tuple[float, bool]:
        """What stands for KL(policy‖reference) in the step, nats per sequence, and whether it was clamped at 0."""
        device = self.policy.device
        match loss.baseline:
            case "mismatched":
                elsewhere = put_elsewhere(self.pairs, index, self.context)
                found = by_plan(partial(at_once, elsewhere, self._pass, self.batch_size, device, loss.baseline))
            case "prefixes":
                rows = self.pairs.only(index)
                found = by_plan(partial(at_once, rows, self._pass, self.batch_size, device, loss.baseline))
            case "on_policy":
                return own.heard, False
            case _:
                return 0.0, False
        return found.value or 0.0, found.clamped

    def _pass(self, part: Rollout, plan: Plan) -> Look:
        return self._look(part, None, plan)

    def _told(
        self, look: Look, mask: torch.Tensor, labels: torch.Tensor | None, beta: float, baseline: float
    ) -> tuple[torch.Tensor, Seen]:
        """The live losses of a pass, and what is kept of it."""
        if not isinstance(self.loss, TextsLoss):
            found = self.loss.loss(look, mask, beta)
            return found.loss, seen_pairs(look, mask, found)
        assert labels is not None, "a loss of texts is given labelled ones"
        labels = labels.to(mask.device)
        texts = self.loss.loss(look, mask, labels, baseline, beta)
        return texts.loss, seen_texts(look, mask, texts, labels, beta * baseline)

    def _gradients(self, rollout: Rollout, index: Sequence[int], beta: float, baseline: float, plan: Plan) -> Seen:
        parts: list[Seen] = []
        for first, last in spans(len(index), plan.groups or len(index)):
            part = rollout.groups(first, last)
            ref = None if self.cache is None else self.cache.of(index[first:last], part)
            look = self._look(part, ref, plan)
            labels = None if self.labels is None else self.labels[list(index[first:last])]
            losses, told_of = self._told(look, part.mask, labels, beta, baseline)
            (losses.sum() / len(index)).backward()
            parts.append(told_of)
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
        found = by_plan(partial(self._watch, own.controller.beta, own.heard))
        heard = self.words.measure(step, by_plan)
        first = found.logprobs if own.first is None else own.first
        prompt = self.watched.prompt.repeat_interleave(self.watched.pairs.group_size)
        moved_by = change(first, found.logprobs, found.good, prompt)
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
        kl = heard.readings["kl_ref"].value
        own = replace(own, controller=controller, first=first, warned=warned, heard=kl)
        return Judged(event, own, merit, over, (*said, *heard.samples))

    def _warnings(
        self, step: int, own: PairMemory, controller: ControllerState, displacement: str | None
    ) -> tuple[Notice, ...]:
        said = {} if displacement is None or own.warned else {"likelihood_displacement": displacement}
        if controller.held and controller.held != own.controller.held:
            said["controller_held"] = f"beta stays at {controller.beta:.4g}: {controller.held}"
        return tuple(Notice(what=what, text=text, step=step) for what, text in said.items())

    @torch.no_grad()
    def _watch(self, beta: float, baseline: float, plan: Plan) -> Seen:
        pairs, labels, parts = self.watched.pairs, self.watched.labels, []
        for first, last in spans(len(pairs), min(self.batch_size, plan.groups or self.batch_size)):
            part = pairs.rollout(range(first, last), self.policy.device)
            look = self._look(part, None, plan)
            own = None if labels is None else labels[first:last]
            parts.append(self._told(look, part.mask, own, beta, baseline)[1])
        return together(parts)

    def line(self, record: Any) -> list[str]:
        return pair_line(record)
