"""`kleash drift` from outside, on the embedded model: what is asked, measured, judged, written, and what goes wrong."""

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from tests.drift.stub import Stub, serving
from tests.report.seen import fetches_nothing
from tests.test_cli import FAILED, WRONG, sentence

import kleash
from kleash.cli import auditing
from kleash.drift import stages, store
from kleash.drift.question import QUICK, Question
from kleash.errors import RunError, UsageError

TINY = "kleash:tiny"
#: 25 texts and more, for an interval; a few, where none is looked at.
FEW = ("--tokens", "3200", "--samples", "0", "--no-tasks")
LESS = ("--tokens", "300", "--samples", "0", "--no-tasks")


# ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────


def test_each_option_reaches_the_question(kleash_, monkeypatch) -> None:
    asked: list[Question] = []
    monkeypatch.setattr(auditing, "run", lambda question, tuned, **_: asked.append(question))
    kleash_("a", "b", "--lm-eval", "c", "d", "--template", "each", "--items", 30, "--device", "cpu", "--seed", 3)
    kleash_("a", "b", "--trust-remote-code", "--quick")
    kleash_("a", "b", "--quick", "--tokens", 500)
    first, second, third = asked
    assert (first.lm_eval, first.template, first.effort.items, first.device, first.seed) == (
        ("c", "d"),
        "each",
        30,
        "cpu",
        3,
    )
    assert (first.trust_remote_code, second.trust_remote_code) == (False, True)
    assert (second.effort, third.effort) == (QUICK, replace(QUICK, tokens=500))


# ── what comes of it ────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_against_itself_is_unchanged(kleash_, tmp_path) -> None:
    code, out, err = kleash_(TINY, TINY, *FEW)
    assert code == 0, err
    assert out.startswith("UNCHANGED   no measurable drift")
    found = store.read(tmp_path / "out" / "drift.json")
    off = found.distributions[0]
    assert found.judgement.verdict == "unchanged"
    assert off.forward is not None and off.forward.mean.value <= 1e-6
    assert off.same_top1 is not None and off.same_top1.value == 1
    assert f"again: {found.command}" in out and found.command.startswith("kleash drift kleash:tiny kleash:tiny")
    fetches_nothing((tmp_path / "out" / "drift.html").read_text())
    assert "Unchanged" in (tmp_path / "out" / "card.md").read_text()
    assert ET.fromstring((tmp_path / "out" / "badge.svg").read_text()).tag.endswith("svg")


def test_everything_is_measured_of_a_model_that_moved(kleash_, tmp_path, moved, monkeypatch) -> None:
    """Task, sibling, samples, yardsticks, gates: in one audit, with a score of the user's own."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"The {word} was", "word": word} for word in WORDS]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reward.py").write_text(REWARD)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    code, out, err = kleash_(
        TINY, moved, "--tokens", 3200, "--samples", 30, "--max-new-tokens", 12, "--no-tasks",
        "--task", prompts, "--score", f"{tmp_path}/reward.py:short", "--sibling", f"{tmp_path}/reward.py:plain",
        "--max-kl", "off=0.05", "--min-top1", "off=0.01", "--no-regression",
    )  # fmt: skip
    assert code == 1, err
    found = store.read(tmp_path / "out" / "drift.json")
    assert [one.name for one in found.distributions] == ["off task", "its own words", "on task"]
    assert [(one.name, one.role) for one in found.scores] == [("short", "task"), ("plain", "sibling")]
    assert all(one.change.n == len(WORDS) for one in found.scores)
    assert [gate.passed for gate in found.gates][:2] == [False, True]
    assert found.style is not None and found.pairs[0].score_base is not None and found.pairs[-1].score_base is None
    assert found.yardsticks.four_bit is not None and found.forgetting is not None
    assert "off task: KL (base‖tuned) upper bound" in out and "FAIL" in out
    assert "### kleash drift:" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "out" / "drift.html").stat().st_size < 1_500_000
    assert "about" in err and "in all" in err, "the time is estimated"


WORDS = ["cat", "hat", "mat", "train", "hotel", "soup", "phone", "trip"] * 4
REWARD = """
def short(prompts, completions, **columns):
    return [1 / (1 + len(text)) for text in completions]

def plain(prompts, completions, word, **columns):
    return [float(w not in text) for w, text in zip(word, completions, strict=True)]
