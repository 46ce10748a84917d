"""The KL budget: how far a run may go in all. A target is held and met again and again; a budget is spent once."""

from kleash.errors import UsageError
from kleash.records import Reading, Step, Target, Unit
from kleash.runlog.offline import PairEvaluation
from kleash.runlog.schema import Evaluation


def spent(budget: Target, measured: Step | Evaluation | PairEvaluation) -> Reading | None:
    """The reading that a budget is compared with, in its unit; None where it was not measured.

    It is of the whole way from the first reference: kl_origin once the reference has moved, until then kl_ref.
    """
    if budget.unit == "nats/token":
        return measured.kl_origin_token or measured.kl_ref_token
    return measured.kl_origin or measured.kl_ref


def exceeded(budget: Target | None, measured: Step | Evaluation | PairEvaluation) -> str | None:
    """In words, that a reading lies above the budget; None where it does not, or there is no budget.

    The reading alone decides, not the end of its interval: its error is told, and the budget is where one stops.
    """
    reading = None if budget is None else spent(budget, measured)
    if budget is None or reading is None or reading.value <= budget.value:
        return None
    error = "" if reading.standard_error is None else f" ± {reading.standard_error:.2g}"
    found = f"{reading.value:.4g}{error} {reading.unit}"
    return f"{reading.kind} is {found} at step {measured.step}, above kl.budget = {budget}"


def least(target: Target, unit: Unit, longest: int) -> float:
    """The least that a held target comes to in a unit, for completions of 1 to `longest` tokens."""
    if target.unit == unit:
        return target.value
    return target.value / longest if unit == "nats/token" else target.value


def check_resumed(budget: Target | None, last: Step | None) -> None:
    """A run goes on only below its budget.

    Raises:
        UsageError: the last reading in its log is above the budget now in force.
    """
    said = None if last is None else exceeded(budget, last)
    if said:
        raise UsageError(f"there is no budget left to go on with: {said}. Raise it (and add --loosen), or start anew")
