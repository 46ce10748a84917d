"""The estimator table's own checks, without its survey of instances, as part of every test run."""

import pytest
from benchmarks.estimators import page
from benchmarks.published import Figure


def test_every_cell_order_and_published_figure() -> None:
    text, checks = page(range(0), range(3, 5))
    assert [check.what for check in checks if not check.holds] == []
    assert len(checks) > 150
    assert text.count("\n## ") == 11


@pytest.mark.parametrize(("computed", "agrees"), [(0.0025, True), (0.00251, False), (0.0015, True), (0.0014, False)])
def test_a_figure_agrees_to_half_a_unit(computed: float, agrees: bool) -> None:
    assert Figure("a printed 0.002", computed, "0.002").agrees == agrees
