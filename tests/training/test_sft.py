"""`kleash sft`: the loss is the text's own, in whatever passes; what counts is the assistant's; resume is bitwise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.tolerances import EXACT, FP32, LOOP
from torch.nn.functional import log_softmax

from kleash.errors import RunError, UsageError
from kleash.models.load import load
from kleash.models.plan import Plan
from kleash.models.rows import Reader, Row, conversation_rows, even_spans, rollout_of
from kleash.models.spec import Chat, ModelSpec
from kleash.models.stopping import Ends
from kleash.runlog import Rollback
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft import Supervised, fitting
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.toml import parse

ROWS = [Row([5, 7, 9, 4, 2], [False, False, True, True, True]), Row([6, 8, 2], [False, True, True])]
ROWS += [Row([3, 4, 5, 6, 7, 8, 9, 10, 2], [False, True, True, False, False, True, True, False, True])]


def settings(directory: Path, **changes: Any) -> SFTConfig:
    model = directory / "model"
    if not model.exists():
        build.checkpoint(model, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
        rows = [{"prompt": f"t{3 + i % 9} t5", "completion": " " + " ".join(f"t{6 + j}" for j in range(i % 5 + 1))}
                for i in range(16)]  # fmt: skip
        (directory / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:12]))
        (directory / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[12:]))
    tree: dict[str, Any] = {
        "out": str(directory / "run"),
        "model": {"policy": str(model)},
        "data": {"texts": str(directory / "texts.jsonl"), "held_out": str(directory / "held.jsonl")},
        "train": {"epochs": 3, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 3, "warmup_updates": 1},
        "kl": {"prompts": 3, "max_new_tokens": 6},
    }
    for name, value in changes.items():
        node, *keys = tree, *name.split("__")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return parse(tree, SFTConfig)


# ── the loss ────────────────────────────────────────────────────────────────────────────────────────────


def slow(model: Any, rows: list[Row]) -> torch.Tensor:
    """Mean −log π over the counted tokens, row by row from the model's own logits."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        logprobs = log_softmax(model(torch.tensor([row.ids])).logits[0], -1)
        for place in range(1, len(row.ids)):
            if row.counts[place]:
                total, tokens = total - logprobs[place - 1, row.ids[place]], tokens + 1
    return total / tokens


@pytest.mark.parametrize(
    "plan", [Plan("plain"), Plan("plain", groups=1), Plan("packed"), Plan("plain", rows=1)], ids=str
)
def test_the_gradient_is_that_of_the_mean_over_counted_tokens(plan):
    policy = build.policy(dtype=torch.float64)
    trained = Supervised(policy=policy, rows=ROWS, batch_size=3, seed=0, pad_id=2)
    taught = trained.learn(0, None, lambda work: work(plan))
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    truth = slow(policy.model, ROWS)
    truth.backward()
    assert abs(taught.loss - float(truth)) < LOOP
    for name, parameter in policy.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=0, atol=LOOP), name
    assert taught.figures["tokens"] == 10


def test_the_held_out_loss_is_that_of_the_rows(tmp_path):
    job = build_sft(settings(tmp_path))
    objective = job.objective
    assert isinstance(objective, Supervised)
    assert objective.held_out is not None
    judged = objective.judge(0, None, lambda work: work(job.plan))
    with torch.no_grad():
        truth = float(slow(job.loaded.policy.causal, list(objective.held_out.rows)))
    assert judged is not None
    assert abs(judged.event.loss - truth) < FP32 * truth
    assert judged.event.kl_text == 0.0
    assert judged.event.kl_ref.value == 0.0
    assert judged.merit == -judged.event.loss


def test_rows_of_like_length_go_together():
    assert even_spans([8, 8, 9, 18, 20, 60], None, 0.1) == [(0, 3), (3, 5), (5, 6)]
    assert even_spans([4, 4, 4, 4], 3, 0.1) == [(0, 3), (3, 4)]
    rollout = rollout_of(ROWS, pad_id=2, device="cpu")
    assert rollout.mask.sum(1).tolist() == [3, 2, 5]
    assert rollout.prompt_ids.flatten().tolist() == [5, 6, 3]


