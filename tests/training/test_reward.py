"""`kleash reward`: its gradient is the formula's, resume is bitwise, members differ, what comes out is a reward."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.models import build
from tests.models.small_tokenizers import CHAT, byte_level
from tests.tolerances import LOOP, PATHS, PATHS_GRADIENT
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

import kleash
from kleash.cli import app
from kleash.errors import RunError, UsageError
from kleash.models.plan import Plan
from kleash.models.scorer_load import load_scorer
from kleash.models.spec import ModelSpec
from kleash.rewards.load import load_reward
from kleash.rewards.score import score
from kleash.rewards.spec import RewardSpec
from kleash.training.offline.members import together, train_members
from kleash.training.offline.reward import Pair, Preferring
from kleash.training.offline.reward_config import BradleyTerry, RewardConfig
from kleash.training.offline.reward_setup import build_reward
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.start import run_offline
from kleash.training.toml import parse


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Answers with t9 are preferred to those without."""
    found = []
    for i in range(first, last):
        words = [f"t{10 + (7 * i + j) % 20}" for j in range(1 + i % 4)]
        good = " ".join([*words[: i % 3], "t9", *words[i % 3 :]])
        bad = " ".join([*words, f"t{3 + i % 5}"])
        found.append({"prompt": f"t{3 + i % 6} t8 ", "chosen": good, "rejected": bad, "margin": 0.5 * (i % 3)})
    return found


