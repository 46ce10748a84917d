"""Running out of memory in the other places: what can be done again is, and the rest ends with one clear sentence."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small import OF_THE_MACHINE, events, settings, steps
from tests.training.test_careful import ON_CPU, Failing, run, same, told
from transformers import AutoModelForCausalLM

from kleash.errors import RunError
from kleash.models import probe, turns
from kleash.runlog import Evaluation, RunStart
from kleash.training import evaluate, preflight, setup
from kleash.training.api import start
from kleash.training.stepping import step_whole
from kleash.training.toml import parse_config

NONE_LEFT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
ENVIRONMENT = """
import torch

def two(prompts, generate):
    ids = [list(new) for new in generate([[] for _ in prompts], max_new_tokens=2)]
    for row, new in enumerate(generate(ids)):
        ids[row] += new
    return [{"ids": i, "mask": [True] * len(i)} for i in ids]

def holds(prompts, generate):
    raise torch.OutOfMemoryError("CUDA out of memory in the tool's own model")
"""


def weights_and_optimizer() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=True)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights, optimizer


def test_an_optimizer_s_state_that_did_not_fit_is_made_again(monkeypatch):
    """The second moment of the second weight fails; what came before is taken away, and the step is the usual one."""
    expected, usual = weights_and_optimizer()
    usual.step()
    weights, optimizer = weights_and_optimizer()
    failing = Failing(torch.zeros_like, lambda number: number == 3, NONE_LEFT)
    monkeypatch.setattr(torch, "zeros_like", failing)
    step_whole(optimizer)
    assert failing.calls > 4
    for weight, other in zip(weights, expected, strict=True):
        assert torch.equal(weight, other)
        for name, value in optimizer.state[weight].items():
            assert torch.equal(value, usual.state[other][name])


def test_an_optimizer_without_room_moves_nothing_and_says_so(monkeypatch):
    weights, optimizer = weights_and_optimizer()
    before = [weight.detach().clone() for weight in weights]
    monkeypatch.setattr(torch, "zeros_like", Failing(torch.zeros_like, lambda number: number % 4 == 3, NONE_LEFT))
    with pytest.raises(RunError, match=r"while the optimizer moved the weights.*model\.adapter.*--resume"):
        step_whole(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))
    assert not optimizer.state


def test_a_step_that_has_begun_is_not_done_twice(monkeypatch):
    """Memory that runs out with weights moved already: the second try would move them again."""
    weights, optimizer = weights_and_optimizer()
    own = optimizer.step

    def half(*_: Any) -> None:
        own()
        raise NONE_LEFT

    monkeypatch.setattr(optimizer, "step", half)
    with pytest.raises(RunError, match="while the optimizer moved"):
        step_whole(optimizer)
    moved, once = weights_and_optimizer()
    once.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, moved, strict=True))


def test_other_errors_of_an_optimizer_are_raised(monkeypatch):
    _, optimizer = weights_and_optimizer()
    monkeypatch.setattr(optimizer, "step", Failing(optimizer.step, lambda number: True, RuntimeError("shapes")))
    with pytest.raises(RuntimeError, match="shapes"):
        step_whole(optimizer)


def test_the_checks_are_done_again_by_a_smaller_plan(tmp_path, monkeypatch):
    whole = run(tmp_path, "whole")
    monkeypatch.setattr(preflight, "_look", Failing(preflight._look, lambda number: number == 0, NONE_LEFT))
    same(whole, run(tmp_path, "short"))
    assert events(tmp_path / "short", RunStart)[0].plan["plan"]["groups"] == 2
    never = Failing(preflight._look, lambda number: True, MemoryError())
    monkeypatch.setattr(preflight, "_look", never)
    with pytest.raises(RunError, match=r"\(MemoryError\) in the checks before the first step.*model\.adapter"):
        run(tmp_path, "never")


@pytest.mark.parametrize(
    ("part", "sentence"), [("load", r"the policy; .*dtype"), ("build_reference", r"the reference; .*adapter")]
)
def test_loading_without_room_says_what_would_help(tmp_path, monkeypatch, part, sentence):
    monkeypatch.setattr(setup, part, Failing(getattr(setup, part), lambda number: True, RuntimeError(ON_CPU)))
    with pytest.raises(RunError, match=f"memory ran out .* while loading {sentence}"):
        run(tmp_path, "run")


def test_weights_that_do_not_fit_are_not_taken_for_a_broken_checkpoint(tmp_path, monkeypatch):
    own = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", Failing(own, lambda number: True, RuntimeError(ON_CPU))
    )
    with pytest.raises(RunError, match=r"memory ran out .* while loading the policy"):
        run(tmp_path, "run")


def test_a_path_that_ran_out_in_the_probe_is_not_one_the_model_cannot_go(tmp_path, monkeypatch):
    failing = Failing(probe._seen, lambda number: number == 2, NONE_LEFT)
    monkeypatch.setattr(probe, "_seen", failing)
    with pytest.raises(RunError, match=r"memory ran out .* while loading the policy"):
        run(tmp_path, "run")


@pytest.mark.parametrize("part", ["roll", "_seen"])
def test_an_evaluation_is_done_again(tmp_path, monkeypatch, part):
    (tmp_path / "held.txt").write_text("t4 t5\nt6 t8\nt9\n")
    held = {"data__held_out": str(tmp_path / "held.txt"), "train__steps": 1}
    whole = run(tmp_path, "whole", **held)
    monkeypatch.setattr(evaluate, part, Failing(getattr(evaluate, part), lambda number: number == 0, NONE_LEFT))
    same(whole, run(tmp_path, "short", **held))
    assert len(told(tmp_path, "short")) == 1
    pairs = zip(events(tmp_path / "whole", Evaluation), events(tmp_path / "short", Evaluation), strict=True)
    for one, two in pairs:
        assert (one.score, one.length, one.n_samples) == (two.score, two.length, two.n_samples)


def home(tmp_path: Path, function: str, out: str) -> dict[str, Any]:
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    use = f"{tmp_path / 'env.py'}:{function}"
    return settings(tmp_path, data__rollout=use, out=str(tmp_path / out), train__steps=2)


def test_a_loop_s_generate_takes_fewer_episodes_at_a_time(tmp_path, monkeypatch):
    """The loop itself runs once: what it has done in the world is not done twice. The step's numbers are the same."""
    start(parse_config(home(tmp_path, "two", "whole")))
    failing = Failing(turns.drawn, lambda number: number in (2, 3), NONE_LEFT)
    monkeypatch.setattr(turns, "drawn", failing)
    start(parse_config(home(tmp_path, "two", "short")))
    for one, two in zip(steps(tmp_path / "whole"), steps(tmp_path / "short"), strict=True):
        assert one.score == two.score
        assert one.length == two.length
        assert {*asdict(one)} - {*OF_THE_MACHINE} == {*asdict(two)} - {*OF_THE_MACHINE}
    (text,) = told(tmp_path, "short")
    assert "memory ran out in generate: from here on packed, a whole minibatch at a time, sampling 1 prompt" in text


def test_generate_without_room_for_one_episode_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "drawn", Failing(turns.drawn, lambda number: number > 1, NONE_LEFT))
    with pytest.raises(RunError, match=r"data\.rollout: two: memory ran out .* with one episode at a time"):
        start(parse_config(home(tmp_path, "two", "run")))


def test_a_loop_that_runs_out_itself_is_told_how_to_hold_less(tmp_path):
    with pytest.raises(RunError, match=r"data\.rollout: holds: it raised OutOfMemoryError.*prompts_per_step lower"):
        start(parse_config(home(tmp_path, "holds", "run")))
