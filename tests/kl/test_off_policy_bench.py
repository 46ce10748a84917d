"""The off-policy table's own check, on two of its instances."""

from benchmarks.off_policy import page


def test_what_must_be_exact_is() -> None:
    text, wrong = page(range(2))
    assert wrong == []
    assert text.count("exact |") == 12 + 3
