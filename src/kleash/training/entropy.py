"""The entropy bonus from step to step: put into the step's update, its coefficient moved by what the step measured."""

from dataclasses import asdict, replace
from typing import Any

from kleash.algorithms import EntropyBonus
from kleash.beta.entropy import EntropyLaw, EntropyState
from kleash.training.passes import Update


def with_bonus(update: Update, law: EntropyLaw | None, state: EntropyState | None) -> Update:
    """The update of a step, with the coefficient in force. State None: the first step."""
    return update if law is None else replace(update, entropy=bonus_of(law, state))


def bonus_of(law: EntropyLaw, state: EntropyState | None = None) -> EntropyBonus:
    return EntropyBonus(coef=(state or law.init()).coef, whole=law.scope == "sequence")


def next_entropy(law: EntropyLaw | None, state: EntropyState | None, entropy: float | None) -> EntropyState | None:
    """The state after a step of this entropy; None without a bonus."""
    return None if law is None else law.update(state or law.init(), entropy)


def entropy_figures(update: Update, state: EntropyState | None) -> dict[str, float | int | None]:
    """The coefficient of this step, and how often a move met a bound, as fields of `Step`."""
    return {
        "entropy_coef": None if update.entropy is None else update.entropy.coef,
        "entropy_coef_clipped": None if state is None else state.clipped,
    }


def kept(law: EntropyLaw | None, state: EntropyState | None) -> dict[str, Any] | None:
    """As a checkpoint holds it, with the law that it is the state of."""
    return None if law is None or state is None else {"law": asdict(law), "state": asdict(state)}  # pyright: ignore[reportArgumentType]


def put_back(law: EntropyLaw | None, saved: dict[str, Any] | None) -> EntropyState | None:
    """What was kept; None, so that it begins anew, where the config has another law or other settings by now."""
    same = law is not None and saved is not None and saved["law"] == asdict(law)  # pyright: ignore[reportArgumentType]
    return EntropyState(**saved["state"]) if same and saved is not None else None
