"""Files that lm-evaluation-harness 0.4.13 wrote of the tiny model and of a hacked one, on two tasks of 30 items.

`lm_eval/` has them as they were written, the results' description of the machine left out. The numbers of the results
are lm_eval's own means: they must be those of the paired items.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tolerances import EXACT

from kleash.drift.scores.assess import assess
from kleash.drift.scores.lm_eval import lm_eval_results
from kleash.errors import UsageError

FILES = Path(__file__).parent / "lm_eval"
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Copies that may be changed, in a model's folder as lm_eval makes one."""
    sides = tmp_path / "base", tmp_path / "tuned"
    for side in sides:
        shutil.copytree(FILES / side.name, side / "some__model")
    return sides


def edit_samples(side: Path, task: str, edit: Edit) -> None:
    [path] = side.rglob(f"samples_{task}_*.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    kept = [row for row in rows if edit(row) is not False]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")


def edit_results(side: Path, edit: Edit) -> None:
    [path] = side.rglob("results*.json")
    tree = json.loads(path.read_text("utf-8"))
    edit(tree)
    path.write_text(json.dumps(tree), "utf-8")


def test_the_means_are_those_of_the_harness() -> None:
    found = {one.name: one for one in assess(lm_eval_results(FILES / "base", FILES / "tuned", task="kleash_choice"))}
    for side in ("base", "tuned"):
        [path] = (FILES / side).glob("results*.json")
        results = json.loads(path.read_text("utf-8"))["results"]
        assert getattr(found["kleash_choice"], side) == pytest.approx(
            results["kleash_choice"]["acc_norm,none"], rel=EXACT
        )
        assert getattr(found["kleash_parity"], side) == results["kleash_parity"]["exact_match,none"] == 0
    assert found["kleash_choice"].change.n == 30 and found["kleash_choice"].role == "task"
    assert found["kleash_choice"].source == "lm-evaluation-harness acc_norm"
    assert found["kleash_parity"].role == "other"


def test_items_are_paired_whatever_their_order(both: tuple[Path, Path]) -> None:
    before = lm_eval_results(*both)
    [path] = both[1].rglob("samples_kleash_choice_*.jsonl")
    path.write_text("\n".join(reversed(path.read_text("utf-8").splitlines())), "utf-8")
    assert lm_eval_results(*both) == before


def test_the_last_of_several_evaluations_is_read(both: tuple[Path, Path]) -> None:
    older = both[0] / "some__model" / "results_2020-01-01T00-00-00.000000.json"
    older.write_text('{"results": {}}', "utf-8")
    assert len(lm_eval_results(*both)) == 2
    with pytest.raises(UsageError, match="no task of lm-evaluation-harness in common"):
        lm_eval_results(older, both[1])


def test_an_item_of_only_one_model_is_left_out_and_said(both: tuple[Path, Path]) -> None:
    edit_samples(both[1], "kleash_choice", lambda row: row["doc_id"] != 7)
    edit_samples(both[1], "kleash_choice", lambda row: row.update(doc_hash="0") if row["doc_id"] == 9 else None)
    choice = next(one for one in lm_eval_results(*both) if one.name == "kleash_choice")
    assert len(choice.ids) == 28 and not {"7", "9"} & set(choice.ids)
    assert choice.source.endswith("3 items of only one model left out")


def test_a_value_that_is_no_number_is_not_a_score(both: tuple[Path, Path]) -> None:
    edit_samples(
        both[1], "kleash_choice", lambda row: row.update(acc_norm=float("nan")) if row["doc_id"] == 3 else None
    )
    choice = next(one for one in lm_eval_results(*both) if one.name == "kleash_choice")
    assert choice.tuned[3] is None and choice.base[3] is not None and len(choice.ids) == 30


def test_filters_and_metrics(both: tuple[Path, Path]) -> None:
    """gsm8k has two filters: the first one's rows are compared, and it is named."""
    for side in both:
        [path] = side.rglob("samples_kleash_parity_*.jsonl")
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        strict = [row | {"filter": "strict-match", "exact_match": 1.0} for row in rows]
        flexible = [row | {"filter": "flexible-extract"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in strict + flexible), "utf-8")
    parity = next(one for one in lm_eval_results(*both) if one.name == "kleash_parity")
    assert parity.source == "lm-evaluation-harness exact_match, strict-match" and set(parity.base) == {1.0}


def test_groups_are_families(both: tuple[Path, Path]) -> None:
    for side in both:
        edit_results(side, lambda tree: tree.update(group_subtasks={"kleash": ["kleash_choice", "kleash_parity"]}))
        edit_results(side, lambda tree: tree["results"].update(kleash={"acc,none": 0.2}))
    assert [one.family for one in lm_eval_results(*both)] == ["kleash", "kleash"]


def unlike(side: Path) -> None:
    edit_results(side, lambda tree: tree["n-shot"].update(kleash_choice=5))


def lower(side: Path) -> None:
    for one in (side, side.parent / "base"):
        edit_results(one, lambda tree: tree["higher_is_better"]["kleash_choice"].update(acc=False, acc_norm=False))


def others(side: Path) -> None:
    edit_samples(side, "kleash_choice", lambda row: row.update(target_hash="0"))


def twice(side: Path) -> None:
    edit_samples(side, "kleash_choice", lambda row: row.update(doc_id=0, doc_hash="0", target_hash="0"))


def without(side: Path) -> None:
    next(iter(side.rglob("samples_kleash_choice_*"))).unlink()


def bare(side: Path) -> None:
    edit_samples(side, "kleash_choice", lambda row: row.pop("doc_hash"))


def torn(side: Path) -> None:
    next(iter(side.rglob("samples_kleash_choice_*"))).write_text('{"doc_id": 0, ', "utf-8")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unlike, "kleash_choice was not asked alike: 0 shots of version 1.0 for the base, 5 of 1.0"),
        (lower, "kleash_choice has no metric"),
        (others, "kleash_choice: the two evaluations have no item in common"),
        (twice, "the item 0 stands twice"),
        (without, "run lm_eval with --log_samples"),
        (bare, "no items of kleash_choice with doc_id and doc_hash"),
        (torn, "is not JSON, a row a line"),
    ],
)
def test_outputs_that_do_not_compare_are_refused(
    both: tuple[Path, Path], spoil: Callable[[Path], None], said: str
) -> None:
    spoil(both[1])
    with pytest.raises(UsageError, match=said):
        lm_eval_results(*both)


def test_other_directories(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no results\*\.json; run lm_eval with --output_path"):
        lm_eval_results(tmp_path, FILES / "tuned")
    for text, said in (("{", "is not JSON"), ("[]", "has no results"), ('{"results": 3}', "has no results")):
        (tmp_path / "results_x.json").write_text(text, "utf-8")
        with pytest.raises(UsageError, match=said):
            lm_eval_results(tmp_path, FILES / "tuned")


def test_a_task_that_is_not_there() -> None:
    for asked in ({"task": "mmlu"}, {"siblings": ["mmlu"]}):
        with pytest.raises(UsageError, match="no results of mmlu for both models; it has kleash_"):
            lm_eval_results(FILES / "base", FILES / "tuned", **asked)
