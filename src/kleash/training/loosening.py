"""What a changed [kl] section does to a run that is resumed. A leash is loosened deliberately, never by accident."""

from dataclasses import asdict, replace
from typing import Any

from kleash.records import ControllerState, Target
from kleash.training.kl_config import KLSpec


def loosened(before: KLSpec, now: KLSpec) -> list[str]:
    """In words, each way in which `now` holds less than `before`; empty if none."""
    said: list[str] = []
    if before.penalty.kind != "none" and now.penalty.kind == "none":
        said.append(f'kl.penalty goes from "{before.penalty.kind}" to "none"')
    if before.schedule and not now.schedule:
        said.append("the KL target is dropped")
    if not before.schedule and now.schedule and before.first_beta > 0:
        said.append(f"the fixed beta {before.first_beta:g} gives way to a target, which may let it fall")
    if before.schedule and now.schedule:
        said += _looser_targets(before, now)
    if not before.schedule and not now.schedule:
        said += _looser_betas(before, now)
    return said + _looser_budget(before.ceiling, now.ceiling)


def follows_otherwise(before: Any, now: Any) -> list[str]:
    """In words, that the reference comes to follow the policy, or does so otherwise: each move loosens the leash."""
    if now is None or now == before:
        return []
    words = [
        "no move" if law is None else ", ".join(f"{k} {v}" for k, v in asdict(law).items()) for law in (before, now)
    ]
    return [f"model.reference_update goes from {words[0]} to {words[1]}"]


def _looser_budget(before: Target | None, now: Target | None) -> list[str]:
    if before is None:
        return []
    if now is None:
        return [f"the KL budget of {before} is dropped"]
    if before.unit != now.unit:
        return [f"the budget's unit changes from {before.unit} to {now.unit}, which cannot be compared"]
    return [f"the KL budget goes from {before} to {now}"] if now.value > before.value else []


def _looser_targets(before: KLSpec, now: KLSpec) -> list[str]:
    said: list[str] = []
    for step in sorted({s.at for s in (*before.schedule, *now.schedule)}):
        old, new = before.target_at(step), now.target_at(step)
        assert old is not None and new is not None, "a schedule starts at step 0"
        if old.unit != new.unit:
            return [f"the target's unit changes from {old.unit} to {new.unit}, which cannot be compared"]
        if new.value > old.value:
            said.append(f"the target at step {step} goes from {old} to {new}")
    old_max, new_max = (getattr(spec.law, "beta_max", None) for spec in (before, now))
    if old_max is not None and new_max is not None and new_max < old_max:
        said.append(f"the controller's beta_max goes from {old_max:g} to {new_max:g}")
    return said


def _looser_betas(before: KLSpec, now: KLSpec) -> list[str]:
    said: list[str] = []
    if now.first_beta < before.first_beta:
        said.append(f"beta goes from {before.first_beta:g} to {now.first_beta:g}")
    old_end, new_end = (getattr(spec.law, "end", spec.first_beta) for spec in (before, now))
    if new_end < old_end and not said:
        said.append(f"beta ends at {new_end:g} and not at {old_end:g}")
    return said


def leash(kl: KLSpec) -> dict[str, Any]:
    """The law and its first beta as plain values: what a checkpoint remembers of them."""
    return {"beta": kl.first_beta, "controller": asdict(kl.law)}


def continued(kl: KLSpec, before: dict[str, Any], state: ControllerState) -> ControllerState:
    """The controller's state on resume: as it was, unless the config now gives another law or another beta.

    `before` is the `leash` that `state` was saved under. Another law goes on from the beta reached; a beta that was
    changed in the config counts from here on.

    Raises:
        UsageError: the law cannot go on from this beta.
    """
    now = leash(kl)
    if now == before:
        return state
    beta = state.beta if now["beta"] == before["beta"] else kl.first_beta
    return replace(kl.law.init(beta), step=state.step)
