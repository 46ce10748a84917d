"""Held-out evaluation: its figures by hand, the same noise each time, no effect on training, resume-exact."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerances import FP32
from tests.training.small import OF_THE_MACHINE, events, settings, steps
from transformers import AutoModelForCausalLM

from kleash.errors import UsageError
from kleash.records import Reading, Step, Target
from kleash.report.log import load
from kleash.report.run import write_report
from kleash.runlog import Checkpoint, Evaluation, Notice, current, read
from kleash.tensors import Rollout
from kleash.training import evaluate, online, rolling
from kleash.training.api import start
from kleash.training.best import merit, within_leash
from kleash.training.progress import evaluation_line
from kleash.training.run import Run
from kleash.training.toml import parse_config
from kleash.training.train_config import TrainSpec

HELD_OUT = "t11 t12\nt13\nt8 t9 t10 t14\nt30\nt3 t5\n"  # the last one is trained on as well


def held(directory: Path, **changes: Any) -> dict[str, Any]:
    tree = settings(directory, data__held_out=str(directory / "held.txt"), **changes)
    (directory / "held.txt").write_text(HELD_OUT)
    return tree


def evaluations(run: Path) -> list[Evaluation]:
    return [event for event in current(read(run / "events.jsonl")) if isinstance(event, Evaluation)]


def of_the_run(records: list[Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in asdict(record).items() if k not in OF_THE_MACHINE} for record in records]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(directory).state_dict()


def kl_by_hand(policy: Any, reference: Any, rollout: Rollout) -> list[list[float]]:
    """Exact KL of each counted token, rows alone, from the models' own logits in float64."""
    found = []
    for row, n in enumerate(rollout.group.tolist()):
        prompt = rollout.prompt_ids[n][rollout.prompt_mask[n]]
        completion = rollout.completion_ids[row][rollout.mask[row]]
        ids = torch.cat([prompt, completion])[None]
        with torch.no_grad():
            p, q = (m(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1) for m in (policy, reference))
        found.append((p.exp() * (p - q)).sum(-1).tolist())
    return found


def rollouts_of_evaluations(monkeypatch) -> list[Rollout]:
    """Filled as a run goes on."""
    rollouts: list[Rollout] = []
    sample = rolling.sample

    def kept(*args, step, **options):
        rollout = sample(*args, step=step, **options)
        rollouts.extend([rollout] if step == evaluate.KEY else [])
        return rollout

    monkeypatch.setattr(rolling, "sample", kept)
    return rollouts


def test_the_figures_by_hand(tmp_path, monkeypatch):
    """Score, its clustered error, KL per sequence and token, length: from the texts the reward saw and the models."""
    rollouts = rollouts_of_evaluations(monkeypatch)
    tree = held(tmp_path, train__evaluate_samples=3, train__prompts_per_step=2, train__learning_rate=1e-2)
    run = start(parse_config(tree | {"rewards": [{"use": f"{tmp_path / 'rewards.py'}:even"}]})).path
    done = evaluations(run)
    assert [e.step for e in done] == [0, 2, 4]
    assert {(e.how, e.n_prompts, e.n_samples) for e in done} == {("3 samples a prompt, temperature 1", 5, 15)}
    per_evaluation = len(rollouts) // 3
    assert per_evaluation == 3, "5 prompts, 2 × 4 // 3 = 2 at a time"
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    policy = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step-000004")
    last, parts = done[-1], rollouts[-per_evaluation:]
    kls = [row for part in parts for row in kl_by_hand(policy, reference, part)]
    lengths = [len(row) for row in kls]
    sums = [math.fsum(row) for row in kls]
    ends = [int(i) for part in parts for i in part.truncated.tolist()]
    words = [
        [i for i in ids[mask].tolist() if i not in (0, 2)]  # the special ones have no text
        for part in parts
        for ids, mask in zip(part.completion_ids, part.mask, strict=True)
    ]
    scores = [sum(i % 2 == 0 for i in row) / 8 for row in words]
    mean = math.fsum(scores) / 15
    by_prompt = [math.fsum(s - mean for s in scores[i : i + 3]) for i in range(0, 15, 3)]
    error = math.sqrt(5 / 4 * math.fsum(r * r for r in by_prompt)) / 15
    assert last.score == pytest.approx(mean, abs=FP32)
    assert last.score_error == pytest.approx(error, abs=FP32)
    assert last.scores == {"even": last.score}
    assert last.kl_ref.value == pytest.approx(math.fsum(sums) / 15, abs=FP32)
    assert last.kl_ref_token.value == pytest.approx(math.fsum(sums) / sum(lengths), abs=FP32)
    assert last.kl_ref.n_prompts == 5
    assert last.kl_ref.invalid is None
    assert last.length == pytest.approx(sum(lengths) / 15, abs=FP32)
    assert last.truncated == pytest.approx(sum(ends) / 15, abs=FP32)
    assert done[0].kl_ref.value == 0.0, "policy and reference are the same weights before the first step"
    assert last.tokens_forward > 0


