"""When the reference follows the policy, it does so between two steps: after the evaluation, before the checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kleash.errors import UsageError
from kleash.models.fingerprint import differences
from kleash.models.following import Following
from kleash.models.frozen import Reference
from kleash.models.moving import Moving
from kleash.records import Step, Target
from kleash.runlog.schema import Evaluation
from kleash.training.best import smoothed


@dataclass(frozen=True, slots=True)
class Moves:
    """decided: the steps done when a move was last decided on. last, number, fingerprint: of the moves made."""

    decided: int = 0
    last: int = 0
    number: int = 0
    fingerprint: dict[str, Any] | None = None


def moved(law: Following, reference: Reference, before: Moves, step: int, stalled: int) -> tuple[Moves, float | None]:
    """Moves the reference after `step` steps if the law says so: what is remembered of it, and by what share it moved.

    One step is decided on once: a run that is resumed at it does not move the reference again.
    """
    if step == before.decided:
        return before, None
    share = law.share(step, stalled)
    if share is None:
        return Moves(step, before.last, before.number, before.fingerprint), None
    assert isinstance(reference, Moving), "it was built for this law"
    reference.follow(share)
    return Moves(step, step, before.number + 1, reference.fingerprint_now()), share


def stalled_for(step: int, since: int, history: Sequence[Step], evaluations: Sequence[Evaluation] | None) -> int:
    """Steps since the score was last better than ever since step `since`.

    The score is that of the held-out evaluations, or where there are none (None) the smoothed training score.
    """
    if evaluations is None:
        points = [(done + 1, score) for done, score in enumerate(smoothed(history))]
    else:
        points = [(done.step, done.score) for done in evaluations]
    best, at = None, step
    for done, score in points:
        if done >= since and score is not None and (best is None or score > best):
            best, at = score, done
    return step - at


def told(kind: str, moves: Moves, target: Target | None) -> str:
    """For the user: that the reference moved, and what the leash means from here on."""
    means = "kl_ref is" if target is None else f"kl_ref and the target of {target} are"
    if kind == "ema":
        return f"the reference follows the policy from here on: {means} measured from it, kl_origin from the first one"
    return (
        f"the reference is now the policy after {moves.last} steps ({kind} {moves.number}): {means} measured from it, "
        "kl_origin goes on from the first one"
    )


def kept(reference: Reference, moves: Moves) -> dict[str, Any]:
    """What a checkpoint remembers of the moves, beside the weights: `origin` says from where they were made."""
    return {
        "decided": moves.decided,
        "last": moves.last,
        "number": moves.number,
        "fingerprint": moves.fingerprint,
        "origin": reference.fingerprint,
    }


def put_back(reference: Reference, saved: dict[str, Any], tensors: dict[str, Any] | None, step: int) -> Moves:
    """The reference as it was when a checkpoint was written. From another first reference it starts anew.

    Raises:
        UsageError: it had moved, and this one does not.
        RunError: what was saved is not what the run had.
    """
    if differences(saved["origin"], reference.fingerprint):
        return Moves(decided=step, last=step)
    moves = Moves(saved["decided"], saved["last"], saved["number"], saved["fingerprint"])
    if isinstance(reference, Moving):
        if moves.fingerprint is not None and tensors is not None:
            reference.put(tensors, moves.fingerprint)
        else:
            reference.restart()
    elif moves.number:
        raise UsageError(
            f"this run's reference has moved {moves.number} times, and without model.reference_update the run would go "
            "back to the first one. Keep the setting, or start a new run"
        )
    return moves
