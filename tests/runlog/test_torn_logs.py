"""Logs that are cut, damaged, mixed, empty or none: a sentence or the rows that are whole, and no number invented."""

import gzip
import json
import math
import os
import shutil
import zipfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kleash.errors import KleashError, RunError
from kleash.monitor import examine
from kleash.runlog.importers import detect, read_log
from kleash.runlog.importers.pickled import training_arguments
from kleash.runlog.importers.table import Table

FIXTURES = Path(__file__).parent / "fixtures"
ENDINGS = (".log", ".jsonl", ".wandb", ".gz", "trainer_state.json", ".1.0")
FILES = sorted(
    path.relative_to(FIXTURES)
    for path in FIXTURES.rglob("*")
    if path.is_file() and path.name.endswith(ENDINGS) and path.parent.name != "rollouts"
    if path.name != "completions.jsonl"
)
BINARY = [name for name in FILES if name.suffix in (".wandb", ".0")]


@cache
def content(name: Path) -> bytes:
    whole = (FIXTURES / name).read_bytes()
    return gzip.decompress(whole) if name.suffix == ".gz" else whole


def written(folder: Path, name: Path, content: bytes) -> Path:
    file = folder / name.name.removesuffix(".gz")
    file.write_bytes(content)
    return file


def told(table: Table) -> dict[str, set[float]]:
    return {key: {value for value in series.values if math.isfinite(value)} for key, series in table.keys.items()}


@cache
def whole(name: Path, folder: Path) -> dict[str, set[float]]:
    return told(detect._file(written(folder, name, content(name)), None)[0].table)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def reads_no_more(name: Path, given: bytes, folder: Path, expected: dict[str, set[float]]) -> None:
    file = written(folder, name, given)
    try:
        table = detect._file(file, None)[0].table
        read_log(file)
    except KleashError as error:
        assert len(str(error).splitlines()) == 1
        return
    for key, values in told(table).items():
        assert values <= expected.get(key, set()), key


@pytest.mark.parametrize("name", FILES, ids=str)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_log_cut_anywhere_invents_nothing(name: Path, data: st.DataObject, tmp_path: Path, scratch: Path) -> None:
    end = data.draw(st.integers(0, len(content(name)) - 1))
    reads_no_more(name, content(name)[:end], tmp_path, whole(name, scratch))