def test_training_is_not_touched(tmp_path):
    """The reward draws from numpy's generator: evaluating must leave it, and all else, as it was."""
    plain = start(parse_config(settings(tmp_path, out=str(tmp_path / "plain")))).path
    run = start(parse_config(held(tmp_path, train__evaluate_every=1))).path
    assert of_the_run(steps(run)) == of_the_run(steps(plain))
    one, other = (weights(r / "checkpoints" / "step-000004") for r in (run, plain))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [e.step for e in evaluations(run)] == [0, 1, 2, 3, 4]


def test_the_same_noise_each_time_in_batches_of_any_size(tmp_path):
    """An unmoved policy gives the same score again, the noise of the reward included, however it is batched."""
    found = []
    for n, size in ((1, None), (3, 1), (6, None)):
        tree = held(
            tmp_path, out=str(tmp_path / f"run-{n}"), train__prompts_per_step=n, train__learning_rate=1e-12,
            train__steps=2, train__evaluate_every=1, train__evaluate_samples=2,
        )  # fmt: skip
        if size:
            tree["train"]["groups_per_pass"] = size
        found += evaluations(start(parse_config(tree)).path)
    assert len(found) == 9
    assert len({(e.score, e.score_error, e.length, e.truncated) for e in found}) == 1
    assert found[0].score_error > 0


