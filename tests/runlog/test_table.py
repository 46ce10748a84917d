"""Steps that repeat, go back, come late or belong to two runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash.errors import RunError
from kleash.runlog.importers.table import Table


def filled(*rows: tuple[int, dict[str, float]]) -> Table:
    table = Table("a.log")
    for step, values in rows:
        table.add(step, [(key, float(value)) for key, value in values.items()])
    return table


def column(table: Table, key: str) -> dict[int, float]:
    axis = table.axis([key])
    return dict(zip(axis.tolist(), table.column(key, axis).tolist(), strict=True))


def test_a_resume_makes_what_came_after_it_void() -> None:
    table = filled(*((n, {"a": n, "b": -n}) for n in range(10)), *((n, {"a": 100 + n}) for n in range(5, 7)))
    assert column(table, "a") == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 105, 6: 106}
    assert column(table, "b") == {0: 0, 1: -1, 2: -2, 3: -3, 4: -4}
    assert table.notes() == ["step 5 came again after step 9: resumed; what was logged last counts"]


def test_of_two_runs_one_after_the_other_the_last_counts() -> None:
    table = filled(*((n, {"a": n}) for n in range(10)), *((n, {"a": 100 + n}) for n in range(4)))
    assert column(table, "a") == {0: 100, 1: 101, 2: 102, 3: 103}
    assert "began anew" in table.notes()[0]


def test_a_key_a_row_as_event_files_have_it() -> None:
    rows = [(n, {key: 1.0 * n}) for n in range(10) for key in "ab"]
    again = [(n, {key: 100.0 + n}) for n in range(5, 8) for key in "ab"]
    table = filled(*rows, *again)
    for key in "ab":
        assert column(table, key) == {n: n for n in range(5)} | {n: 100 + n for n in range(5, 8)}
    assert len(table.notes()) == 1


def test_late_rows_of_other_keys_are_sorted_and_void_nothing() -> None:
    table = filled(*((n, {"a": n}) for n in range(10)), (3, {"eval": 0.5}), *((n, {"a": n}) for n in range(10, 12)))
    assert column(table, "a") == {n: n for n in range(12)}
    assert column(table, "eval") == {3: 0.5}
    assert table.notes() == ["1 rows were out of order and are sorted by step"]


def test_two_runs_in_step_are_refused() -> None:
    table = filled(*((n, {"a": run + n}) for n in range(30) for run in (0.0, 0.5)))
    with pytest.raises(RunError, match="two different values for 30 of its steps"):
        table.notes()


def test_two_runs_that_alternate_are_refused() -> None:
    with pytest.raises(RunError, match="alternate"):
        filled(*((n, {"a": 1.0 * n}) for k in range(40) for n in (k, 100 + k)))


def test_a_line_printed_twice_is_one() -> None:
    table = filled(*((n, {"a": 1.0 * n}) for n in range(30) for _ in range(2)))
    assert len(column(table, "a")) == 30
    assert table.notes() == []


def test_nan_is_kept_and_what_is_missing_is_nan_too() -> None:
    table = filled((0, {"a": 1.0}), (1, {"a": np.nan, "b": 2.0}))
    axis = table.axis(["a", "b"])
    assert np.isnan(table.column("a", axis)[1])
    assert np.isnan(table.column("b", axis)[0])


@given(st.lists(st.tuples(st.integers(0, 8), st.sampled_from("ab")), max_size=9))
def test_against_the_rule_in_plain_words(order: list[tuple[int, str]]) -> None:
    """A list of rows kept by hand: a key that comes again at a lower step ends all from there on."""
    kept: list[tuple[int, str, int]] = []
    table = Table("a.log")
    for value, (step, key) in enumerate(order):
        table.add(step, [(key, float(value))])
        top = max((row[0] for row in kept), default=-1)
        if step < top and any(row[1] == key and row[0] >= step for row in kept):
            kept = [row for row in kept if row[0] < step]
        kept.append((step, key, value))
    for key in "ab":
        expected = {row[0]: float(row[2]) for row in kept if row[1] == key}
        assert (column(table, key) if key in table.keys else {}) == expected