# ── conversations ───────────────────────────────────────────────────────────────────────────────────────

TURNS = [
    {"role": "user", "content": "t5 t6"},
    {"role": "assistant", "content": "t7"},
    {"role": "user", "content": "t8"},
    {"role": "assistant", "content": "t9 t10"},
]
OPEN = "{% if add_generation_prompt %}t30 {% endif %}"
PLAIN = "{% for m in messages %}{{ 't31' if m.role == 'user' else 't30' }} {{ m.content }} t2 {% endfor %}" + OPEN
#: What an assistant said before the last question is left out, as templates do with thoughts.
FORGETS = (
    "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ 't31' if m.role == 'user' else 't30' }} "
    "{{ m.content }} t2 {% endif %}{% endfor %}" + OPEN
)


def reader(template: str) -> Reader:
    tokenizer = build.tokenizer()
    tokenizer.chat_template = template
    return Reader(tokenizer, Ends.of(tokenizer, None), 64, build.VOCAB, Chat())


def counted(row: Row) -> list[int]:
    return [token for token, counts in zip(row.ids, row.counts, strict=True) if counts]


def test_every_turn_of_the_assistants_counts_in_one_row():
    (row,) = conversation_rows([TURNS], reader(PLAIN))
    assert row.ids == [31, 5, 6, 2, 30, 7, 2, 31, 8, 2, 30, 9, 10, 2]
    assert counted(row) == [7, 2, 9, 10, 2]


def test_a_turn_that_the_template_later_shows_otherwise_is_a_row_of_its_own():
    first, second = conversation_rows([TURNS], reader(FORGETS))
    assert (first.ids, counted(first)) == ([31, 5, 6, 2, 30, 7, 2], [7, 2])
    assert (second.ids, counted(second)) == ([31, 5, 6, 2, 31, 8, 2, 30, 9, 10, 2], [9, 10, 2])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([TURNS[:1]], "none of the assistant's"),
        ([TURNS[1:]], "none before it"),
    ],
)
def test_a_conversation_that_cannot_be_learned(rows, said):
    with pytest.raises(UsageError, match=said):
        conversation_rows(rows, reader(PLAIN))


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────


def plain_records(run: OfflineRun) -> list[Any]:
    return [replace(step, seconds=None, tokens_per_second=None, peak_memory_gb=None) for step in run.steps]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return dict(load(ModelSpec(policy=str(path))).policy.named_parameters())


