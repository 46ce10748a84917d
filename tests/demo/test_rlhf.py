"""`kleash demo --rlhf`: the gold reward is what it says, its rater is Bradley and Terry's, and the road is walked."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tolerances import EXACT
from typer.testing import CliRunner
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from kleash.cli import app
from kleash.demo import moved, rlhf
from kleash.demo.gold import gold
from kleash.demo.grammar import PROMPTS
from kleash.demo.preferences import TEMPERATURE, draw_pairs
from kleash.drift import store
from kleash.errors import UsageError
from kleash.models.catalog import resolve
from kleash.report.drift import words


def test_gold_is_kindness_in_sentences_that_the_grammar_can_say():
    prompt, kind, salad = "Because of the lavender", " we felt content.", " perfect lovely delightful wonderful great."
    mood = SentimentIntensityAnalyzer().polarity_scores
    found = gold([prompt, prompt], [kind, salad])
    assert abs(found[0] - (1 + mood(kind)["compound"]) / 2) < EXACT
    assert found[1] == 0.0
    assert mood(salad)["compound"] > mood(kind)["compound"]


def test_the_rater_prefers_as_often_as_bradley_and_terry_say(tmp_path):
    """Pairs binned by σ of their difference: the share in which the better one is chosen lies where it should."""
    n = draw_pairs(resolve("kleash:tiny"), PROMPTS[:64] * 6, tmp_path / "pairs.jsonl", seed=3, max_new_tokens=16)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(rows) == n > 300
    expected = variance = met = 0.0
    for row in rows:
        chosen, rejected = gold([row["prompt"]] * 2, [row["chosen"], row["rejected"]])
        if chosen != rejected:
            p = 1 / (1 + math.exp(-abs(chosen - rejected) / TEMPERATURE))
            expected, variance, met = expected + p, variance + p * (1 - p), met + (chosen > rejected)
    assert abs(met - expected) < 3.3 * math.sqrt(variance)  # a fair rater fails this once in a thousand seeds
    again = draw_pairs(resolve("kleash:tiny"), PROMPTS[:64] * 6, tmp_path / "again.jsonl", seed=3, max_new_tokens=16)
    assert again == n
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "pairs.jsonl").read_bytes()


@pytest.mark.slow
def test_the_whole_road(tmp_path, monkeypatch):
    monkeypatch.setattr(rlhf, "NOTES", 120)  # a shorter road, and fewer texts at its end
    monkeypatch.setattr(rlhf, "PAIRS_A_PROMPT", 2)
    monkeypatch.setattr(moved, "EFFORT", replace(moved.EFFORT, tokens=600, samples=2))
    out = tmp_path / "rlhf"
    done = CliRunner().invoke(app, ["demo", "--rlhf", "--out", str(out), "--steps", "3"], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(r"4  RL against the reward model, 3 steps each", done.output)
    told = json.loads((out / "rlhf.json").read_text())
    assert [row["run"] for row in told["rows"]] == ["beta 0", "target 4"]
    assert all(row["gold"] is not None and row["reward"] is not None for row in told["rows"])
    page = (out / "rlhf.html").read_text()
    assert "The gold reward against √KL" in page
    assert set(told["drift"]) == {"side by side", "beta 0", "target 4"}
    for where in told["drift"].values():
        assert Path(where).is_file()
        assert f'href="{Path(where).relative_to(out).as_posix()}"' in page
    asked = re.search(r"kleash (drift .*)", done.output)
    assert asked
    found = store.read(Path(told["drift"]["target 4"]).with_name("drift.json"))
    assert found.base.name == str(out / "1-sft" / "best")
    assert found.command == asked[0]
    assert [score.name for score in found.scores] == ["gold"]
    (off,) = (each for each in found.distributions if each.name == "off task")
    assert off.forward
    assert f"target 4  KL off task, base||tuned, {words.with_bounds(off.forward.mean)}" in done.output
    with pytest.raises(UsageError, match="steps must be at least 1"):
        CliRunner().invoke(app, ["demo", "--rlhf", "--out", str(out), "--steps", "0"], catch_exceptions=False)
    rlhf.claim(out, rlhf.MARK, [*rlhf.STAGES, rlhf.PAGE])  # a second demo takes away what this one made
    assert {path.name for path in out.iterdir() if path.suffix != ".txt"} == {rlhf.MARK, rlhf.TEXTS, rlhf.HELD_TEXTS}