"""


def test_other_tokenizers_are_compared_in_bits_per_byte(kleash_, tmp_path) -> None:
    from kleash.models.catalog import resolve

    other = tmp_path / "other"
    shutil.copytree(resolve(TINY), other)
    tree = json.loads((other / "tokenizer.json").read_text())
    names = [name for name, number in tree["model"]["vocab"].items() if number > 300]
    numbers = [tree["model"]["vocab"][name] for name in names]
    tree["model"]["vocab"] |= dict(zip(names, numbers[1:] + numbers[:1], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(tree))
    code, out, err = kleash_(TINY, other, "--max-kl", "off=0.05", "--no-tasks")
    assert code == 2, err
    assert "different tokenizers" in out and "bits per byte" in out and "no KL" in out
    assert out.startswith("INSUFFICIENT EVIDENCE")
    fetches_nothing((tmp_path / "out" / "drift.html").read_text())


def test_several_are_ranked_and_the_cache_spares_the_base(kleash_, tmp_path, moved) -> None:
    code, out, err = kleash_(TINY, TINY, moved, *LESS)
    assert code == 0, err
    order = json.loads((tmp_path / "out" / "ranking.json").read_text())
    assert [row["name"] for row in order["rows"]] == [TINY, str(moved)]
    assert order["rows"][1]["gap"]["low"] is None or order["rows"][1]["gap"]["low"] > 0
    assert "Tuned models of one base" in out
    fetches_nothing((tmp_path / "out" / "ranking.html").read_text())
    assert len(list((tmp_path / "out").glob("*/drift.html"))) == 2
    assert list((tmp_path / "cache" / "drift-states").rglob("*.safetensors"))


def test_a_run_is_its_best_checkpoint_and_a_curve_all_of_them(kleash_, tmp_path, moved) -> None:
    from kleash.models.catalog import resolve

    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-000010").symlink_to(resolve(TINY), target_is_directory=True)
    (checkpoints / "step-000020").symlink_to(moved, target_is_directory=True)
    code, out, err = kleash_(TINY, tmp_path / "run", "--curve", *LESS)
    assert code == 0, err
    curve = json.loads((tmp_path / "out" / "curve.json").read_text())
    assert [row["step"] for row in curve["rows"]] == [10, 20]
    assert "A run’s checkpoints" in out
    assert store.read(tmp_path / "out" / "drift.json").tuned.step == 20


def test_json_is_the_audit_and_nothing_else(kleash_, tmp_path) -> None:
    code, out, err = kleash_(TINY, TINY, *LESS, "--json")
    assert code == 0, err
    assert json.loads(out) == json.loads((tmp_path / "out" / "drift.json").read_text())


def test_an_earlier_report_is_a_gate(kleash_, tmp_path, moved) -> None:
    assert kleash_(TINY, TINY, *FEW)[0] == 0
    last = (tmp_path / "out" / "drift.json").rename(tmp_path / "last.json")
    code, out, err = kleash_(TINY, moved, *LESS, "--against", last)
    assert code == 2, err
    assert "do not compare" in out, "other tokens"


def test_from_python_as_from_the_command_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    settings = {"tokens": 300, "samples": 0, "builtin_tasks": False}
    found = kleash.audit(TINY, TINY, out=tmp_path / "out", gates={"max_kl": {"off": 0.05}}, settings=settings)
    assert found.verdict == found.audit.judgement.verdict == "insufficient evidence", "a few texts"
    assert found.kl is not None and found.kl.value == 0 and found.passed is None, "gated, and no interval"
    assert found.audit.command == f"kleash drift {TINY} {TINY} --tokens 300 --samples 0 --no-tasks"
    assert (tmp_path / "out" / "drift.html").exists()
    with pytest.raises(UsageError, match="unknown setting or gate 'token'"):
        kleash.audit(TINY, TINY, settings={"token": 1})


# ── stopped ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_keeps_what_is_measured_and_marks_it(kleash_, tmp_path, monkeypatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages.words, "samples", stop)
    code, out, _ = kleash_(TINY, TINY, "--tokens", 300, "--no-tasks")
    assert code == 130
    assert "PARTIAL: stopped by Ctrl-C" in out
    found = store.read(tmp_path / "out" / "drift.json")
    assert found.partial is not None and found.distributions[0].name == "off task"
    assert "Partial." in (tmp_path / "out" / "drift.html").read_text()


def test_ctrl_c_before_anything_is_measured_writes_nothing(kleash_, tmp_path, monkeypatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "measure_floor", stop)
    code, _, _ = kleash_(TINY, TINY, *LESS)
    assert code == 130 and not (tmp_path / "out").exists()


# ── what cannot be meant ────────────────────────────────────────────────────────────────────────────────────

BAD: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "no such model": ((TINY, "./nowhere"), WRONG, ("there is no directory ./nowhere",)),
    "task without a score": ((TINY, TINY, "--task", "p.jsonl"), WRONG, ("--task FILE and --score",)),
    "sibling of nothing": ((TINY, TINY, "--sibling", "exact"), WRONG, ("--sibling",)),
    "gate without a number": ((TINY, TINY, "--max-kl", "off"), WRONG, ("--max-kl off", "NAME=NUMBER")),
    "gate of no set": ((TINY, TINY, "--max-kl", "of=1"), WRONG, ("sets of texts are off",)),
    "no earlier report": ((TINY, TINY, "--against", "no.json"), WRONG, ("there is no report no.json",)),
    "no tokens": ((TINY, TINY, "--tokens", "0"), WRONG, ("tokens must be at least 1",)),
    "no such prompts": ((TINY, TINY, "--prompts", "no.jsonl"), WRONG, ("there is no prompt file no.jsonl",)),
    "curve of a model": ((TINY, TINY, "--curve"), WRONG, ("--curve is for a run",)),
    "no results": ((TINY, TINY, "--lm-eval", "no", "no"), WRONG, ("has no results*.json",)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_meant_is_one_sentence(kleash_, tmp_path, name) -> None:
    arguments, code, said = BAD[name]
    sentence(kleash_(*arguments), code, *said)
    assert not (tmp_path / "out" / "drift.json").exists()


@pytest.mark.parametrize(("content", "code"), [("", WRONG), ("\n\n", WRONG), ("One line of text.\n", 0)])
def test_an_empty_file_is_refused_and_one_line_has_no_interval(kleash_, tmp_path, content, code) -> None:
    (tmp_path / "texts.txt").write_text(content)
    got, out, err = kleash_(TINY, TINY, *LESS, "--prompts", tmp_path / "texts.txt")
    assert got == code, err
    if code == 0:
        assert "too few documents" in out


def test_a_score_that_raises_is_one_sentence_and_what_is_measured_is_kept(kleash_, tmp_path) -> None:
    (tmp_path / "r.py").write_text("def bad(prompts, completions, **columns):\n    return [1 / 0]\n")
    (tmp_path / "p.txt").write_text("The soup\n")
    found = kleash_(TINY, TINY, *LESS, "--task", tmp_path / "p.txt", "--score", f"{tmp_path}/r.py:bad")
    assert found[0] == FAILED
    assert found[2].strip().splitlines()[-1].startswith("kleash: ") and "division by zero" in found[2]
    assert "PARTIAL: " in found[1] and "division by zero" in found[1]
    kept = store.read(tmp_path / "out" / "drift.json")
    assert kept.failed and kept.distributions[0].name == "off task"
    (tmp_path / "out" / "drift.json").unlink()
    with pytest.raises(RunError, match=r"division by zero.*: what is missing was not measured"):
        kleash.audit(
            TINY, TINY, task=tmp_path / "p.txt", score=f"{tmp_path}/r.py:bad", out=tmp_path / "out",
            settings={"tokens": 300, "samples": 0, "builtin_tasks": False},
        )  # fmt: skip
    assert store.read(tmp_path / "out" / "drift.json").distributions == kept.distributions


# ── behind a server ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_served_model_has_bounds_and_estimates_and_nothing_exact(kleash_, tmp_path, moved) -> None:
    import torch

    from kleash.models.checkpoint_files import read_model

    with serving(Stub(read_model(moved, torch.float32, False))) as stub:
        limit = ("--max-kl", "off=0.05")
        code, out, err = kleash_(TINY, stub.url, "--tokens", 3200, "--samples", 4, "--max-new-tokens", 6, *limit)
    assert code == 1, err
    off, own = store.read(tmp_path / "out" / "drift.json").distributions
    assert (off.kind, own.kind, own.name) == ("lower bound", "sampled", "its own words")
    assert "≥ " in out and "≈ " in out and "exact KL," not in out
    assert "is at least" in out and "one model is behind a server" in out


def test_two_servers_or_a_task_cannot_be_had_from_one(kleash_) -> None:
    with serving(Stub(None)) as stub:
        sentence(kleash_(stub.url, stub.url), WRONG, "one of the two must be a model at hand")