@pytest.mark.parametrize("adapter", [None, {"rank": 2}], ids=["full", "lora"])
def test_resumed_is_never_stopped(tmp_path, adapter, monkeypatch):
    whole = run_offline(settings(tmp_path, model__adapter=adapter, out=str(tmp_path / "whole")), build_sft)
    config = settings(tmp_path, model__adapter=adapter)
    learn = Supervised.learn

    def dies(self: Supervised, step: int, *rest: Any) -> Any:
        if step == 5:
            raise ZeroDivisionError("killed")
        return learn(self, step, *rest)

    monkeypatch.setattr(Supervised, "learn", dies)
    with pytest.raises(ZeroDivisionError):
        run_offline(config, build_sft)
    monkeypatch.undo()
    run = run_offline(config, build_sft, resume=True)
    assert run.finished
    assert plain_records(run) == plain_records(whole)
    assert [e.loss for e in run.evaluations] == [e.loss for e in whole.evaluations]
    ends = [weights(r.checkpoints[-1].path) for r in (run, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert run.best.path.resolve().name == whole.best.path.resolve().name


def test_the_best_has_the_lowest_held_out_loss(tmp_path):
    run = run_offline(settings(tmp_path, train__keep="all"), build_sft)
    best = min(run.evaluations[1:], key=lambda e: e.loss)
    assert run.best.path.resolve().name == f"step-{best.step:06d}"
    assert run.evaluations[-1].loss < run.evaluations[0].loss
    assert run.evaluations[-1].kl_text > 0
    page = (run.path / "report.html").read_text()
    assert "Held-out loss" in page
    assert "KL to the reference on the held-out text" in page


def test_an_update_that_is_not_finite_is_not_made(tmp_path, monkeypatch):
    """Three in a row, and the run goes back to its last good checkpoint at half the rate."""
    learn = Supervised.learn
    broken = {4: 1, 5: 1, 6: 1}

    def breaks(self: Supervised, step: int, *rest: Any) -> Any:
        taught = learn(self, step, *rest)
        if broken.pop(step, 0):
            next(iter(self.policy.trainable())).grad.fill_(float("nan"))
        return taught

    monkeypatch.setattr(Supervised, "learn", breaks)
    run = run_offline(settings(tmp_path), build_sft)
    assert run.finished
    (back,) = [event for event in run.events if isinstance(event, Rollback)]
    assert (back.step, back.from_step) == (3, 7)
    assert len(list((run.path / "bad").glob("*.safetensors"))) == 3
    config = settings(tmp_path)
    rates = [step.learning_rate for step in run.steps]
    assert rates[4] == config.train.rate(1e-2, 4, 9) / 2


def test_other_texts_are_refused_on_resume(tmp_path):
    run_offline(settings(tmp_path, train__steps=3, train__epochs=None), build_sft)
    held = tmp_path / "texts.jsonl"
    held.write_text(held.read_text().replace("t5", "t6"))
    config = settings(tmp_path, train__steps=6, train__epochs=None)
    with pytest.raises(RunError, match="texts: not what this run started with"):
        run_offline(config, build_sft, resume=True)
    assert run_offline(config, build_sft, resume=True, force=True).finished


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__steps": 3}, "say the same"),
        ({"train__batch_size": 99}, "exceeds the 12 rows"),
        ({"model__critic": "head"}, "model.critic would not be used"),
        ({"data__held_out": None, "train__evaluate_every": 3}, "needs data.held_out"),
        ({"data__max_tokens": 2}, "nothing of its answer is left"),
        ({"data__texts": "nowhere.jsonl"}, "data.texts"),
        ({"data__system": " "}, "data.system is empty"),
        ({"kl__prompts": -1}, "kl.prompts must be"),
        ({"kl__max_new_tokens": 64}, "no held-out prompt leaves"),
        ({"train__decay": "sine"}, "train.decay"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_config_is_one_sentence(tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        build_sft(settings(tmp_path, **changes))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no rows"),
        ([{"prompt": "t5"}], "must have prompt and completion"),
        ([{"text": "t5 t6"}, {"prompt": "t5", "completion": " t6"}], "give all rows in one form"),
        ([{"prompt": "t5", "completion": " "}], "empty"),
        ([{"prompt": "t5", "completion": " \ud83d"}], "the answer to prompt 0 has half a character"),
        ([3], "it is 3"),
    ],
    ids=["none", "half", "mixed", "empty", "surrogate", "number"],
)
def test_a_bad_row_is_one_sentence(tmp_path, rows, said):
    with pytest.raises(UsageError, match=said):
        build_sft(settings(tmp_path), texts=rows)


def test_a_row_beyond_the_context_is_refused_or_cut():
    with pytest.raises(UsageError, match="row 2 has 9 tokens"):
        fitting(ROWS, 8, None)
    rows, cut = fitting(ROWS, 8, 6)
    assert cut == 1
    assert rows[2] == Row([3, 4, 5, 6, 7, 8], [False, True, True, False, False, True])


# ── the learning rate ───────────────────────────────────────────────────────────────────────────────────


def test_the_rate_warms_up_and_falls_to_zero():
    linear = OfflineTrain(warmup_updates=2, decay="linear")
    cosine = OfflineTrain(warmup_updates=0, decay="cosine")
    constant = OfflineTrain(warmup_updates=0, decay="constant")
    found = [linear.rate(6.0, step, 8) for step in range(8)]
    found += [cosine.rate(2.0, step, 4) for step in range(4)] + [constant.rate(2.0, 3, 4)]
    half = 2**-0.5
    truth = [2.0, 4.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 2.0, 1 + half, 1.0, 1 - half, 2.0]
    assert max(abs(a - b) for a, b in zip(found, truth, strict=True)) < EXACT
