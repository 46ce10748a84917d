"""Prompts in a whole run: asked as the config says, seen so by the rewards, and not exchanged behind a run's back."""

import json

import pytest
from tests.models import build
from tests.training.small import events, settings

import kleash
from kleash.errors import UsageError
from kleash.runlog import RunStart, Sample, read
from kleash.training.api import start
from kleash.training.toml import parse_config

TEMPLATE = "{% for m in messages %}{{ 't20' if m.role == 'user' else 't21' }} {{ m.content }} {% endfor %}t22"


def samples(run):
    return [event for event in read(run / "samples.jsonl") if isinstance(event, Sample)]


def test_a_system_prompt_and_columns_reach_model_and_rewards(tmp_path):
    settings(tmp_path)
    tokenizer = build.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"ask": f"t{i + 5}", "wanted": {"words": [f"t{i}"]}} for i in range(4)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    seen = []

    def watch(prompts, completions, wanted):
        seen.append((prompts, wanted))
        return [float(i) for i in range(len(completions))]

    run = kleash.train(
        tmp_path / "model",
        tmp_path / "p.jsonl",
        watch,
        out=tmp_path / "run",
        settings={
            "data.column": "ask",
            "data.system": "t9 t10",
            "train.steps": 1,
            "train.prompts_per_step": 4,
            "train.max_new_tokens": 4,
            "algorithm.group_size": 2,
        },
    )
    trial, step = seen[0], seen[1]
    by_text = {row["ask"]: row["wanted"] for row in rows}
    for prompts, wanted in (trial, step):
        assert [p[0] for p in prompts] == [{"role": "system", "content": "t9 t10"}] * len(prompts)
        assert [by_text[p[1]["content"]] for p in prompts] == wanted
    assert len(step[0]) == 8
    assert {s.prompt[1]["content"] for s in samples(run.path)} == set(by_text)
    # system 3 + user 2 + opening 1 tokens for each of four prompts, read once each
    assert run.steps[0].tokens_forward["sample"] >= 4 * 6


def test_other_prompts_are_refused_on_resume_unless_forced(tmp_path):
    config = parse_config(settings(tmp_path, train__steps=2))
    start(config)
    begun = events(tmp_path / "run", RunStart)[0].fingerprints["prompts"]
    assert begun["number"] == 6
    prompts = tmp_path / "prompts.txt"
    lines = prompts.read_text()
    prompts.write_text("\n" + lines)  # the same prompts
    longer = parse_config(settings(tmp_path, train__steps=3))
    start(longer, resume=True)
    for changed in (lines + "t9\n", lines.replace("t3", "t4", 1), "".join(reversed(lines.splitlines(True)))):
        prompts.write_text(changed)
        before = (tmp_path / "run" / "events.jsonl").read_bytes()
        with pytest.raises(
            UsageError, match=r"data.prompts: the prompts are not the ones .*: 6 with content .* (6|7) with .*--force"
        ):
            start(longer, resume=True)
        assert (tmp_path / "run" / "events.jsonl").read_bytes() == before
    assert start(longer, resume=True, force=True).finished
    again = kleash.train(
        tmp_path / "model",
        prompts,
        f"{tmp_path / 'rewards.py'}:even",
        kl_target="0.5 nats/sequence",
        out=tmp_path / "run",
        resume="force",
        settings={"train.steps": 4, "train.prompts_per_step": 3, "train.max_new_tokens": 8, "algorithm.group_size": 4},
    )
    assert [s.step for s in again.steps] == [0, 1, 2, 3, 4]


def test_a_log_from_before_prompts_had_a_fingerprint_can_be_resumed(tmp_path):
    start(parse_config(settings(tmp_path, train__steps=2)))
    log = tmp_path / "run" / "events.jsonl"
    first, *rest = [json.loads(line) for line in log.read_text().splitlines()]
    del first["fingerprints"]["prompts"]
    log.write_text("".join(json.dumps(event) + "\n" for event in (first, *rest)))
    assert start(parse_config(settings(tmp_path, train__steps=3)), resume=True).finished
