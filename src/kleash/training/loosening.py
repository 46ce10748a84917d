"""A leash is loosened deliberately, never by accident: what a changed [kl] section would let go."""

from kleash.training.config import KLSpec


def loosened(before: KLSpec, now: KLSpec) -> list[str]:
    """In words, each way in which `now` holds less than `before`; empty if none."""
    said: list[str] = []
    if before.penalty.kind != "none" and now.penalty.kind == "none":
        said.append(f'kl.penalty goes from "{before.penalty.kind}" to "none"')
    if before.schedule and not now.schedule:
        said.append("the KL target is dropped")
    steps = sorted({s.at for s in (*before.schedule, *now.schedule)})
    for step in steps:
        old, new = before.target_at(step), now.target_at(step)
        if old is None or new is None:
            continue
        if old.unit != new.unit:
            said.append(f"the target's unit changes from {old.unit} to {new.unit}, which cannot be compared")
        elif new.value > old.value:
            said.append(f"the target at step {step} goes from {old} to {new}")
    if not before.schedule and not now.schedule and now.first_beta < before.first_beta:
        said.append(f"beta goes from {before.first_beta:g} to {now.first_beta:g}")
    return said
