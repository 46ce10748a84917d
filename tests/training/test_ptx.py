"""PPO-ptx: its gradient against autograd through the model's own logits, which texts an update draws, and its runs."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.tolerances import LOOP
from tests.training.enumerated import V, gradient, small_policy
from tests.training.small import settings, steps

from kleash.algorithms import PPO, Ptx
from kleash.errors import RunError, UsageError
from kleash.kl.penalties import Exact
from kleash.models.load import load
from kleash.models.plan import Plan
from kleash.models.spec import ModelSpec
from kleash.tensors import Look
from kleash.training.api import start
from kleash.training.passes import Passed, Update
from kleash.training.ptx import with_texts
from kleash.training.run import Run
from kleash.training.texts import as_rollout, load_texts
from kleash.training.toml import parse_config

IDS = [[3, 0, 4, 1, 1], [1, 4], [0, 3, 2], [4, 4, 4, 0]]
PTX = Ptx(texts="none", weight=27.8, per_update=4)
NOTHING = Passed(Look(torch.zeros(1, 1), torch.zeros(1, 1)), 0.5, 0, 0, None)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("groups_per_pass", [None, 1, 3])
def test_gradient_equals_float64_autograd(groups_per_pass, lora):
    policy = small_policy(1, lora=lora, critic="head")
    nll = torch.zeros((), dtype=torch.float64)
    for ids in IDS:  # each text alone, by the transformers model itself
        logprobs = policy.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        for t in range(1, len(ids)):
            nll = nll - logprobs[t - 1, ids[t]]
    mean = nll / sum(len(ids) - 1 for ids in IDS)
    truth = 27.8 * gradient(mean, policy)

    update = Update(algorithm=PPO(ptx=PTX), penalty=Exact(), length=8)
    done = with_texts(policy, as_rollout(IDS), update, Plan(groups=groups_per_pass), NOTHING)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable()]
    flat = torch.cat([g.flatten() for g in found])
    assert (flat - truth).norm() / truth.norm() < LOOP
    assert done.ptx_loss == pytest.approx(mean.item(), rel=LOOP)
    assert done.loss == pytest.approx(0.5 + 27.8 * mean.item(), rel=LOOP)


def test_gradients_add_up():
    """What the minibatch left in `.grad` stays."""
    policy, update = small_policy(1), Update(algorithm=PPO(ptx=PTX), penalty=Exact(), length=8)
    with_texts(policy, as_rollout(IDS), update, Plan(), NOTHING)
    once = [None if p.grad is None else p.grad.clone() for p in policy.trainable()]
    with_texts(policy, as_rollout(IDS), update, Plan(), NOTHING)
    for before, parameter in zip(once, policy.trainable(), strict=True):
        if before is not None:
            torch.testing.assert_close(parameter.grad, 2 * before, rtol=LOOP, atol=0)


# ── whole runs ──────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [f"t{3 + i} t{4 + i} t{5 + i}{' t7' * (i % 3)}" for i in range(7)]


def mixed(tmp_path: Path, name: str = "run", **changes):
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    ptx = {"texts": str(tmp_path / "texts.jsonl"), "weight": 1.0, "per_update": 3, "max_tokens": 4}
    ptx |= changes.pop("ptx", {})
    ppo = {"kind": "ppo", "epochs": 2, "ptx": ptx}
    return parse_config(settings(tmp_path, **{"out": str(tmp_path / name), "algorithm": ppo} | changes))


def test_a_resumed_run_equals_one_never_stopped(tmp_path):
    start(mixed(tmp_path, train__learning_rate=1e-2))
    start(mixed(tmp_path, "parts", train__learning_rate=1e-2, train__steps=2))
    start(mixed(tmp_path, "parts", train__learning_rate=1e-2), resume=True)
    whole, parts = steps(tmp_path / "run"), steps(tmp_path / "parts")
    assert [(s.ptx_loss, s.loss, s.kl_ref, s.score) for s in whole] == [
        (s.ptx_loss, s.loss, s.kl_ref, s.score) for s in parts
    ]
    assert all(s.ptx_loss > 0 for s in whole[:-1])
    assert whole[-1].ptx_loss is None


def test_texts_are_learned(tmp_path):
    """A heavy weight on few texts: their loss falls, which nothing else in the run would do."""
    many = {"weight": 30.0, "per_update": 7}
    start(mixed(tmp_path, ptx=many, train__learning_rate=2e-2, train__steps=8))
    found = [s.ptx_loss for s in steps(tmp_path / "run")[:-1]]
    assert found[-1] < 0.7 * found[0]
    start(mixed(tmp_path, "light", ptx=many | {"weight": 1e-9}, train__learning_rate=2e-2, train__steps=8))
    assert steps(tmp_path / "light")[7].ptx_loss > 0.9 * found[0]


def test_the_run_says_what_it_mixes_in(tmp_path, capsys):
    start(mixed(tmp_path), check_only=True)
    said = capsys.readouterr().out
    assert "7 texts from" in said
    assert "at most 4 tokens each, 2 of them cut; 3 in each update, at 1 × their loss per token" in said


def test_each_update_draws_its_own_and_an_epoch_draws_all(tmp_path):
    settings(tmp_path)
    config = mixed(tmp_path)
    loaded = load(ModelSpec(policy=str(tmp_path / "model")))
    texts = load_texts(config.algorithm, loaded, seed=0)
    assert texts is not None
    drawn = [r for step in range(4) for r in texts.of_step(step, 2)]
    rows = [(int(r.prompt_ids[i, 0]), *r.completion_ids[i][r.mask[i]].tolist()) for r in drawn for i in range(3)]
    first_epoch = rows[:6]  # 7 texts in threes: two updates, and one text is left out of it
    assert len(set(first_epoch)) == 6
    assert set(rows) == {tuple(ids) for ids in texts.ids}
    assert all(len(ids) <= 4 for ids in texts.ids)
    again = [r for step in range(2, 4) for r in load_texts(config.algorithm, loaded, seed=0).of_step(step, 2)]
    assert all(torch.equal(a.completion_ids, b.completion_ids) for a, b in zip(drawn[4:], again, strict=True))


def test_other_texts_on_resume_are_noticed(tmp_path):
    start(mixed(tmp_path, train__steps=2))
    config = mixed(tmp_path)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": f"{text} t9"}) for text in TEXTS))
    with pytest.raises(RunError, match="the texts are not the ones this run started with"):
        start(config, resume=True)
    start(config, resume=True, force=True)
    assert Run(tmp_path / "run").finished


@pytest.mark.parametrize(
    ("content", "ptx", "said"),
    [
        ("", {}, "exceeds the 0 texts"),
        ("t3\nt4 t5\n", {}, "row 0 is one token"),
        ("t3 t4\nt4 t5\n", {"per_update": 3}, "per_update = 3 exceeds the 2 texts"),
        ("t3 t4\n" + "t4 t5 " * 40, {}, "row 1 has 80 tokens, and the model's context is 64: set .*max_tokens"),
        ('{"prompt": "t3 t4"}\n', {"texts": "texts.jsonl"}, "row 0 has no text under 'text'"),
        ('{"text": ""}\n', {"texts": "texts.jsonl", "per_update": 1}, "is empty"),
        ("", {"texts": "nowhere.txt"}, "nowhere.txt"),
        ("", {"weight": 0.0}, "must be above 0"),
        ("", {"per_update": 0}, "at least 1"),
        ("", {"max_tokens": 1}, "at least 2"),
    ],
)
def test_texts_that_cannot_be_meant_are_refused(content, ptx, said, tmp_path):
    name = ptx.get("texts", "texts.txt")
    if name != "nowhere.txt":
        (tmp_path / name).write_text(content)
    given = {"weight": 1.0, "per_update": 2} | ptx | {"texts": str(tmp_path / name)}
    with pytest.raises(UsageError, match=said):
        start(parse_config(settings(tmp_path, algorithm={"kind": "ppo", "ptx": given})), check_only=True)


def test_the_first_loss_of_a_random_model_is_that_of_guessing():
    policy, update = small_policy(1), Update(algorithm=PPO(ptx=PTX), penalty=Exact(), length=8)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert with_texts(policy, as_rollout(IDS), update, Plan(), NOTHING).ptx_loss == pytest.approx(math.log(V), rel=LOOP)
