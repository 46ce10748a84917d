"""Where memory runs out a run goes on with less at once, and comes to what it would have come to."""

from dataclasses import asdict
from typing import Any

import pytest
import torch
from tests.tolerances import PATHS, PATHS_GRADIENT
from tests.training.small import OF_THE_MACHINE, events, settings, steps
from tests.training.test_accumulation import numbers

from kleash.errors import RunError
from kleash.models.policy import Policy
from kleash.runlog import Notice, Resume, RunStart
from kleash.training import collect, online, rolling
from kleash.training.api import start
from kleash.training.toml import parse_config

#: As in test_accumulation: Adam's step is then proportional to the gradients.
SMALL = {"train__max_grad_norm": 1e-10, "train__learning_rate": 10.0}
ON_CPU = "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


class Failing:
    """Stands before a function: some of its calls, counted from 0, run out of memory."""

    def __init__(self, own: Any, fails: Any, error: Exception | None = None) -> None:
        self.own, self.fails, self.error, self.calls = own, fails, error or torch.OutOfMemoryError("none left"), 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if self.fails(number):
            raise self.error
        return self.own(*args, **kwargs)


def run(tmp_path: Any, name: str, **changes: Any) -> list[Any]:
    start(parse_config(settings(tmp_path, **{"out": str(tmp_path / name), "train__steps": 2} | SMALL | changes)))
    return steps(tmp_path / name)


def same(whole: list[Any], other: list[Any]) -> None:
    for a, b in zip(whole, other, strict=True):
        # Shares of a KL that is exactly 0, or 0 up to the rounding between two paths, mean nothing.
        one, two = (numbers(asdict(step) | {"kl_share": None}) for step in (a, b))
        assert one.keys() == two.keys()
        for name in one:
            if name.split(".")[1] not in (*OF_THE_MACHINE, "tokens_forward"):
                tolerance = PATHS_GRADIENT if name in (".grad_norm", ".loss", ".price") else PATHS
                assert two[name] == pytest.approx(one[name], rel=tolerance, abs=tolerance), name


def told(tmp_path: Any, name: str) -> list[str]:
    return [n.text for n in events(tmp_path / name, Notice) if n.what == "out_of_memory"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError(ON_CPU)])
def test_a_backward_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, error):
    """The second pass of the second minibatch fails, with the first one's gradients already there."""
    changes = {"algorithm__minibatches": 2, "train__prompts_per_step": 6, "train__groups_per_pass": 2}
    whole = run(tmp_path, "whole", **changes)
    failing = Failing(torch.Tensor.backward, lambda number: number == 3, error)
    monkeypatch.setattr(torch.Tensor, "backward", lambda self, *a, **k: failing(self, *a, **k))
    same(whole, run(tmp_path, "short", **changes))
    (text,) = told(tmp_path, "short")
    assert "packed, 1 prompt group at a time instead of packed, 2 prompt groups at a time" in text


@pytest.mark.parametrize(
    ("phase", "fails"),
    [("sample", lambda n: n == 2), ("reference", lambda n: n == 1)],  # the first sample is preflight's
)
def test_sampling_and_the_reference_are_done_again(tmp_path, monkeypatch, phase, fails):
    whole = run(tmp_path, "whole")
    place, name = (rolling, "sample") if phase == "sample" else (collect, "reference_states")
    monkeypatch.setattr(place, name, Failing(getattr(place, name), fails))
    same(whole, run(tmp_path, "short"))
    (text,) = told(tmp_path, "short")
    assert ("sampling 2 prompts at a time" in text) == (phase == "sample")


def test_down_to_one_row_and_no_further(tmp_path, monkeypatch):
    """More than one completion at a time never fits: the run ends with what it does, and equals one that had room.

    beta is given: a controller holds it where the KL of step 0 is rounding below 0, as it may be by another path.
    """
    fixed: dict[str, Any] = {"train__steps": 1, "kl": {"beta": 0.05}}
    whole = run(tmp_path, "whole", **fixed)
    own = Policy.forward

    def only_one(self: Policy, rollout: Any, *, rows: int | None = None, **rest: Any) -> Any:
        if self.training_run and rows != 1:  # pyright: ignore[reportAttributeAccessIssue]
            raise RuntimeError(ON_CPU)
        return own(self, rollout, rows=rows, **rest)

    monkeypatch.setattr(Policy, "training_run", False, raising=False)
    monkeypatch.setattr(Policy, "forward", only_one)
    taking = online.take_step

    def counted(*args: Any) -> None:
        Policy.training_run = True  # pyright: ignore[reportAttributeAccessIssue]
        try:
            taking(*args)
        finally:
            Policy.training_run = False  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(online, "take_step", counted)
    same(whole, run(tmp_path, "short", **fixed))
    assert [text.split("from here on ")[1].split(" instead")[0] for text in told(tmp_path, "short")] == [
        "packed, 2 prompt groups at a time",
        "packed, 1 prompt group at a time",
        "two_stage, 1 prompt group, 2 completions at a time",
        "two_stage, 1 prompt group, 1 completion at a time",
    ]
    never = Failing(own, lambda number: number > 10, RuntimeError(ON_CPU))
    monkeypatch.setattr(Policy, "forward", lambda self, *a, **k: never(self, *a, **k))
    with pytest.raises(RunError, match=r"max_new_tokens.*gradient_checkpointing.*--resume"):
        run(tmp_path, "none", train__steps=20, train__learning_rate=1e-3)


def test_the_smaller_plan_is_kept_over_a_resume(tmp_path, monkeypatch):
    """Saved with the checkpoint, whatever memory there is then; another groups_per_pass is the user's own answer."""
    failing = Failing(collect.reference_states, lambda number: number == 0)
    monkeypatch.setattr(collect, "reference_states", failing)
    run(tmp_path, "run", train__checkpoint_every=1)
    monkeypatch.undo()
    assert events(tmp_path / "run", RunStart)[0].plan["plan"]["groups"] is None
    plans: list[Any] = []
    own = collect.reference_states
    monkeypatch.setattr(collect, "reference_states", lambda job, r, plan: plans.append(plan) or own(job, r, plan))
    for asked, groups in ((None, 2), (3, 3)):
        plans.clear()
        more = {"train__steps": 4 if asked is None else 6} | ({} if asked is None else {"train__groups_per_pass": 3})
        tree = settings(tmp_path, **{"out": str(tmp_path / "run"), "train__checkpoint_every": 1} | SMALL | more)
        start(parse_config(tree), resume=True)
        assert {plan.groups for plan in plans} == {groups}
    assert len(events(tmp_path / "run", Resume)) == 2


def test_other_errors_are_not_taken_for_it(tmp_path, monkeypatch):
    failing = Failing(collect.reference_states, lambda number: number == 0, RuntimeError("shapes differ"))
    monkeypatch.setattr(collect, "reference_states", failing)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(tmp_path, "run")