def test_greedy_is_the_likeliest_text(tmp_path, monkeypatch):
    rollouts = rollouts_of_evaluations(monkeypatch)
    run = start(parse_config(held(tmp_path, train__evaluate_samples="greedy", train__steps=2))).path
    policy = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step-000002")
    rollout = rollouts[-1]
    assert rollout.n_prompts == 5
    for row in range(5):
        ids = rollout.prompt_ids[row][rollout.prompt_mask[row]]
        for token in rollout.completion_ids[row][rollout.mask[row]]:
            with torch.no_grad():
                assert int(policy(ids[None]).logits[0, -1].argmax()) == int(token)
            ids = torch.cat([ids, token[None]])
    last = evaluations(run)[-1]
    assert last.greedy
    assert last.how == "the likeliest token each time (greedy)"
    assert "top_k = 1" in last.kl_ref.invalid


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("where", ["_tell", "evaluate", "_save"])
def test_resumed_equals_uninterrupted(tmp_path, monkeypatch, where):
    """Dying after step 2's updates, inside the evaluation after step 3, or between it and its checkpoint."""
    changes = {"train__evaluate_every": 1, "train__steps": 5, "train__checkpoint_every": 2}
    whole = start(parse_config(held(tmp_path, **changes, out=str(tmp_path / "whole")))).path
    config = parse_config(held(tmp_path, **changes))
    calls, kept = [], getattr(online, where)

    def die(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == {"_tell": 3, "evaluate": 4, "_save": 2}[where]:
            raise KilledError
        return kept(*args)

    monkeypatch.setattr(online, where, die)
    monkeypatch.setattr(online, "end_badly", lambda *args: None)
    with pytest.raises(KilledError):
        start(config)
    monkeypatch.undo()
    run = start(config, resume=True).path
    assert of_the_run(evaluations(run)) == of_the_run(evaluations(whole))
    assert of_the_run(steps(run)) == of_the_run(steps(whole))
    assert (run / "best").resolve().name == (whole / "best").resolve().name


def test_an_evaluation_that_failed_is_made_up_for(tmp_path):
    """The reward fails on held-out prompts only, after the step: the checkpoint is saved, and the resume evaluates."""
    tree = held(tmp_path, train__checkpoint_every=2, train__evaluate_every=1)
    (tmp_path / "rewards.py").write_text(
        "calls = 0\ndef picky(prompts, completions):\n    global calls\n    calls += 't30' in prompts\n"
        "    return [1 / (calls < 2)] * len(prompts)\n"
    )
    tree["rewards"] = [{"use": f"{tmp_path / 'rewards.py'}:picky"}]
    with pytest.raises(Exception, match="picky"):
        start(parse_config(tree))
    assert [c.step for c in events(tmp_path / "run", Checkpoint)] == [1]
    (tmp_path / "rewards.py").write_text("def picky(prompts, completions):\n    return [1.0] * len(prompts)\n")
    run = start(parse_config(tree), resume=True).path
    assert [e.step for e in evaluations(run)] == [0, 1, 2, 3, 4]


# ── best ────────────────────────────────────────────────────────────────────────────────────────────────


def reading(value: float) -> Reading:
    return Reading(
        kind="kl_ref", value=value, unit="nats/sequence", estimator="exact", n_prompts=2, n_sequences=2, n_tokens=9
    )


def a_step(number: int, score: float, kl: float) -> Step:
    return Step(step=number, beta=0.1, score=score, kl_ref=reading(kl), target="4 nats/sequence")


def an_evaluation(number: int, score: float | None, kl: float, **changes: Any) -> Evaluation:
    given = {"how": "x", "n_prompts": 2, "n_samples": 2, "target": "4 nats/sequence", "kl_ref": reading(kl)}
    return Evaluation(step=number, score=score, **given | changes)


def test_merit_is_the_held_out_score_within_the_leash():
    history = [a_step(0, 0.9, 1.0), a_step(1, 0.9, 4.9)]
    own = an_evaluation(2, 0.3, 4.9)
    assert merit(history, [], None, held_out=False) == pytest.approx(0.9)
    assert merit(history, [own], None, held_out=True) == 0.3
    assert merit(history, [an_evaluation(1, 0.5, 1.0)], None, held_out=True) is None, "not of this checkpoint"
    assert merit(history, [an_evaluation(2, 0.3, 5.1)], None, held_out=True) is None, (
        "beyond 1.25 × 4 on held-out prompts"
    )
    assert merit([*history[:1], a_step(1, 0.9, 5.1)], [own], None, held_out=True) is None, "on the training prompts"
    assert merit(history, [an_evaluation(2, 0.3, 99.0, greedy=True)], None, held_out=True) == 0.3
    assert merit(history, [an_evaluation(2, None, 1.0)], None, held_out=True) is None
    assert merit([], [], None, held_out=False) is None
    assert within_leash(an_evaluation(2, 0.3, 99.0, target=None), None)


def test_merit_keeps_to_the_budget_on_both_sets_of_prompts():
    budget, history = Target(3.0, "nats/sequence"), [a_step(0, 0.9, 2.9)]
    assert merit(history, [], budget, held_out=False) == 0.9
    assert merit(history, [an_evaluation(1, 0.3, 2.9)], budget, held_out=True) == 0.3
    assert merit(history, [an_evaluation(1, 0.3, 3.1)], budget, held_out=True) is None
    assert merit([a_step(0, 0.9, 3.1)], [], budget, held_out=False) is None
    assert merit(history, [an_evaluation(1, 0.3, 3.1)], Target(9.0, "nats/sequence"), held_out=True) == 0.3


def test_best_is_the_checkpoint_with_the_highest_held_out_score(tmp_path):
    tree = held(tmp_path, train__steps=6, train__checkpoint_every=1, train__learning_rate=3e-2)
    tree["kl"] = {"beta": 0.0}
    run = start(parse_config(tree)).path
    done = {e.step: e.score for e in evaluations(run) if e.step > 0}
    assert len(set(done.values())) == 6
    assert (run / "best").resolve().name == f"step-{max(done, key=lambda step: done[step]):06d}"


# ── said to people, and refused ─────────────────────────────────────────────────────────────────────────


def test_what_is_shown(tmp_path):
    said: list[str] = []
    from kleash.training.progress import Progress

    progress = Progress()
    progress.notice = said.append  # type: ignore[method-assign]
    run = start(parse_config(held(tmp_path)), progress=progress).path
    assert any(line.startswith("held out   5 from ") and "every 2 steps: 1 sample a prompt" in line for line in said)
    assert "note       1 of the held-out prompts are trained on as well" in said
    assert [line for line in said if line.startswith("held out after")] == [
        evaluation_line(e) for e in evaluations(run)
    ]
    page = write_report(run).read_text()
    assert "Held-out score" in page
    assert "Held-out KL to the reference" in page
    assert len(load(run).evaluations) == 3


def test_the_line_in_full():
    done = an_evaluation(50, 0.612, 3.2, score_error=0.031, length=21.04, truncated=0.03, how="greedy")
    assert evaluation_line(done) == (
        "held out after 50 steps  score 0.612±0.031  KL 3.20 nats/sequence (target 4)  len 21.0  cut 3%  "
        "2 prompts, greedy"
    )


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        (None, "prompt", r"data.held_out: there is no prompt file"),
        ("", "prompt", "data.held_out: there are no prompts"),
        ("t3 " * 60, "prompt", r"data.held_out: prompt 0 has 60 tokens; with max_new_tokens = 8"),
    ],
)
def test_held_out_prompts_that_cannot_be_meant(tmp_path, text, column, said):
    tree = held(tmp_path)
    (tmp_path / "held.txt").unlink()
    if text is not None:
        (tmp_path / "held.txt").write_text(text)
    with pytest.raises(UsageError, match=said):
        start(parse_config(tree))


