"""Logs whose keys the user names, tables that use kleash's names, and the page that lists what is known."""

from pathlib import Path

import numpy as np
import pytest
from tools.make_watch_logs_doc import PAGE, render

from kleash.errors import RunError, UsageError
from kleash.runlog.importers import read_log


def table(folder: Path, text: str, name: str = "run.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


OWN = "iteration,score,my:kl,len\n1,0.5,0.01,20\n2,0.6,,20\n3,nan,0.03,40\n"


def test_a_map_names_keys_and_units(tmp_path: Path) -> None:
    columns = {"step": "iteration", "reward": "score", "kl_ref": "my:kl:nats/token:k3", "length": "len"}
    log = read_log(table(tmp_path, OWN), columns=columns)
    assert log.step.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(log.columns["reward"], [0.5, 0.6, np.nan])
    np.testing.assert_array_equal(log.columns["kl_ref_sequence"], [0.2, np.nan, 1.2])
    assert (log.kl["kl_ref"].estimator, log.kl["kl_ref"].unit) == ("k3", "nats/token")


def test_nats_per_sequence_come_from_lengths_too(tmp_path: Path) -> None:
    columns = {"step": "iteration", "kl_ref": "my:kl:nats/sequence", "length": "len", "reward/mine": "score"}
    log = read_log(table(tmp_path, OWN), columns=columns)
    np.testing.assert_array_equal(log.columns["kl_ref"], [0.01 / 20, np.nan, 0.03 / 40])
    assert "reward/mine" in log.columns


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"reward": "score", "kl_ref": "my:kl"}, "says no unit"),
        ({"reward": "score", "kl": "my:kl"}, "there is no column 'kl'"),
        ({"step": "iteration"}, "names no column besides the step"),
        ({"step": "iteration", "reward": "skore"}, "no number under 'skore'"),
        ({"step": "iteration", "kl_ref_sequence": "my:kl"}, "write kl_ref=my"),
    ],
)
def test_a_map_that_is_wrong(tmp_path: Path, columns: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_log(table(tmp_path, OWN), columns=columns)


def test_a_table_without_a_step(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"--columns step=NAME"):
        read_log(table(tmp_path, OWN.replace("iteration", "n")))


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_kleash_s_own_names_need_no_map(tmp_path: Path, mark: str) -> None:
    text = "step,reward,kl_ref,reward/a,held_out/b,kl\n0,0.1,0.01,1,2,9\n1,0.2,0.02,1,2,9\n2,0.3,0.0".replace(",", mark)
    log = read_log(table(tmp_path, text, "run.txt"))
    assert log.step.tolist() == [0, 1]
    assert {"reward", "kl_ref", "reward/a", "held_out/b"} == set(log.columns)
    assert log.notes == ("the last line has no end, and is left out: it may be torn",)


def test_a_log_of_nobody_says_its_keys(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"its keys: foo.*--columns"):
        read_log(table(tmp_path, '{"step": 1, "foo": 2.5}\n', "a.jsonl"))


def test_the_page_has_every_kl_and_column() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run: make docs"
    assert "`actor/ppo_kl`" in page