@pytest.mark.parametrize("name", BINARY, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_byte_is_seen(name: Path, data: st.DataObject, tmp_path: Path, scratch: Path) -> None:
    """Event files and W&B's have checksums: a changed byte costs rows, and changes none."""
    broken = bytearray(content(name))
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    reads_no_more(name, bytes(broken), tmp_path, whole(name, scratch))


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_junk_is_refused(tmp_path: Path, junk: bytes) -> None:
    for name in ("train.log", "junk.jsonl", "table.csv", "trainer_state.json", "events.out.tfevents.1", "run.db"):
        file = tmp_path / name
        file.write_bytes(junk)
        with pytest.raises(KleashError) as raised:
            read_log(file)
        assert len(str(raised.value).splitlines()) == 1


def test_cut_in_a_wandb_block_is_said(tmp_path: Path) -> None:
    name = Path("wandb/offline-run-20260101_000000-trl/run-trl.wandb")
    log = read_log(written(tmp_path, name, content(name)[: len(content(name)) // 2]))
    assert 0 < len(log.step) < 12
    assert any("ends in the middle of a record" in note for note in log.notes)


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(first: int, last: int, shift: float = 0.0) -> list[dict[str, object]]:
    return [{"step": step, "reward": 0.01 * step + shift, "reward_std": 0.3} for step in range(first, last)]


def test_nan_in_every_spelling(tmp_path: Path) -> None:
    spellings = ['"NaN"', "NaN", "null", '"nan"', "Infinity", '"-Infinity"', "0.5"]
    lines = [f'{{"step": {step}, "reward": {value}}}\n' for step, value in enumerate(spellings)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    values = read_log(tmp_path / "a.jsonl").columns["reward"]
    assert [str(value) for value in values] == ["nan", "nan", "nan", "nan", "inf", "-inf", "0.5"]


def test_a_resumed_run_in_one_file(tmp_path: Path) -> None:
    log = read_log(jsonl(tmp_path / "a.jsonl", [*run(0, 20), *run(12, 25, 5.0)]))
    assert log.step.tolist() == list(range(25))
    assert log.columns["reward"][11] == 0.11
    assert log.columns["reward"][12] == 5.12
    assert log.notes == ("step 12 came again after step 19: resumed; what was logged last counts",)


def test_two_runs_in_one_file(tmp_path: Path) -> None:
    log = read_log(jsonl(tmp_path / "a.jsonl", [*run(0, 20), *run(0, 10, 5.0)]))
    assert log.columns["reward"].tolist() == [0.01 * step + 5.0 for step in range(10)]
    assert "began anew" in log.notes[0]
    mixed = [row for pair in zip(run(0, 30), run(100, 130), strict=True) for row in pair]
    with pytest.raises(RunError, match="alternate"):
        read_log(jsonl(tmp_path / "b.jsonl", mixed))
    with pytest.raises(RunError, match="two runs seem to write"):
        read_log(
            jsonl(tmp_path / "c.jsonl", [row for pair in zip(run(0, 30), run(0, 30, 1.0), strict=True) for row in pair])
        )


def test_lines_of_two_trainers(tmp_path: Path) -> None:
    both = content(Path("verl/console.log")) + content(Path("openrlhf/console.log"))
    with pytest.raises(RunError, match="lines of verl and OpenRLHF"):
        read_log(written(tmp_path, Path("train.log"), both))


def test_other_lines_between(tmp_path: Path) -> None:
    lines = content(Path("verl/console.log")).splitlines(keepends=True)
    noise = b"(WorkerDict pid=7) INFO loading step:x - nothing [repeated 8x across cluster]\n"
    log = read_log(written(tmp_path, Path("train.log"), noise + noise.join(lines)))
    assert log.step.tolist() == list(range(1, 13))


def test_a_step_that_is_no_step(tmp_path: Path) -> None:
    rows = [{"step": "x", "reward": 1}, {"step": 1.5, "reward": 1}, {"reward": 1}, {"step": 2**70, "reward": 1}]
    with pytest.raises(RunError, match="no line that is a JSON object with a step"):
        read_log(jsonl(tmp_path / "a.jsonl", rows))
    log = read_log(jsonl(tmp_path / "a.jsonl", [*rows, {"step": "3", "reward": 0.5}, {"step": 4.0, "reward": 0.5}]))
    assert log.step.tolist() == [3, 4]
    assert any("4 rows" in note for note in log.notes)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arguments_are_read_and_never_run(tmp_path: Path, junk: bytes) -> None:
    """training_args.bin is a pickle: its plain values are taken from it, whatever it is."""
    path = tmp_path / "training_args.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("args/data.pkl", junk)
    training_arguments(path)
    path.write_bytes(junk)
    assert training_arguments(path) == (None, {})


def test_deep_json_is_no_row(tmp_path: Path) -> None:
    deep = '{"a":' * 500 + "1" + "}" * 500
    (tmp_path / "a.jsonl").write_text(f'{{"step": 1, "reward": 0.5, "x": {deep}}}\n' + "[" * 100_000 + "\n")
    assert read_log(tmp_path / "a.jsonl").columns["reward"].tolist() == [0.5]


def test_metrics_of_two_runs_are_not_one(tmp_path: Path) -> None:
    for name, shift, time in (("first", 0.0, 1e9), ("second", 5.0, 2e9)):
        (tmp_path / name).mkdir()
        os.utime(jsonl(tmp_path / name / "metrics.jsonl", run(0, 9, shift)), (time, time))
    assert read_log(tmp_path).columns["reward"][0] == 5.0


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe whose other end nobody opens, named itself or found in a directory."""
    os.mkfifo(tmp_path / "run.jsonl")
    with pytest.raises(RunError, match="is no file"):
        read_log(tmp_path / "run.jsonl")
    with pytest.raises(RunError, match="is no file"):
        read_log(tmp_path)


def test_a_disk_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "run.jsonl").write_text("{}")
    monkeypatch.setattr(detect, "kind_of", fails)
    with pytest.raises(RunError, match=r"cannot read .*: Input/output error"):
        read_log(tmp_path / "run.jsonl")


def test_a_step_beyond_all_counting(tmp_path: Path) -> None:
    huge = '{"event": "step", "schema": 1, "step": 99999999999999999999, "beta": 0.1}'
    (tmp_path / "events.jsonl").write_text(huge + "\n")
    with pytest.raises(RunError, match=r"events.jsonl, line 1: .* has a step numbered 9{20}: no run is so long"):
        read_log(tmp_path)


@pytest.mark.parametrize("column", [None, [None] * 4])
def test_samples_without_completions_are_no_empty_answers(tmp_path: Path, column: list[None] | None) -> None:
    """Else a run whose parquet has the prompts alone would be said to write no text."""
    import pyarrow
    import pyarrow.parquet as parquet

    rows = [{"step": step, "reward": 0.5 + 0.01 * step, "loss": 0.1, "kl": 0.01} for step in range(1, 13)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 12, "log_history": rows}))
    (tmp_path / "completions").mkdir()
    for step in range(1, 13):
        columns = {"step": [step] * 4, "prompt": ["a", "b", "c", "d"]}
        if column is not None:
            columns["completion"] = pyarrow.array(column, pyarrow.string())
        parquet.write_table(pyarrow.table(columns), tmp_path / "completions" / f"completions_{step:05d}.parquet")
    log = read_log(tmp_path)
    assert len(log.sample_steps) == 12 and log.samples(None) == []
    said = examine(log)
    assert said.verdict == "healthy"
    assert {"degenerate", "one answer"} <= {one.rule for one in said.not_evaluated}


def test_the_note_names_the_run_that_was_read(tmp_path: Path) -> None:
    """A newer W&B file that cannot be read is not said to be the one; event files beside it are not spoken of."""
    shutil.copytree(FIXTURES / "wandb", tmp_path / "wandb")
    shutil.copytree(FIXTURES / "tensorboard", tmp_path / "tensorboard")
    (tmp_path / "run-cut.wandb").write_bytes(b"")
    (note,) = [note for note in read_log(tmp_path).notes if "here" in note]
    assert note.startswith("offline-run-") and note.endswith("of 3 runs here: newer ones cannot be read")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("m.csv", "step,reward\n1\n2\n", "no row that can be read: 2 lines of m.csv are no rows"),
        ("m.jsonl", '{"step": "1", "reward": "0.5"}\n', "steps and no number at any of them"),
    ],
)
def test_rows_without_a_number_are_not_called_none_yet(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=said):
        read_log(tmp_path / name)
