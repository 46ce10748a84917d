"""What the preference losses' configs share: strictness, and settings without a meaning are refused."""

from pydantic import ConfigDict

from kleash.errors import UsageError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def check_positive(name: str, value: float) -> None:
    """Raises UsageError for a number that is not above 0.

    Source: the definition of each loss: at 0 it has no gradient.
    Proved by: tests/algorithms/test_preference_configs.py::test_refused_settings
    """
    if not value > 0:
        raise UsageError(f"{name} = {value} must be above 0; the loss has no gradient otherwise")


def check_at_least_zero(name: str, value: float) -> None:
    """Raises UsageError for a negative number.

    Source: the definition of each loss.
    Proved by: tests/algorithms/test_preference_configs.py::test_refused_settings
    """
    if not value >= 0:
        raise UsageError(f"{name} = {value} must be at least 0")


def check_flip(value: float) -> None:
    """Raises UsageError for a share of wrong labels that is not in [0, ½).

    Source: Chowdhury et al. 2024 (rDPO), arXiv 2403.00409: ε < ½.
    Proved by: tests/algorithms/test_preference_configs.py::test_refused_settings
    """
    if not 0 <= value < 0.5:
        raise UsageError(
            f"loss.flip = {value} is the share of labels that are wrong; it must be at least 0 and below 0.5, where "
            "the labels would say nothing"
        )
