"""Settings of preference losses that have no meaning are refused here."""

from kleash.errors import UsageError


def check_positive(name: str, value: float) -> None:
    """Raises UsageError for a number that is not above 0.

    Source: the definition of each loss: at 0 it has no gradient.
    Proved by: tests/algorithms/test_preference_configs.py::test_refused_settings
    """
    if not value > 0:
        raise UsageError(f"{name} = {value} must be above 0; the loss has no gradient otherwise")
