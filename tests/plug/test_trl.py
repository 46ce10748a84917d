"""Leash in real runs of TRL on kleash:tiny. Where TRL is installed: `make trl`."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from datasets import Dataset
from peft import LoraConfig

from kleash.errors import RunError, UsageError
from kleash.models.catalog import resolve
from kleash.monitor import examine
from kleash.plug.steering import Beta
from kleash.plug.trl import STATE, Leash
from kleash.runlog.importers import read_log
from kleash.runlog.jsonl import read
from kleash.runlog.schema import Checkpoint, Evaluation, Found, Resume, RunEnd, RunStart, current
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

PROMPTS = ["The film", "We booked the hotel and", "My first phone", "Last week the train"]
TINY = str(resolve("kleash:tiny"))
COMMON: dict[str, Any] = {
    "learning_rate": 3e-3, "lr_scheduler_type": "constant", "per_device_train_batch_size": 16, "logging_steps": 1,
    "report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_strategy": "no", "seed": 1,
}  # fmt: skip
ONLINE: dict[str, Any] = {"num_generations": 4, "max_completion_length": 12}


def short(completions: list[str], **columns: Any) -> list[float]:
    return [-len(text) / 20 for text in completions]


def online(kind: str, out: Path, steps: int, **settings: Any) -> Any:
    trainer, config = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}[kind]
    peft = settings.pop("peft_config", None)
    args = config(output_dir=str(out), max_steps=steps, **COMMON | ONLINE | settings)
    data = Dataset.from_dict({"prompt": PROMPTS * 16})
    return trainer(model=TINY, reward_funcs=short, args=args, train_dataset=data, peft_config=peft)


def run(trainer: Any, **given: Any) -> Leash:
    resume = given.pop("resume", None)
    leash = Leash(trainer, **{"every": 2, "samples": 8} | given)
    trainer.add_callback(leash)
    trainer.train(resume_from_checkpoint=resume)
    return leash


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_target_moves_the_beta_that_training_uses(kind: str, tmp_path: Path) -> None:
    trainer = online(kind, tmp_path, 6, beta=0.05)
    leash = run(trainer, target="20 nats/sequence")
    assert isinstance(trainer.beta, Beta) and trainer.beta < 0.05
    assert leash.readings[0].per_token.value == 0 and leash.readings[-1].per_token.value > 0
    events = current(read(tmp_path / "kleash" / "events.jsonl"))
    assert isinstance(events[0], RunStart) and isinstance(events[-1], RunEnd)
    assert [e.step for e in events if isinstance(e, Evaluation)] == [0, 2, 4, 6]
    log = read_log(tmp_path / "kleash")
    assert log.kl["kl_ref"].estimator == "exact" and log.column("kl_ref_sequence") is not None
    assert log.column("reward") is not None and log.sample_steps == (0, 2, 4, 6)
    assert len({beta for beta in log.columns["beta"] if beta > 0}) == 3
    assert examine(log).evaluated


def test_a_low_target_pulls_where_a_high_one_lets_go(tmp_path: Path) -> None:
    """The move is felt: from the same seed and first beta the tight leash ends nearer to the start."""
    far = run(online("grpo", tmp_path / "far", 24, beta=0.05), target="50 nats/sequence")
    near = run(online("grpo", tmp_path / "near", 24, beta=0.05), target="0.02 nats/sequence")
    assert far.trainer.beta < 0.05 < near.trainer.beta
    assert near.readings[-1].per_sequence.value < far.readings[-1].per_sequence.value


def test_rloo_that_samples_once_in_several_updates(tmp_path: Path) -> None:
    trainer = online("rloo", tmp_path, 9, beta=0.05, num_iterations=3)
    with pytest.raises(UsageError, match="once in 3 updates"):
        Leash(trainer, target="20 nats/sequence", every=2)
    run(trainer, target="20 nats/sequence", every=3)
    assert trainer.beta < 0.05


def test_at_beta_0_the_kl_is_measured_and_no_target_is_taken(tmp_path: Path) -> None:
    trainer = online("grpo", tmp_path, 4, beta=0.0)
    assert trainer.ref_model is None
    with pytest.raises(UsageError, match="beta = 0"):
        Leash(trainer, target="4 nats/sequence")
    leash = run(trainer)
    assert leash.readings[-1].per_sequence.value > 0 and trainer.beta == 0.0


def test_an_adapter_s_reference_is_the_model_without_it(tmp_path: Path) -> None:
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    leash = run(online("grpo", tmp_path, 4, beta=0.1, peft_config=adapter), target="1 nats/sequence")
    assert leash.readings[0].per_token.value == 0 and leash.readings[-1].per_token.value > 0
    assert json.loads((tmp_path / "kleash" / "reference.json").read_text()) == {"kind": "adapter off"}


def test_in_dpo_too(tmp_path: Path) -> None:
    rows = {
        "prompt": PROMPTS * 8,
        "chosen": [" was lovely."] * 32,
        "rejected": [" was bad and I did not like it."] * 32,
    }
    args = DPOConfig(output_dir=str(tmp_path), max_steps=4, **COMMON)
    trainer = DPOTrainer(model=TINY, args=args, train_dataset=Dataset.from_dict(rows))
    with pytest.raises(UsageError, match="has no beta that could hold one"):
        Leash(trainer, target="4 nats/sequence")
    leash = run(trainer, max_new_tokens=12)
    assert leash.readings[0].per_token.value == 0 and leash.readings[-1].per_token.value > 0
    log = read_log(tmp_path / "kleash")
    assert log.column("margin") is not None and log.column("kl_ref") is not None


def test_a_run_that_goes_on_keeps_controller_and_reference(tmp_path: Path) -> None:
    saving = {"beta": 0.05, "save_strategy": "steps", "save_steps": 4}
    whole = run(online("grpo", tmp_path / "whole", 8, **saving), target="2 nats/sequence")
    run(online("grpo", tmp_path / "cut", 4, **saving), target="2 nats/sequence")
    again = online("grpo", tmp_path / "cut", 8, **saving)
    with pytest.raises(UsageError, match="loosened"):
        run(online("grpo", tmp_path / "cut", 8, **saving), target="3 nats/sequence", resume=True)
    went_on = run(again, target="2 nats/sequence", resume=True)
    assert went_on.readings[-1].kl == whole.readings[-1].kl
    assert again.beta == whole.trainer.beta
    events = read(tmp_path / "cut" / "kleash" / "events.jsonl")
    assert any(isinstance(e, Resume) for e in events)
    kept = [e.step for e in current(events) if isinstance(e, Evaluation)]
    assert kept == [0, 2, 4, 6, 8]
    assert [e.path for e in current(events) if isinstance(e, Checkpoint)] == ["../checkpoint-4", "../checkpoint-8"]
    (tmp_path / "cut" / "checkpoint-8" / STATE).unlink()
    with pytest.raises(RunError, match="cannot go on"):
        run(online("grpo", tmp_path / "cut", 10, **saving), target="2 nats/sequence", resume=True)


def test_above_the_budget_it_saves_and_stops(tmp_path: Path) -> None:
    trainer = online("grpo", tmp_path, 20, beta=0.0)
    leash = run(trainer, budget="0.01 nats/sequence")
    assert leash.stopped == "budget" and trainer.state.global_step < 20
    assert (tmp_path / f"checkpoint-{trainer.state.global_step}" / STATE).is_file()
    assert read_log(tmp_path / "kleash").ended == "budget"


def test_a_finding_is_an_event_and_may_stop(tmp_path: Path) -> None:
    """A learning rate at which the policy falls apart."""
    trainer = online("grpo", tmp_path, 40, beta=0.0, learning_rate=0.03)
    leash = run(trainer, on_finding="stop")
    assert leash.findings and trainer.state.global_step < 40
    found = [e for e in read(tmp_path / "kleash" / "events.jsonl") if isinstance(e, Found)]
    assert found and found[0].action == "stop"
    assert {e.finding.rule for e in found} == {f.rule for f in leash.findings}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": 0}, "at least 1"),
        ({"on_finding": "pray"}, "no action"),
        ({"target": "4"}, "no unit"),
        ({"budget": "lots"}, "no unit"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        Leash(online("grpo", tmp_path, 1, beta=0.1), **given)
