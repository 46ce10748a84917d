"""What a notebook shows of a run, a watched log and an audit: small, its style its own, hostile text only text."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from tests.report import audits
from tests.report.logs import HOSTILE, found
from tests.report.made import EVIL, made_run, step, write_run
from tests.report.seen import Seen

import kleash
from kleash.drift.result import Drift
from kleash.errors import RunError, UsageError
from kleash.runlog import Checkpoint, RunEnd, RunStart
from kleash.runlog.offline import TextStep

MOST_BYTES = 60_000


def view(of: Any) -> str:
    """Checked as each view must be: one element, nothing that runs or fetches, a style that holds in it alone."""
    html = of._repr_html_()
    assert len(html.encode()) < MOST_BYTES
    assert html.startswith('<div class="kleash-view">') and html.rstrip().endswith("</div>")
    for tag, attributes in Seen(html).tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "base", "embed", "meta", "form")
        assert not {"src", "href"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]
    (style,) = re.findall("<style>(.*?)</style>", html, re.S)
    assert style.startswith(".kleash-view{") and ":root" not in style and "body{" not in style and "url(" not in style
    assert style.count("{") == style.count("}") and "&amp;" not in style
    return html


def charts(html: str) -> list[str]:
    drawn = re.findall("<svg.*?</svg>", html, re.S)
    assert all(ET.fromstring(svg).tag == "svg" for svg in drawn)
    return re.findall("<h3>(.*?)<", html)


def offline(folder: Path, verb: str = "sft") -> Path:
    start = RunStart(config={"model": {"policy": "kleash:tiny"}, "data": {"texts": EVIL}}, started="", verb=verb)
    steps = [TextStep(step=n, loss=2.0 / (n + 1), learning_rate=1e-3) for n in range(5)]
    return write_run(folder, [start, *steps, RunEnd(reason="finished", step=5)])


def test_a_run_shows_kl_score_findings_and_samples(tmp_path: Path) -> None:
    html = view(kleash.load_run(made_run(tmp_path / "made")))
    text = Seen(html).text
    assert charts(html) == ["KL to the reference ", "Score "]
    assert "The leash held" in text and "HEALTHY" in text
    assert EVIL in text, "a prompt, as text"
    assert 'class="held"' in html, "the band round the target"
    untargeted = view(kleash.load_run(made_run(tmp_path / "free", target=None)))
    assert 'class="held"' not in untargeted


def test_a_run_on_rows_shows_its_own_charts(tmp_path: Path) -> None:
    run = kleash.load_run(offline(tmp_path / "sft"))
    assert isinstance(run, kleash.OfflineRun)
    assert charts(view(run)) == ["Loss "]


def test_a_watched_log_shows_the_verdict_and_prints_as_the_verb_does() -> None:
    html = view(found())
    assert found().verdict == "findings" and found().findings[0].severity == "alarm"
    assert charts(html) == ["KL to the reference ", "Reward "]
    assert found().findings[0].what in Seen(html).text and HOSTILE in Seen(html).text
    assert repr(found()).splitlines()[0].endswith("exit 1")


def test_an_audit_shows_verdict_gates_kl_and_scores() -> None:
    drift = Drift(audits.audit())
    html, text = view(drift), Seen(view(drift)).text
    assert drift.verdict == "party trick" and drift.verdict in text
    assert drift.kl is not None and drift.kl.value == 0.094 and "0.094 [0.085, 0.103]" in text
    assert drift.passed is False and "2 gates failed" in text
    assert audits.EVIL in text and "table" in {tag for tag, _ in Seen(html).tags}
    assert repr(drift).startswith("PARTY TRICK")
    assert Drift(audits.unchanged()).passed is True


def test_a_run_is_known_by_its_log(tmp_path: Path) -> None:
    made = made_run(tmp_path / "made")
    assert kleash.load_run(made) == kleash.load_run(str(made / "events.jsonl")) == kleash.Run(made)
    with pytest.raises(UsageError, match="no run of kleash"):
        kleash.load_run(tmp_path)
    (tmp_path / "events.jsonl").write_text("{}\n{}\n")
    with pytest.raises(RunError, match="line 1"):
        kleash.load_run(tmp_path)


def test_a_run_is_audited_against_the_model_that_it_began_as(tmp_path: Path, monkeypatch) -> None:
    """The audit itself is tested with the verb; here, what it is asked."""
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr("kleash.drift.facade.audit", lambda *names, **given: asked.append((*names, given)))
    run = made_run(tmp_path / "made")
    kleash.load_run(run).drift(tokens=300, settings={"samples": 0})
    kleash.load_run(offline(tmp_path / "sft")).drift("other", task="t.jsonl", score="exact")
    nothing = {"task": None, "score": None, "out": None, "settings": {}}
    assert asked[0] == ("kleash:tiny", run, nothing | {"settings": {"samples": 0, "tokens": 300}})
    assert asked[1] == ("other", tmp_path / "sft", nothing | {"task": "t.jsonl", "score": "exact"})
    with pytest.raises(UsageError, match="is a reward model"):
        kleash.load_run(offline(tmp_path / "reward", "reward")).drift()
    with pytest.raises(UsageError, match=r"name it: run\.drift\(base="):
        kleash.Run(write_run(tmp_path / "bare", [step(0, 1), Checkpoint(step=1, path="c")])).drift()
