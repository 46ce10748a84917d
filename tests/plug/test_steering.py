"""Where a target is refused, and how a beta that nobody reads is found out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kleash.beta import PI
from kleash.errors import RunError, UsageError
from kleash.kl.measure import measure
from kleash.plug.rows import record
from kleash.plug.steering import Beta, Steering, check, check_pace
from kleash.records import Step, Target
from kleash.runlog.offline import PairStep
from kleash.runlog.schema import Evaluation

TARGET = Target.parse("4 nats/sequence")
READING = measure(
    torch.ones(4, 8), torch.ones(4, 8, dtype=torch.bool), torch.arange(4), kind="kl_ref", estimator="exact",
    unit="nats/sequence",
)  # fmt: skip


class GRPOTrainer(SimpleNamespace):
    """As TRL's: its loss multiplies the KL by self.beta."""


class RLOOTrainer(SimpleNamespace):
    """As TRL's: self.beta is asked when samples are drawn, and not at each update."""


class DPOTrainer(SimpleNamespace):
    """No price beside the loss."""


def test_a_beta_that_is_used_is_moved() -> None:
    trainer: Any = GRPOTrainer(beta=0.05)
    steering = Steering.begin(trainer, PI(), TARGET)
    kl = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(trainer.beta * kl, kl * 0.05, rtol=0, atol=0)
    steering.move(READING)
    assert trainer.beta > 0.05 and isinstance(trainer.beta, Beta)
    torch.testing.assert_close(kl * trainer.beta, kl * float(trainer.beta), rtol=0, atol=0)
    steering.move(READING)
    assert steering.state.step == 2


def test_a_beta_that_nobody_multiplies_is_an_error() -> None:
    trainer: Any = GRPOTrainer(beta=0.05)
    steering = Steering.begin(trainer, PI(), TARGET)
    assert trainer.beta != 0.0  # asking is not using
    with pytest.raises(RunError, match="has not used it since"):
        steering.move(READING)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (GRPOTrainer(beta=0.0), "beta = 0"),
        (DPOTrainer(beta=0.1), "has no beta that could hold one"),
        (GRPOTrainer(beta=0.1, liger_grpo_loss=object()), "Liger"),
        (GRPOTrainer(beta=0.1, use_liger_loss=True), "Liger"),
    ],
)
def test_where_no_target_can_be_held(trainer: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(trainer)


def test_beta_does_not_move_more_often_than_the_kl_is_charged() -> None:
    args = SimpleNamespace(steps_per_generation=8, num_iterations=2, gradient_accumulation_steps=4)
    check_pace(RLOOTrainer(args=args), 4)
    check_pace(GRPOTrainer(args=args), 1)  # whose loss charges it at each update
    with pytest.raises(UsageError, match="once in 4 updates with these arguments"):
        check_pace(RLOOTrainer(args=args), 3)


def test_logged_rows_are_records() -> None:
    row = {"loss": 0.1, "reward": 0.5, "reward_std": float("nan"), "rewards/f/mean": 0.5, "kl": 0.01}
    step = record(row, 10, 0.05)
    assert isinstance(step, Step)
    assert (step.step, step.beta, step.score, step.score_std, step.scores) == (9, 0.05, 0.5, None, {"f": 0.5})
    pair = record({"loss": 0.6, "rewards/margins": 0.2, "rewards/accuracies": 0.7, "epoch": 0.1}, 3, 0.1)
    assert isinstance(pair, PairStep) and pair.accuracy == 0.7 and pair.step == 2
    held = record({"eval_reward": 0.4, "eval_rewards/f/mean": 0.4}, 5, 0.1)
    assert isinstance(held, Evaluation) and held.scores == {"f": 0.4}
    assert record({"train_runtime": 3.0, "train_loss": 0.1}, 5, 0.1) is None and record({"epoch": 1.0}, 5, 0.1) is None
