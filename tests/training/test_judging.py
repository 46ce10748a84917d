"""A judge as the reward of a whole run: what it did is in the log, and a resumed run asks nothing twice."""

from pathlib import Path
from typing import Any

import pytest
from tests.rewards.judge.stub import Stub, serving
from tests.training.small import events, settings, steps

from kleash.runlog import Judged, Notice, current, read
from kleash.training.api import start
from kleash.training.toml import parse_config


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")


def test_a_run_with_a_judge_behind_a_server(tmp_path):
    args: dict[str, Any] = {"model": "m", "rubric": "the longer one", "api_key_env": "JUDGE_KEY", "retries": 0}
    with serving(Stub(misdeeds=["good"] * 40 + ["HTTP 400"] * 3)) as stub:
        rewards = [{"use": f"judge:{stub.url}", "args": args | {"rivals": "anchor"}, "name": "long"}]
        run = start(parse_config(settings(tmp_path, rewards=rewards, train__steps=2)))
        asked = len(stub.seen)
        resumed = settings(tmp_path, rewards=rewards, train__steps=3)
        start(parse_config(resumed), resume=True)
    told = events(run.path, Judged)
    assert [event.step for event in told][:3] == [0, 1, 2]
    # The trial of two groups of two, then three groups of four at a step, against the first of each, in both orders.
    assert told[0].questions <= 4 + 3 * 3 * 2
    assert sum(event.requests for event in told[:3]) == asked
    assert all(event.bias is not None and event.bias_pairs > 0 and event.name == "long" for event in told)
    now = [event.step for event in current(read(run.path / "events.jsonl")) if isinstance(event, Judged)]
    assert now == [0, 1, 2, 3]  # the measurement after the second step is void since the resume
    failed = [event for event in told if event.failures]
    assert sum(event.failures["HTTP 400"] for event in failed) == 3
    said = [notice.text for notice in events(run.path, Notice) if notice.what == "judge_failed"]
    assert any("questions have no verdict" in text and "× HTTP 400" in text for text in said)
    assert len(steps(run.path)) == 4
    whole = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert len(whole) > 10
    assert not any(b"sk-very-secret" in path.read_bytes() for path in whole)
