"""`kleash.train` as a notebook calls it: prompts and rewards are Python objects."""

import pytest
from tests.training.small import settings

import kleash
from kleash.errors import UsageError
from kleash.models.load import load
from kleash.models.spec import ModelSpec

SETTINGS = {
    "train.steps": 2,
    "train.prompts_per_step": 2,
    "train.max_new_tokens": 6,
    "algorithm.group_size": 3,
    "algorithm.kind": "rloo",
}
ROWS = [{"prompt": f"t{i} t4", "answer": f"t{i}"} for i in range(4)]


@pytest.fixture
def model(tmp_path) -> str:
    return settings(tmp_path)["model"]["policy"]


def test_prompts_and_rewards_are_python_objects(tmp_path, model):
    seen = []

    def has_answer(prompts, completions, answer):
        seen.append((prompts, answer))
        return [float(a in c) for a, c in zip(answer, completions, strict=True)]

    async def length(completions, **columns):
        return [len(c) / 10 for c in completions]

    run = kleash.train(
        policy=model,
        prompts=iter(ROWS),
        reward=[has_answer, length],
        kl_target="2 nats/sequence",
        out=tmp_path / "run",
        settings={**SETTINGS, "algorithm.group_size": 3},
    )
    assert run.finished
    assert [s.target for s in run.steps] == ["2 nats/sequence"] * 3
    assert run.steps[0].scores.keys() == {"has_answer", "length"}
    assert all(p.split()[0] == a for prompts, answers in seen for p, a in zip(prompts, answers, strict=True))
    assert {len(prompts) for prompts, _ in seen} == {4, 6}  # the trial, and 2 prompts × 3 completions
    assert load(ModelSpec(policy=str(run.best.save(tmp_path / "kept")))).policy.trainable()
    with pytest.raises(UsageError, match="is not empty"):
        run.best.save(tmp_path / "kept")
    again = kleash.train(
        model, ROWS, [has_answer, length], kl_target="2 nats/sequence", out=run.path,
        settings={**SETTINGS, "train.steps": 3}, resume=True,
    )  # fmt: skip
    assert [s.step for s in again.steps] == [0, 1, 2, 3]
    looser = {
        "kl_target": "3 nats/sequence",
        "out": run.path,
        "settings": {**SETTINGS, "train.steps": 4},
        "resume": True,
    }
    with pytest.raises(UsageError, match="loosen=True"):
        kleash.train(model, ROWS, [has_answer, length], **looser)
    assert kleash.train(model, ROWS, [has_answer, length], **looser, loosen=True).steps[-1].target == "3 nats/sequence"


def test_settings_of_a_reward_given_in_python_count(tmp_path, model):
    def scaled(completions, by=1.0):
        return [by] * len(completions)

    said = {"rewards.0.weight": 0.5, "rewards.0.name": "mine", "rewards.0.args": {"by": 3.0}}
    run = kleash.train(
        model, ROWS, [scaled, "vader"], out=tmp_path / "run", settings={**SETTINGS, **said, "rewards.1.weight": 0}
    )
    assert run.steps[0].scores["mine"] == 3.0
    assert run.steps[0].score == 1.5


def test_settings_of_a_reward_that_is_not_given(tmp_path, model):
    with pytest.raises(UsageError, match="settings name 2 rewards and 1 are given"):
        kleash.train(
            model, ROWS, "vader", out=tmp_path / "run", settings={"rewards": [{"use": "vader"}, {"use": "exact"}]}
        )


def test_left_out_a_conservative_leash_is_held(tmp_path, model):
    (tmp_path / "p.txt").write_text("t3\nt4\n")
    run = kleash.train(model, tmp_path / "p.txt", "vader", out=tmp_path / "run", settings=SETTINGS)
    assert run.steps[0].target == "0.02 nats/token"
    assert run.steps[0].beta == 0.05


def test_a_setting_that_is_unknown(tmp_path, model):
    with pytest.raises(UsageError, match="did you mean 'steps'"):
        kleash.train(model, ROWS, len, out=tmp_path / "run", settings={"train.step": 1})
    with pytest.raises(UsageError, match="does not take `completions`"):
        kleash.train(model, ROWS, lambda text: [0.0], out=tmp_path / "run", settings=SETTINGS)
    assert not (tmp_path / "run" / "events.jsonl").exists()
