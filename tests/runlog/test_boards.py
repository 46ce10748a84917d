"""What goes to boards: names and units, each step once, and no failure that ends a run. With a board of our own."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kleash.errors import UsageError
from kleash.records import Reading, Step
from kleash.runlog import Evaluation, Notice, Resume, Rollback, RunEnd, RunStart, read
from kleash.runlog.boards import Boards, opened, require
from kleash.runlog.boards.boards import last_sent
from kleash.runlog.boards.figures import figures
from kleash.runlog.findings import Finding, Found
from kleash.runlog.jsonl import Writer
from kleash.runlog.offline import PairStep


@dataclass
class Paper:
    """Keeps what it is given; fails from the call `breaks` on."""

    takes_back: bool = False
    breaks: int | None = None
    rows: list = field(default_factory=list)
    alerts: list = field(default_factory=list)
    closed: bool = False
    calls: int = 0

    def write(self, step, named):
        self.calls += 1
        if self.breaks is not None and self.calls >= self.breaks:
            raise OSError("the disk of the board is full")
        self.rows.append((step, dict(named)))

    def void(self, step):
        if self.takes_back:
            self.rows = [row for row in self.rows if row[0] < step]

    def alert(self, step, finding):
        self.alerts.append((step, finding.rule))

    def close(self):
        self.closed = True

    @property
    def steps(self):
        return [step for step, _ in self.rows]


def reading(unit):
    return Reading(
        kind="kl_ref", value=2.0, unit=unit, estimator="exact", standard_error=0.5, n_prompts=2, n_sequences=4,
        n_tokens=40,
    )  # fmt: skip


def step(number, **given):
    return Step(step=number, beta=0.1, **given)


FINDING = Finding(rule="kl spike", severity="warning", headline="a spike", what="the KL rose", alarm_step=3, since=2)


def boards(path: Path, board: Paper, said: list[str] | None = None) -> Boards:
    return Boards(Writer(path), {"paper": board}, ([] if said is None else said).append)


def test_names_are_ours_and_a_kl_has_its_unit():
    found = figures(
        step(
            3,
            kl_ref=reading("nats/sequence"),
            kl_ref_token=reading("nats/token"),
            kl_old=None,
            target="4 nats/sequence",
            scores={"polite": 0.25, "broken": None},
            score=float("nan"),
            beta_clipped=2,
            controller_held="invalid",
        )
    )
    score = found.pop("score")
    assert score != score
    assert found == {
        "beta": 0.1,
        "kl_ref/nats_per_sequence": 2.0,
        "kl_ref/nats_per_sequence_error": 0.5,
        "kl_ref/nats_per_token": 2.0,
        "kl_ref/nats_per_token_error": 0.5,
        "target/nats_per_sequence": 4.0,
        "scores/polite": 0.25,
        "unscored": 0.0,
        "beta_clipped": 2.0,
    }
    assert figures(PairStep(step=1, accuracy=0.5)) == {"accuracy": 0.5}


def test_an_evaluation_goes_with_the_step_of_its_number(tmp_path):
    board = Paper()
    to = boards(tmp_path / "events.jsonl", board)
    to.write(Evaluation(step=0, how="1 each", n_prompts=1, n_samples=1, score=0.5))
    to.write(step(0))
    to.write(Evaluation(step=1, how="1 each", n_prompts=1, n_samples=1, score=0.75))
    to.write(RunEnd(reason="finished", step=1))
    to.close()
    assert board.steps == [0, 1]
    assert board.rows[0][1]["evaluation/score"] == 0.5
    assert board.rows[0][1]["beta"] == 0.1
    assert board.rows[1][1] == {"evaluation/score": 0.75, "evaluation/n_prompts": 1.0} | {
        "evaluation/n_samples": 1.0, "evaluation/greedy": 0.0, "evaluation/unscored": 0.0,
    }  # fmt: skip
    assert board.closed
    assert len(read(tmp_path / "events.jsonl")) == 4


@pytest.mark.parametrize("takes_back", [True, False])
def test_a_resume_sends_no_step_twice(tmp_path, takes_back):
    """Killed after step 4 with a checkpoint at 2: steps 2 to 4 come again, with an alert of step 3."""
    log, board = tmp_path / "events.jsonl", Paper(takes_back)
    first = boards(log, board)
    for number in range(5):
        first.write(step(number))
    first.write(Found(step=3, action="warn", finding=FINDING))
    first.log.close()
    again = boards(log, board)
    again.write(Resume(step=2))
    for number in range(2, 7):
        again.write(step(number))
        if number == 3:
            again.write(Found(step=3, action="warn", finding=FINDING))
    assert board.steps == list(range(7))
    assert len(board.alerts) == (2 if takes_back else 1)
    again.log.close()


def test_after_a_rollback_the_new_steps_are_sent(tmp_path):
    log, kept, back = tmp_path / "events.jsonl", Paper(), Paper(takes_back=True)
    to = Boards(Writer(log), {"kept": kept, "back": back}, print)
    for number in range(4):
        to.write(step(number))
    to.write(Rollback(step=2, from_step=4, why="not finite", learning_rate=0.1, number=1))
    to.write(step(2))
    assert back.steps == [0, 1, 2]
    assert kept.steps == [0, 1, 2, 3, 2]
    assert last_sent(read(log)) == 2
    to.log.close()


def test_a_board_that_fails_is_said_once_and_counted(tmp_path):
    log, said = tmp_path / "events.jsonl", list[str]()
    broken, whole = Paper(breaks=2), Paper()
    to = Boards(Writer(log), {"broken": broken, "whole": whole}, said.append)
    for number in range(4):
        to.write(step(number))
    assert len(said) == 1
    to.close()
    assert whole.steps == [0, 1, 2, 3]
    assert broken.closed
    assert said == [
        "broken missed a record (OSError: the disk of the board is full); the training goes on",
        "broken missed 3 of this run's records; the run's own log has them all",
    ]
    assert [event.text for event in read(log) if isinstance(event, Notice)] == said
    to.log.close()


def test_a_missing_package_is_said_before_anything_begins(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"log.to names \"wandb\".*pip install 'kleash\[wandb\]'"):
        require(("wandb",))
    require(())


def test_a_board_that_cannot_be_opened_is_said_and_the_others_are_closed(tmp_path, monkeypatch):
    board = Paper()

    def fails(run_dir, **given):
        raise RuntimeError("no API key")

    known = {"trackio": ("json", lambda run_dir, **given: board), "wandb": ("json", fails)}
    monkeypatch.setattr("kleash.runlog.boards.boards.BOARDS", known)
    with Writer(tmp_path / "events.jsonl") as log:
        with (
            pytest.raises(UsageError, match=r"\"wandb\" cannot be opened: RuntimeError: no API key; log in"),
            opened(("trackio", "wandb"), "kleash", log, {}, print),
        ):
            pass
        log.write(RunStart(config={}, started="now"))
    assert board.closed


def test_a_resumed_run_is_known_by_the_same_identity_in_its_project(tmp_path, monkeypatch):
    seen = []

    def open_one(run_dir, **given):
        seen.append((run_dir, given))
        return Paper()

    monkeypatch.setattr("kleash.runlog.boards.boards.BOARDS", {"wandb": ("json", open_one)})
    for folder in ("a", "a", "b"):
        with (
            Writer(tmp_path / folder / "events.jsonl") as log,
            opened(("wandb",), "mine", log, {"out": folder}, print) as to,
        ):
            to.write(RunStart(config={}, started="now"))
    first, again, other = (given for _, given in seen)
    assert first == again
    assert (first["project"], first["config"]) == ("mine", {"out": "a"})
    assert first["identity"] != other["identity"]