def settings(directory: Path, **changes: Any) -> RewardConfig:
    model = directory / "model"
    if not model.exists():
        build.checkpoint(model, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
        for name, some in (("pairs", rows(0, 24)), ("held", rows(24, 40))):
            (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    tree: dict[str, Any] = {
        "out": str(directory / "run"),
        "model": {"policy": str(model)},
        "data": {"pairs": str(directory / "pairs.jsonl"), "held_out": str(directory / "held.jsonl")},
        "train": {"epochs": 3, "batch_size": 6, "learning_rate": 1e-2, "checkpoint_every": 4, "warmup_updates": 1},
    }
    for name, value in changes.items():
        node, *keys = tree, *name.split("__")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return parse(tree, RewardConfig)


def plain_records(run: OfflineRun) -> list[Any]:
    return [replace(step, seconds=None, tokens_per_second=None, peak_memory_gb=None) for step in run.steps]


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


# ── the objective ───────────────────────────────────────────────────────────────────────────────────────

PAIRS = [
    Pair([5, 7, 9, 4], [5, 7, 3, 3, 8, 6], 0.5),
    Pair([6, 8], [6, 8, 11, 12], 0.0),
    Pair([3, 4, 5], [9, 10], 1.0),
]


def slow(model: Any, loss: BradleyTerry) -> torch.Tensor:
    """The mean loss, from the classifier's own forward on each text alone."""
    total = torch.zeros((), dtype=torch.float64)
    for chosen, rejected, margin in PAIRS:
        c, r = (model(input_ids=torch.tensor([ids])).logits[0, 0] for ids in (chosen, rejected))
        p = (1 - loss.careless) * torch.sigmoid(c - r - margin) + loss.careless / 2
        total = total - torch.log(p) + loss.centre * (c + r) ** 2
    return total / len(PAIRS)


@pytest.mark.parametrize(
    "plan", [Plan("packed"), Plan("packed", groups=2), Plan("cached"), Plan("two_stage", groups=1, rows=1)], ids=str
)
def test_the_gradient_is_that_of_the_formula(tmp_path, plan):
    build.checkpoint(tmp_path / "lm", "gpt2")  # its norms are float64 where its weights are
    scorer = load_scorer(ModelSpec(policy=str(tmp_path / "lm"))).scorer.double()
    loss = BradleyTerry(centre=0.3, careless=0.1)
    objective = Preferring(scorer=scorer, pairs=PAIRS, batch_size=3, seed=0, pad_id=2, loss=loss)
    taught = objective.learn(0, None, lambda work: work(plan))
    found = {name: p.grad.clone() for name, p in scorer.named_parameters() if p.grad is not None}
    scorer.zero_grad()
    truth = slow(scorer.trunk.causal, loss)
    truth.backward()
    assert abs(taught.loss - float(truth.detach())) < LOOP
    for name, parameter in scorer.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=0, atol=LOOP), name


def test_the_figures_are_those_of_the_pairs(tmp_path):
    job = build_reward(settings(tmp_path))
    objective = job.objective
    assert isinstance(objective, Preferring)
    assert objective.held_out is not None
    judged = objective.judge(0, None, lambda work: work(job.plan))
    assert judged is not None
    event: Any = judged.event
    tokenizer = job.loaded.tokenizer
    ahead = []
    for row in rows(24, 40):
        ids = [tokenizer(row["prompt"] + row[side])["input_ids"] for side in ("chosen", "rejected")]
        c, r = (float(objective.scorer.trunk.causal(input_ids=torch.tensor([one])).logits[0, 0]) for one in ids)
        ahead.append(c - r)
    assert event.accuracy == sum(d > 0 for d in ahead) / 16
    assert event.loss == pytest.approx(sum(math.log1p(math.exp(-d)) for d in ahead) / 16, rel=PATHS)
    assert event.margin == pytest.approx(sum(ahead) / 16, abs=PATHS)
    assert judged.merit == -event.loss
    assert sum(count for count, _, _ in event.bins) == event.n_pairs == 16


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("adapter", [None, {"rank": 2}], ids=["full", "lora"])
def test_resumed_is_never_stopped(tmp_path, adapter, monkeypatch):
    whole = run_offline(settings(tmp_path, model__adapter=adapter, out=str(tmp_path / "whole")), build_reward)
    config = settings(tmp_path, model__adapter=adapter)
    learn = Preferring.learn

    def dies(self: Preferring, step: int, *rest: Any) -> Any:
        if step == 6:
            raise ZeroDivisionError("killed")
        return learn(self, step, *rest)

    monkeypatch.setattr(Preferring, "learn", dies)
    with pytest.raises(ZeroDivisionError):
        run_offline(config, build_reward)
    monkeypatch.undo()
    run = run_offline(config, build_reward, resume=True)
    assert run.finished
    assert plain_records(run) == plain_records(whole)
    assert [replace(e, seconds=None) for e in run.evaluations] == [replace(e, seconds=None) for e in whole.evaluations]
    ends = [weights(r.checkpoints[-1].path) for r in (run, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])


def test_what_comes_out_is_a_reward_and_a_classifier(tmp_path):
    """It has learned what is preferred; `use = "model:…"` and plain transformers read the same score."""
    run = run_offline(settings(tmp_path, train__epochs=8), build_reward)
    first, last = run.evaluations[0], run.evaluations[-1]
    assert last.loss < first.loss
    assert last.accuracy == 1.0
    texts = ["t9 t11", "t12 t11", "t9", "t4 t20 t9"]
    found = score([load_reward(f"model:{run.path / 'best'}")], ["t3 t8 "] * 4, texts, {}).total
    model: Any = AutoModelForSequenceClassification.from_pretrained(run.best.path).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(run.best.path)
    ids = tokenizer(["t3 t8 " + text for text in texts], return_tensors="pt", padding=True, padding_side="right")
    assert found == pytest.approx(model(**ids).logits[:, 0].tolist(), rel=PATHS)
    assert min(found[0], found[2], found[3]) > found[1]
    assert model.config.id2label == {0: "reward"}
    page = (run.path / "report.html").read_text()
    assert "Held-out accuracy" in page
    assert "Calibration on the held-out pairs" in page
    best = min(run.evaluations[1:], key=lambda e: e.loss)
    assert run.best.path.resolve().name == f"step-{best.step:06d}"


def test_members_differ_in_their_seed_alone(tmp_path, capsys):
    made = train_members(settings(tmp_path, members=3))
    assert [run.path.name for run in made.members] == ["0", "1", "2"]
    assert made.together is not None
    assert made.together == together_of(made.use)
    assert json.loads((tmp_path / "run" / "ensemble.json").read_text())["n_pairs"] == 16
    alone = run_offline(settings(tmp_path, train__seed=1, out=str(tmp_path / "alone")), build_reward)
    assert plain_records(alone) == plain_records(made.members[1])
    rewarder = load_reward(RewardSpec(tuple(made.use), combine="mean"))
    scored = score([rewarder], ["t3 t8 "] * 2, ["t9 t11", "t12 t11"], {})
    members = scored.members["ensemble"]
    assert scored.total == pytest.approx([sum(column) / 3 for column in zip(*members, strict=True)], rel=PATHS)
    assert len({row[0] for row in members}) == 3
    assert "members differ by" in capsys.readouterr().out


def together_of(use: list[str]) -> Any:
    """The same from the members as rewards of texts."""
    held = rows(24, 40)
    prompts = [row["prompt"] for row in held]
    ahead = []
    for one in use:
        c, r = (
            score([load_reward(one)], prompts, [row[side] for row in held], {}).total for side in ("chosen", "rejected")
        )
        ahead.append([a - b for a, b in zip(c, r, strict=True) if a is not None and b is not None])
    found = together(torch.tensor(ahead, dtype=torch.float64))
    return pytest_close(found)


def pytest_close(found: Any) -> Any:
    """The same record, its floats compared to rounding."""

    class Close:
        def __eq__(self, other: object) -> bool:
            numbers = ("disagreement", "disagreement_right")
            same = all(getattr(other, n) == pytest.approx(getattr(found, n), rel=PATHS_GRADIENT) for n in numbers)
            return same and getattr(other, "accuracy", None) == found.accuracy

    return Close()


def test_members_go_on_where_they_were(tmp_path, monkeypatch):
    config = settings(tmp_path, members=2)
    learn, calls = Preferring.learn, []

    def dies(self: Preferring, step: int, *rest: Any) -> Any:
        calls.append(step)
        if len(calls) == 18:
            raise ZeroDivisionError("killed")
        return learn(self, step, *rest)

    monkeypatch.setattr(Preferring, "learn", dies)
    with pytest.raises(ZeroDivisionError):
        train_members(config)
    done = len(calls)
    with pytest.raises(UsageError, match="holds a run"):
        train_members(config)
    made = train_members(config, resume=True)
    assert [run.finished for run in made.members] == [True, True]
    assert calls[done] == 5  # the first is done; the second goes on where it died
    with pytest.raises(UsageError, match="has no member to go on with"):
        train_members(settings(tmp_path, members=2, out=str(tmp_path / "none")), resume=True)


def test_disagreement_of_members_that_differ_by_a_constant_is_none():
    """Scores know no origin: only differences are compared, and where the mean is wrong is told apart."""
    ahead = torch.tensor([[1.0, -2.0, 3.0], [1.0, -2.0, 1.0]], dtype=torch.float64)
    found = together(ahead)
    assert found.accuracy == [2 / 3, 2 / 3]
    assert found.of_the_mean[0] == 2 / 3
    assert (found.disagreement, found.disagreement_right, found.disagreement_wrong) == (1 / 3, 0.5, 0.0)


def test_from_python_and_from_the_command_line(tmp_path):
    config = settings(tmp_path)
    made = kleash.reward_model(
        tmp_path / "model",
        rows(0, 24),
        held_out=rows(24, 40),
        out=tmp_path / "python",
        settings={f"train.{name}": getattr(config.train, name) for name in
                  ("epochs", "batch_size", "learning_rate", "checkpoint_every", "warmup_updates")},
    )  # fmt: skip
    file = tmp_path / "run.toml"
    file.write_text(
        f'out = "{tmp_path / "line"}"\n[model]\npolicy = "{tmp_path / "model"}"\n'
        f'[data]\npairs = "{tmp_path / "pairs.jsonl"}"\nheld_out = "{tmp_path / "held.jsonl"}"\n'
        "[train]\nepochs = 3\nbatch_size = 6\nlearning_rate = 1e-2\ncheckpoint_every = 4\nwarmup_updates = 1\n"
    )
    result = CliRunner().invoke(app, ["reward", str(file), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.strip().splitlines()[-1])
    assert told["use"] == [f"model:{tmp_path / 'line' / 'best'}"]
    assert plain_records(OfflineRun(tmp_path / "line")) == plain_records(made.members[0])
    assert CliRunner().invoke(app, ["reward", str(file), "out=x", "--check-only"]).exit_code == 0


def test_messages_are_read_as_a_reward_reads_them(tmp_path):
    """Through the model's own template, answer included: training and use see the same tokens."""
    build.model(vocab_size=300, pad_token_id=2).save_pretrained(tmp_path / "chat")
    byte_level(chat=CHAT).save_pretrained(tmp_path / "chat")
    pairs = [{"prompt": "hi", "chosen": "you", "rejected": "no"}, {"prompt": "x", "chosen": "yes", "rejected": "ab"}]
    config = settings(
        tmp_path, model__policy=str(tmp_path / "chat"), data__chat=True, data__system="be kind", train__batch_size=2
    )
    objective = build_reward(config, pairs, pairs).objective
    assert isinstance(objective, Preferring)
    tokenizer = byte_level(chat=CHAT)
    truth = tokenizer("<s><system>be kind\n<user>hi\n<assistant>you\n", add_special_tokens=False)["input_ids"]
    assert objective.pairs[0].chosen == truth


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"members": 0}, "members = 0 must be at least 1"),
        ({"loss__careless": 1.0}, "loss.careless = 1.0 is a share"),
        ({"loss__centre": -1.0}, "loss.centre"),
        ({"loss__margin": -1.0}, "loss.margin"),
        ({"model__critic": "head"}, "model.critic would not be used"),
        ({"model__reference": "base"}, "model.reference would not be used"),
        ({"data__held_out": None, "train__evaluate_every": 4}, "needs data.held_out"),
        ({"data__max_tokens": 3}, r"data.pairs: pair \d+: .*data.max_tokens = 3.*bad_rows"),
        ({"data__pairs": "nowhere.jsonl"}, "data.pairs"),
        ({"data__chat": True}, "no chat template"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_config_is_one_sentence(tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        build_reward(settings(tmp_path, **changes))


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ({"prompt": "t3 ", "chosen": "t4", "rejected": "t4"}, "the same"),
        ({"prompt": "t3 ", "chosen": "t4", "rejected": "t4\u00a0"}, "the same"),
        ({"prompt": "t3 ", "chosen": "t99", "rejected": "t98"}, "the same tokens"),
        ({"prompt": "t3 ", "chosen": "t4", "rejected": " "}, "empty"),
        ({"prompt": "t3 ", "chosen": "t4 " * 70, "rejected": "t4"}, "has 71 tokens .* the model takes 64"),
    ],
)  # fmt: skip
def test_a_bad_pair_is_named_or_left_out(tmp_path, pair, said):
    pairs = [{k: row[k] for k in ("prompt", "chosen", "rejected")} for row in rows(0, 12)]
    with pytest.raises(UsageError, match=rf"pair 5: .*{said}"):
        build_reward(settings(tmp_path), [*pairs[:5], pair, *pairs[5:]])
    job = build_reward(settings(tmp_path, data__bad_rows="drop"), [*pairs[:5], pair, *pairs[5:]])
    assert isinstance(job.objective, Preferring)
    assert len(job.objective.pairs) == 12
    assert any("left out" in line for line in job.described)


def test_label_noise_is_said(tmp_path):
    pairs = [{k: row[k] for k in ("prompt", "chosen", "rejected")} for row in rows(0, 12)]
    turned = pairs[3] | {"chosen": pairs[3]["rejected"], "rejected": pairs[3]["chosen"]}
    job = build_reward(settings(tmp_path), [*pairs, turned])
    assert any("label noise" in line for line in job.described)


def test_other_pairs_are_refused_on_resume(tmp_path):
    run_offline(settings(tmp_path, train__steps=4, train__epochs=None), build_reward)
    file = tmp_path / "pairs.jsonl"
    file.write_text(file.read_text().replace("t10", "t11"))
    config = settings(tmp_path, train__steps=8, train__epochs=None)
    with pytest.raises(RunError, match="pairs: not what this run started with"):
        run_offline(config, build_reward, resume=True)
    assert run_offline(config, build_reward, resume=True, force=True).finished
