"""The demo: runs that differ in [kl] alone, side by side, ended together, compared; only a demo replaces a demo."""

import io
import json
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kleash.demo import run as demo
from kleash.demo import side_by_side
from kleash.demo.grammar import PROMPTS
from kleash.demo.side_by_side import Planned, train_all
from kleash.errors import RunError, UsageError
from kleash.records import Reading, Step
from kleash.report.log import load
from kleash.runlog import Sample, Writer
from kleash.training.toml import parse_config


def planned(folder: Path, *labels: str) -> list[Planned]:
    return [Planned(label=label, config={"out": str(folder / label), "train": {"steps": 5}}) for label in labels]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes every run the given Python program, which finds its run's name in sys.argv[1]."""

    def become(program: str) -> None:
        monkeypatch.setattr(side_by_side, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(side_by_side, "command", lambda run: [sys.executable, "-c", program, run.label])

    return become


def test_the_runs_differ_in_kl_alone(tmp_path: Path) -> None:
    runs = demo.plan(tmp_path, demo.LEASHES | demo.MORE, steps=7, seed=3)
    configs = [parse_config(dict(run.config)) for run in runs]  # and every one is a good config
    assert {str(config.kl.target or config.kl.beta) for config in configs} == {
        "0.0", "0.05", "4 nats/sequence", "0.01", "0.5",
    }  # fmt: skip
    rest = [{k: v for k, v in run.config.items() if k not in ("out", "kl")} for run in runs]
    assert all(other == rest[0] for other in rest)
    assert (configs[0].train.steps, configs[0].train.seed) == (7, 3)
    assert len({run.path for run in runs}) == len(runs)


def test_a_second_demo_takes_away_only_what_the_first_made(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    demo.make_room(out)
    first = demo.plan(out, demo.LEASHES, steps=1, seed=0)[0]
    for file in (first.path / "events.jsonl", out / "mine" / "thesis.md"):
        file.parent.mkdir()
        file.write_text("x")
    first.toml.write_text("x")
    demo.make_room(out)
    assert not first.path.exists() and not first.toml.exists()
    assert (out / "mine" / "thesis.md").read_text() == "x"
    assert (out / demo.PROMPTS_FILE).read_text().splitlines() == PROMPTS


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.md").write_text("x")
    with pytest.raises(UsageError, match="not a demo"):
        demo.make_room(tmp_path)
    with pytest.raises(UsageError, match="not a demo"):
        demo.make_room(tmp_path / "thesis.md")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]


def test_what_cannot_be_meant_takes_no_earlier_demo_away(tmp_path: Path) -> None:
    demo.make_room(tmp_path / "out")
    kept = tmp_path / "out" / "beta-0"
    kept.mkdir()
    for wrong in ({"steps": 0, "seed": 0}, {"steps": 1, "seed": -1}):
        with pytest.raises(UsageError, match="steps must be at least 1"):
            demo.run_demo(tmp_path / "out", everything=False, quiet=True, **wrong)
    assert kept.exists()
    with pytest.raises(UsageError, match="cannot be written"):
        demo.make_room(Path("/dev/null/out"))


def test_a_run_that_fails_ends_the_others_and_is_quoted(tmp_path: Path, programs: Callable[[str], None]) -> None:
    programs(
        "import sys, time\n"
        "if sys.argv[1] == 'bad': print('kleash: the disk is full', file=sys.stderr); sys.exit(2)\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(RunError, match=r"the run bad failed: the disk is full \(all it said is in .*bad\.txt\)"):
        train_all(planned(tmp_path, "good", "bad"), lambda run, step: None, at_once=2)
    assert time.monotonic() - began < 30


def test_ctrl_c_ends_every_run(
    tmp_path: Path, programs: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("import time; time.sleep(60)")
    begun = []
    begin = side_by_side._begin

    def remember(run: Planned, header: str) -> object:
        begun.append(begin(run, header))
        return begun[-1]

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "_begin", remember)
    monkeypatch.setattr(side_by_side, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_all(planned(tmp_path, "a", "b", "c"), lambda run, step: None, at_once=2)
    assert [process.poll() is not None for process in begun] == [True, True]


def test_no_more_than_asked_run_at_once_and_one_thread_each(tmp_path: Path, programs: Callable[[str], None]) -> None:
    here = tmp_path / "here"
    here.mkdir()
    programs(
        "import os, sys, time, pathlib\n"
        f"here = pathlib.Path({str(here)!r})\n"
        "(here / sys.argv[1]).write_text('')\n"
        "time.sleep(0.2)\n"
        "print(len(list(here.iterdir())), os.environ['OMP_NUM_THREADS'])\n"
        "(here / sys.argv[1]).unlink()\n"
    )
    runs = planned(tmp_path, *"abcde")
    train_all(runs, lambda run, step: None, at_once=2, header="# why\n")
    said = [run.console.read_text().split() for run in runs]
    assert all(int(together) <= 2 and threads == "1" for together, threads in said)
    assert runs[0].toml.read_text().startswith("# why\n")
    assert tomllib.loads(runs[0].toml.read_text()) == runs[0].config


def test_every_step_is_heard_once_and_in_order(tmp_path: Path, programs: Callable[[str], None]) -> None:
    step = '{"event": "step", "schema": 1, "step": %d, "beta": 0.0}'
    programs(
        "import sys, time, pathlib\n"
        f"run = pathlib.Path({str(tmp_path)!r}) / sys.argv[1]; run.mkdir()\n"
        "with open(run / 'events.jsonl', 'w') as log:\n"
        f"    for i in range(5): print({step!r} % i, file=log, flush=True); time.sleep(0.02)\n"
    )
    heard: dict[str, list[int]] = {"a": [], "b": []}
    train_all(planned(tmp_path, "a", "b"), lambda run, step: heard[run.label].append(step.step), at_once=2)
    assert heard == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}


EVIL = "<script>alert(1)</script> [bold]\x1b[2J \x07"


def written_run(folder: Path) -> Path:
    """A run of two steps whose model writes HTML, markup and control codes."""
    reading = Reading(
        kind="kl_ref", value=1.0, unit="nats/sequence", estimator="exact", n_prompts=1, n_sequences=1, n_tokens=9
    )
    with Writer(folder / "events.jsonl") as events, Writer(folder / "samples.jsonl") as samples:
        for step in range(2):
            events.write(Step(step=step, beta=0.1, kl_ref=reading, score=0.5))
            samples.write(Sample(step=step, prompt="The film", completion=f" {EVIL}", score=0.5))
    return folder


def test_model_text_steers_no_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    log = load(written_run(tmp_path / "a"))
    demo.show_samples(Console(file=out, force_terminal=True, color_system=None, width=80), {"a": log, "b": log})
    assert "\x1b[2J" not in out.getvalue() and "\x07" not in out.getvalue()
    assert out.getvalue().count("<script>alert(1)</script> [bold]") == 2


def test_the_table_judges_fluency_by_the_grammar_and_has_the_base(tmp_path: Path) -> None:
    run = Planned(label="a", config={"out": str(written_run(tmp_path / "a"))})
    rows = demo.rows_of([run], {"a": load(run.path)})
    assert [(row.run, row.fluency, row.kl) for row in rows] == [("a", 0.0, 1.0), (demo.BASE, 0.0, 1.0)]


@pytest.mark.slow
def test_the_demo_itself_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps: the whole way from configs to the page; the second time over the first, and silent."""
    out = tmp_path / "demo"
    told = demo.run_demo(out, everything=False, steps=2, seed=0, quiet=False)
    said = capsys.readouterr().out
    assert [row["run"] for row in told["rows"]] == [*demo.LEASHES, demo.BASE]
    assert all(value is not None for row in told["rows"] for name, value in row.items() if name != "gold")
    assert json.loads((out / demo.MARK).read_text()) == told
    for path in (told["report"], out / "target-4" / "events.jsonl", out / "target-4.toml"):
        assert Path(path).is_file() and str(path) in said
    logs = {label: load(Path(path)) for label, path in told["runs"].items()}
    first = [[(s.prompt, s.completion) for s in log.samples if s.step == 0] for log in logs.values()]
    assert first[0] == first[1] == first[2] and len(first[0]) == 64
    assert "kleash train" in said and "base model" in said

    again = demo.run_demo(out, everything=False, steps=2, seed=0, quiet=True)
    assert capsys.readouterr().out == ""
    assert again == told