def test_a_column_that_only_the_training_prompts_have(tmp_path):
    tree = held(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "t{i + 4}", "n": {i}}}\n' for i in range(4)))
    (tmp_path / "rewards.py").write_text("def needs(completions, n):\n    return [float(i) for i in n]\n")
    tree["data"]["prompts"] = str(tmp_path / "p.jsonl")
    tree["rewards"] = [{"use": f"{tmp_path / 'rewards.py'}:needs"}]
    with pytest.raises(UsageError, match=r"data.held_out: reward 'needs' needs `n`"):
        start(parse_config(tree), check_only=True)


def test_changed_held_out_prompts_are_refused_on_resume(tmp_path):
    start(parse_config(held(tmp_path, train__steps=2)))
    tree = held(tmp_path, train__steps=3)
    (tmp_path / "held.txt").write_text("t4\n")
    with pytest.raises(UsageError, match=r"data.held_out: the prompts are not the ones .*: 5 with .* 1 with"):
        start(parse_config(tree), resume=True)
    assert start(parse_config(tree), resume=True, force=True).finished


def test_scores_of_other_held_out_prompts_do_not_decide_the_best(tmp_path):
    """They may be higher for the prompts' sake: the best so far is void, and the next checkpoint is the best of one."""
    start(parse_config(held(tmp_path, train__steps=2)))
    run = Run(tmp_path / "run")
    assert run.best.path.resolve().name == "step-000002"
    tree = held(tmp_path, train__steps=4)
    (tmp_path / "held.txt").write_text("t4\n")
    tree["rewards"] = [{"use": f"{tmp_path / 'rewards.py'}:low"}]
    with (tmp_path / "rewards.py").open("a") as file:
        file.write("\ndef low(completions, **columns):\n    return [-9.0] * len(completions)\n")
    start(parse_config(tree), resume=True, force=True)
    (void,) = [n for n in events(tmp_path / "run", Notice) if n.what == "best_void"]
    assert void.text.startswith("2 of the evaluations so far are of other held-out prompts")
    assert run.best.path.resolve().name == "step-000004"
    assert len({e.prompts for e in evaluations(tmp_path / "run")}) == 2


@pytest.mark.parametrize("given", [{"evaluate_every": 0}, {"evaluate_every": 30}, {"evaluate_every": 75}])
def test_a_cadence_that_misses_the_checkpoints(given):
    with pytest.raises(UsageError, match=r"must be a multiple or a divisor of train.checkpoint_every = 50"):
        TrainSpec(**given)
    assert {TrainSpec(evaluate_every=n).evaluate_every for n in (1, 25, 50, 100)} == {1, 25, 50, 100}


@pytest.mark.parametrize("name", ["evaluate_every", "evaluate_samples"])
def test_a_cadence_without_held_out_prompts(tmp_path, name):
    with pytest.raises(UsageError, match=r"need data.held_out"):
        parse_config(settings(tmp_path, **{f"train__{name}": 2}))
    with pytest.raises(UsageError, match="must be at least 1"):
        TrainSpec(evaluate_samples=0)
