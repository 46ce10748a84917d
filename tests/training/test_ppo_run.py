"""Whole runs of PPO on a small model: what a step logs, where its updates end, what becomes of the critic."""

import pytest
import torch
from tests.training.small import settings, steps

from kleash.errors import UsageError
from kleash.models.load import load
from kleash.models.spec import ModelSpec
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config

PPO = {"algorithm": {"kind": "ppo", "group_size": 2}, "train__learning_rate": 1e-2}


def run(tmp_path, name="run", **changes):
    start(parse_config(settings(tmp_path, **{"out": str(tmp_path / name), "train__steps": 2} | PPO | changes)))
    return steps(tmp_path / name)


def test_a_step_logs_what_its_critic_did(tmp_path):
    first, second, last = run(tmp_path)
    assert first.updates == second.updates == 4
    assert first.explained_variance == pytest.approx(0, abs=0)  # values of 0 explain nothing
    assert first.value_loss > 0
    assert 0 <= first.value_clip_fraction <= 1
    assert first.kl_old.value > 0
    assert last.value_loss is None  # the finished policy is measured, not updated


@pytest.mark.parametrize(
    ("critic", "where"), [("head", "on the policy's own states"), ("separate", "with a body of its")]
)
def test_a_critic_is_made_and_said(critic, where, tmp_path, capsys):
    """The model has none: `kleash train` says what is made for it, and later that it goes on with what was trained."""
    run(tmp_path, model__critic=critic)
    said = capsys.readouterr().out
    assert f"critic     a value head {where}" in said
    assert "made for this run, its first values are 0" in said
    saved = Run(tmp_path / "run").checkpoints[-1].path
    run(tmp_path, "further", model__critic=critic, model__policy=str(saved))
    assert "as it was trained" in capsys.readouterr().out
    run(tmp_path, "without", algorithm={"kind": "rloo", "group_size": 2})
    assert "a value head" not in capsys.readouterr().out


def test_other_algorithms_have_no_values(tmp_path):
    found = run(tmp_path, algorithm={"kind": "rloo", "group_size": 2})
    assert all(s.explained_variance is None and s.value_loss is None and s.value_clip_fraction is None for s in found)
    assert [s.updates for s in found] == [1, 1, None]


def test_groups_of_one_have_no_spread_to_lack(tmp_path):
    assert [s.groups_without_spread for s in run(tmp_path, algorithm={"kind": "ppo"})] == [None] * 3


def test_step_kl_limit_ends_the_updates(tmp_path):
    limited = run(tmp_path, algorithm={"kind": "ppo", "epochs": 6, "step_kl_limit": 1e-6})
    assert [s.updates for s in limited[:-1]] == [1, 1]  # the first is never ended: nothing has moved yet
    assert all(s.kl_old.value > 1e-6 for s in limited[:-1])
    free = run(tmp_path, "free", algorithm={"kind": "ppo", "epochs": 6, "step_kl_limit": 1e6})
    assert [s.updates for s in free[:-1]] == [6, 6]


def test_a_critic_comes_to_explain_the_returns(tmp_path):
    """Planted: the prompt decides most of the reward, and all rewards are well above 0.

    A bias at the weights' small rate cannot follow their mean; the weights that do so in its place make the values
    worse than a constant.
    """
    settings(tmp_path)
    with (tmp_path / "rewards.py").open("a") as file:
        file.write("\ndef planted(prompts, completions, **columns):\n")
        file.write("    return [0.7 + 0.3 * ('t7' in p) + 0.1 * e for p, e in zip(prompts, even(completions))]\n")
    changes = {
        "rewards": [{"use": f"{tmp_path / 'rewards.py'}:planted"}],
        "algorithm": {"kind": "ppo", "group_size": 4},
        "train__prompts_per_step": 6,
        "train__learning_rate": 3e-3,
        "train__steps": 40,
        "train__checkpoint_every": 40,
    }

    def explained(name, **more):
        late = run(tmp_path, name, **changes, **more)[30:40]
        return sum(step.explained_variance for step in late) / len(late)

    assert explained("own-rate") > 0.2
    assert explained("weights-rate", train__critic_bias_rate=3e-3) < 0


@pytest.mark.parametrize("critic", ["head", "separate"])
@pytest.mark.parametrize("adapter", [None, {"rank": 2}], ids=["full", "lora"])
def test_a_resumed_run_equals_one_never_stopped(tmp_path, critic, adapter):
    model = {"model__critic": critic} | ({} if adapter is None else {"model__adapter": adapter})
    whole = run(tmp_path, "whole", **model, train__steps=4)
    changes = {"out": str(tmp_path / "parts"), "train__steps": 2} | PPO | model
    start(parse_config(settings(tmp_path, **changes)))
    start(parse_config(settings(tmp_path, **changes | {"train__steps": 4})), resume=True)
    for a, b in zip(whole, steps(tmp_path / "parts"), strict=True):
        assert (a.kl_ref, a.score, a.loss, a.value_loss, a.explained_variance) == (
            b.kl_ref, b.score, b.loss, b.value_loss, b.explained_variance,
        )  # fmt: skip


def test_a_policy_goes_on_with_its_critic_and_is_exported_without(tmp_path):
    run(tmp_path)
    saved = Run(tmp_path / "run").checkpoints[-1]
    again = load(ModelSpec(policy=str(saved.path), critic="head"))
    assert again.critic == "loaded"
    assert (again.policy.critic.value.weight != 0).any()
    with pytest.raises(UsageError, match=r'not one that model\.critic = "separate" makes'):
        load(ModelSpec(policy=str(saved.path), critic="separate"))
    exported = saved.save(tmp_path / "exported")
    assert not (exported / "critic.safetensors").exists()
    assert load(ModelSpec(policy=str(exported), critic="head")).critic == "fresh"


def test_a_critic_that_nothing_would_use_is_refused(tmp_path):
    for given in ({"model__critic": "head"}, {"train__critic_bias_rate": 0.1}):
        with pytest.raises(UsageError, match="would not be used"):
            parse_config(settings(tmp_path, **given))


def test_a_separate_critic_leaves_the_policy_alone(tmp_path):
    settings(tmp_path)
    loaded = load(ModelSpec(policy=str(tmp_path / "model"), critic="separate"))
    policy = loaded.policy
    own = {id(p) for p in policy.critic.parameters()}
    assert not own & {id(p) for p in policy.model.parameters()}
    assert {id(p) for p in policy.trainable()} >= own  # moved, saved, counted in memory and on disk
    assert torch.equal(policy.critic.body.embed_tokens.weight, policy.body.embed_tokens.weight)
