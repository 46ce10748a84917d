"""Runs whose reference follows the policy: the KL starts anew, the way from the first goes on, a resume is exact."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tabular import enumerate_sequences, random_logits, sequence_logprobs
from tests.tolerances import EXACT
from tests.training.small import events, settings
from tests.training.test_recovery import broken_in
from tests.training.test_resume import LORA, KilledError, records, same_run

from kleash.errors import RunError, UsageError
from kleash.records import Reading, Step, Target
from kleash.report.run import write_report
from kleash.runlog import Checkpoint, Evaluation, Notice, ReferenceChange, current, read
from kleash.training import online
from kleash.training.api import start
from kleash.training.budget import exceeded
from kleash.training.moving import stalled_for
from kleash.training.run import Run
from kleash.training.toml import parse_config

RESET = {"model__reference_update": {"kind": "reset", "every": 2}}
EMA = {"model__reference_update": {"kind": "ema", "rate": 0.5}}
FAST = {"train__learning_rate": 1e-2, "train__warmup_updates": 0, "train__steps": 5}


def moves(run: Run) -> list[ReferenceChange]:
    return [e for e in current(read(run.path / "events.jsonl")) if isinstance(e, ReferenceChange)]


@pytest.mark.parametrize("changes", [{}, LORA, {"algorithm__minibatches": 3}], ids=["full", "lora", "minibatches"])
def test_after_a_reset_the_policy_is_its_own_reference(tmp_path, changes):
    run = start(parse_config(settings(tmp_path, **FAST | changes | RESET)))
    kl = [s.kl_ref.value for s in run.steps if s.kl_ref]
    origin = [s.kl_origin and s.kl_origin.value for s in run.steps]
    assert [value == 0 for value in kl] == [True, False, True, False, True, False]
    assert origin[:2] == [None, None], "until the first move kl_ref says it"
    assert all(value is not None and value > 0 for value in origin[2:])
    assert origin[4] > kl[3]
    assert [s.kl_origin_token is None for s in run.steps] == [value is None for value in origin]
    assert [(m.step, m.kind, m.share) for m in moves(run)] == [(2, "reset", 1.0), (4, "reset", 1.0)]
    assert len({str(m.fingerprint) for m in moves(run)}) == 2
    said = [n.text for n in events(run.path, Notice) if n.what == "reference_moved"]
    assert said[1] == (
        "the reference is now the policy after 4 steps (reset 2): kl_ref and the target of 0.5 nats/sequence are "
        "measured from it, kl_origin goes on from the first one"
    )
    page = write_report(run.path).read_text()
    assert "from the first reference" in page


def test_the_origin_is_the_reference_that_never_moves(tmp_path):
    """Without a penalty the reference does not touch training: kl_origin is kl_ref of a run whose reference stays."""
    still = settings(tmp_path, **FAST, out=str(tmp_path / "still"))
    follows = settings(tmp_path, **FAST, **EMA)
    still["kl"] = follows["kl"] = {"penalty": "none"}
    truth = [s.kl_ref.value for s in start(parse_config(still)).steps if s.kl_ref]
    run = start(parse_config(follows))
    found = [(s.kl_origin or s.kl_ref).value for s in run.steps]  # type: ignore[union-attr]
    assert found == truth
    assert all(s.kl_ref.value < s.kl_origin.value for s in run.steps[2:])  # type: ignore[union-attr]
    assert len(moves(run)) == 4
    assert sum(n.what == "reference_moved" for n in events(run.path, Notice)) == 1, "an average is told of once"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("law", [EMA, RESET], ids=["ema", "reset"])
def test_resumed_equals_uninterrupted(tmp_path, monkeypatch, lora, law):
    changes = FAST | law | (LORA if lora else {}) | {"train__steps": 6}
    start(parse_config(settings(tmp_path, **changes, out=str(tmp_path / "whole"))))
    config = parse_config(settings(tmp_path, **changes))
    tell = online._tell

    def die(state: Any, record: Any, *rest: Any) -> None:
        if record.step == 5:
            raise KilledError
        tell(state, record, *rest)

    monkeypatch.setattr(online, "_tell", die)
    with pytest.raises(KilledError):
        start(config)
    monkeypatch.undo()
    assert [c.step for c in events(tmp_path / "run", Checkpoint)] == [2, 4]
    np.random.seed(99)
    torch.manual_seed(99)
    start(config, resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")
    whole, resumed = (moves(Run(tmp_path / name)) for name in ("whole", "run"))
    assert whole == resumed, "the same moves to the same fingerprints"


def test_an_interrupted_decision_is_made_up_for(tmp_path, monkeypatch):
    """The evaluation before the move fails: the checkpoint that saves the step was written before the move."""
    changes = FAST | RESET | {"data__held_out": str(tmp_path / "held.txt"), "train__checkpoint_every": 2}
    tree = settings(tmp_path, **changes)
    (tmp_path / "held.txt").write_text("t11 t12\n")
    start(parse_config(tree | {"out": str(tmp_path / "whole")}))
    evaluate = online.evaluate

    def fails(job: Any, step: int, *rest: Any) -> Any:
        if step == 2:
            raise RunError("the judge is out")
        return evaluate(job, step, *rest)

    monkeypatch.setattr(online, "evaluate", fails)
    with pytest.raises(RunError):
        start(parse_config(tree))
    monkeypatch.undo()
    assert moves(Run(tmp_path / "run")) == []
    run = start(parse_config(tree), resume=True)
    assert records(run.path) == records(tmp_path / "whole")
    assert moves(run) == moves(Run(tmp_path / "whole"))


def test_a_rollback_brings_the_reference_back_too(tmp_path, monkeypatch):
    changes = FAST | EMA | {"train__steps": 8}
    broken_in(monkeypatch, lambda step, rate: step in (3, 4, 5) and rate > 6e-3)
    run = start(parse_config(settings(tmp_path, **changes)))
    assert run.finished
    assert [m.step for m in moves(run)] == [1, 2, 3, 4, 5, 6, 7]
    first, again = [e for e in read(run.path / "events.jsonl") if isinstance(e, Step) and e.step == 2]
    assert first.kl_ref == again.kl_ref
    assert first.kl_origin == again.kl_origin


def test_a_rollback_to_the_start_brings_the_first_reference_back(tmp_path, monkeypatch):
    changes = FAST | EMA | {"train__checkpoint_every": 50, "train__steps": 6}
    broken_in(monkeypatch, lambda step, rate: step in (2, 3, 4) and rate > 6e-3)
    run = start(parse_config(settings(tmp_path, **changes)))
    assert run.finished
    assert [s.kl_origin is None for s in run.steps] == [True] + [False] * 6
    assert run.steps[0].kl_ref.value == 0  # type: ignore[union-attr]
    assert [m.step for m in moves(run)] == [1, 2, 3, 4, 5]


def test_what_was_saved_is_what_is_put_back(tmp_path):
    start(parse_config(settings(tmp_path, **FAST | RESET | {"train__steps": 4})))
    file = tmp_path / "run" / "checkpoints" / "step-000004" / "reference.safetensors"
    tensors = load_file(file)
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, file)
    longer = settings(tmp_path, **FAST | RESET | {"train__steps": 6})
    with pytest.raises(RunError, match=r"the reference that was saved is not the one that the run had \(the weights"):
        start(parse_config(longer), resume=True)


def test_to_follow_otherwise_has_to_be_meant(tmp_path):
    start(parse_config(settings(tmp_path, **FAST | RESET | {"train__steps": 4})))
    ema = parse_config(settings(tmp_path, **FAST | EMA | {"train__steps": 6}))
    with pytest.raises(UsageError, match=r"reference_update goes from every 2, kind reset to rate 0.5, .*--loosen"):
        start(ema, resume=True)
    still = parse_config(settings(tmp_path, **FAST | {"train__steps": 6}))
    with pytest.raises(UsageError, match=r"reference has moved 1 times, and without model.reference_update"):
        start(still, resume=True)
    run = start(ema, resume=True, loosen=True)
    assert [m.kind for m in moves(run)] == ["reset", "ema", "ema"]


def test_another_first_reference_starts_anew(tmp_path):
    from tests.models import build

    small = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    other = build.checkpoint(tmp_path / "other", seed=5, **small)
    start(parse_config(settings(tmp_path, **FAST | RESET | {"train__steps": 4})))
    tree = settings(tmp_path, **FAST | RESET | {"train__steps": 6, "model__reference": str(other)})
    run = start(parse_config(tree), resume=True, force=True)
    assert [(m.kind, m.step) for m in moves(run)] == [("reset", 2), ("forced", 4)]
    assert run.steps[4].kl_origin is None
    assert run.steps[4].kl_ref.value > 0  # type: ignore[union-attr]


# ── when ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stall_is_counted_since_the_best_score_and_the_last_move():
    done = [Evaluation(step=s, how="", n_prompts=1, n_samples=1, score=v) for s, v in [(0, 1.0), (2, 3.0), (4, 2.0)]]
    assert stalled_for(4, 0, [], done) == 2
    assert stalled_for(4, 4, [], done) == 0, "what came before the last move counts no more"
    assert stalled_for(9, 0, [], []) == 0, "nothing measured is no stall"
    assert stalled_for(9, 0, [], [Evaluation(step=2, how="", n_prompts=1, n_samples=1)]) == 0
    history = [Step(step=n, beta=0.1, score=score) for n, score in enumerate([0.0, 1.0, 1.0, 0.0, 0.0])]
    assert stalled_for(5, 0, history, None) == 2, "the smoothed score rose until three steps were done"


def test_a_run_that_stalls_resets(tmp_path):
    law = {"model__reference_update": {"kind": "stall", "patience": 2}}
    tree = settings(tmp_path, **FAST | law | {"train__steps": 7})
    tree["rewards"] = [{"use": "regex", "args": {"pattern": "no such text"}}]
    assert [(m.step, m.kind) for m in moves(start(parse_config(tree)))] == [(3, "stall"), (5, "stall")]


# ── what it means ───────────────────────────────────────────────────────────────────────────────────────


def test_resets_compose():
    """K optima of E r − β KL(π‖the last optimum) are π₀ exp(K r/β): the whole way is that of β/K."""
    e, beta, K = enumerate_sequences(3, 3, eos=0), 0.7, 5
    first = sequence_logprobs(random_logits(3, e).detach(), e)
    reward = torch.rand(len(first), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    reference = first
    for _ in range(K):
        reference = (reference + reward / beta).log_softmax(0)
    whole = (first + reward * K / beta).log_softmax(0)
    assert float((reference - whole).abs().max()) < EXACT * 10
    # And each optimum is one: the objective's gradient in the logits of the sequences vanishes there.
    logits = (first + reward / beta).requires_grad_()
    log_p = logits.log_softmax(0)
    (log_p.exp() * (reward - beta * (log_p - first))).sum().backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < EXACT


def test_the_budget_is_of_the_whole_way():
    def reading(kind: Any, value: float) -> Reading:
        return Reading(
            kind=kind, value=value, unit="nats/sequence", estimator="exact", n_prompts=2, n_sequences=4, n_tokens=9
        )

    budget = Target(3.0, "nats/sequence")
    step = Step(step=7, beta=0.1, kl_ref=reading("kl_ref", 0.1), kl_origin=reading("kl_origin", 3.5))
    assert exceeded(budget, step) == "kl_origin is 3.5 nats/sequence at step 7, above kl.budget = 3 nats/sequence"
    assert exceeded(budget, Step(step=7, beta=0.1, kl_ref=reading("kl_ref", 0.1))) is None
