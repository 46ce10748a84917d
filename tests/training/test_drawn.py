"""`kleash label --sample`: two answers a prompt by a seed; a stopped drawing goes on to the same file."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.judge.test_judge import JUDGES
from tests.test_cli import run
from tests.training.small import settings

from kleash.errors import UsageError
from kleash.training import drawn
from kleash.training.drawn import Drawing, draw_pairs


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    settings(tmp_path)
    Path("judges.py").write_text(JUDGES)
    rows = [{"prompt": f"t{i + 3} t{i + 5}", "source": i} for i in range(7)]
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def how(**changed: Any) -> Drawing:
    return Drawing(**{"model": "model", "tokens": 6, **changed})


def test_prompts_are_answered_twice_and_judged(capsys, monkeypatch):
    command = ["label", "asked.jsonl", "--sample", "model", "--judge", "./judges.py:shorter", "--rubric", "brief",
               "--out", "out.jsonl", "--tokens", "6", "--json"]  # fmt: skip
    code, out, err = run(capsys, monkeypatch, *command)
    assert code == 0, err
    pairs = lines("out.drawn.jsonl")
    assert [(row["prompt"], row["source"]) for row in pairs] == [(f"t{i + 3} t{i + 5}", i) for i in range(7)]
    assert len({row["a"] for row in pairs} | {row["b"] for row in pairs}) > 7
    told = json.loads(out)
    assert told["pairs"] == 7
    for row in lines("out.jsonl"):
        (of,) = [pair for pair in pairs if pair["source"] == row["source"]]
        assert {row["chosen"], row["rejected"]} == {of["a"], of["b"]}
        assert len(row["chosen"]) < len(row["rejected"])
    assert len(lines("out.jsonl")) == told["labelled"] > 0


def test_the_seed_decides():
    one, other = (lines(draw_pairs("asked.jsonl", f"{s}.jsonl", how(seed=s))) for s in (0, 1))
    assert lines(draw_pairs("asked.jsonl", "again.jsonl", how())) == one != other


def test_a_stopped_drawing_goes_on_to_the_same_answers(monkeypatch):
    monkeypatch.setattr(drawn, "AT_ONCE", 2)
    whole = draw_pairs("asked.jsonl", "whole.jsonl", how())

    def stops(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_pairs("asked.jsonl", "out.jsonl", how(), stops)
    path = drawn.place_of("out.jsonl")
    path.write_bytes(path.read_bytes() + whole.read_bytes().splitlines(keepends=True)[4] + b'{"prompt": "t7')
    told: list[int] = []
    draw_pairs("asked.jsonl", "out.jsonl", how(), lambda done, total: told.append(done))
    assert path.read_bytes() == whole.read_bytes()
    assert told == [6, 7]  # the row of a round that was not whole is drawn again
    draw_pairs("asked.jsonl", "out.jsonl", how(), lambda done, total: told.append(done))
    assert told == [6, 7]
    assert path.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"seed": 1}, r"drawn otherwise \(seed differ"), ({"tokens": 5, "temperature": 0.5}, "tokens, temperature")],
)
def test_other_answers_are_never_mixed_in(changed, said):
    path = draw_pairs("asked.jsonl", "out.jsonl", how())
    before = path.read_bytes()
    with pytest.raises(UsageError, match=said):
        draw_pairs("asked.jsonl", "out.jsonl", how(**changed))
    assert path.read_bytes() == before


def test_other_prompts_and_rows_without_a_note_are_refused():
    draw_pairs("asked.jsonl", "out.jsonl", how())
    Path("asked.jsonl").write_text('{"prompt": "t9"}\n')
    with pytest.raises(UsageError, match=r"\(prompts differ\)"):
        draw_pairs("asked.jsonl", "out.jsonl", how())
    Path("out.drawn.json").unlink()
    with pytest.raises(UsageError, match="drawn otherwise"):
        draw_pairs("asked.jsonl", "out.jsonl", how())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"prompt": "t3", "a": "t4"}], "column 'a' already"),
        ([{"prompt": ""}], "prompt 0"),
        ([{"text": "t3"}], "no column 'prompt'"),
        ([{"prompt": "t3 " * 3000}], "prompt 0"),
    ],
)
def test_bad_prompts_are_refused(rows, said):
    Path("asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=said):
        draw_pairs("asked.jsonl", "out.jsonl", how())


def test_a_bad_place_is_refused_before_anything_is_drawn(capsys, monkeypatch):
    command = ["label", "asked.jsonl", "--sample", "model", "--judge", "./judges.py:shorter", "--rubric", "brief"]
    code, _, err = run(capsys, monkeypatch, *command, "--out", "out.csv")
    assert code == 64
    assert "another .jsonl file" in err
    assert not list(Path().glob("out*"))
