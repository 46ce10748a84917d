"""Several references with weights: the KL is Σ w KL, and its optimum the geometric mixture. Another precision."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.tabular import enumerate_sequences, random_logits, sequence_logprobs
from tests.tolerances import EXACT, FP32, LOOP
from tests.training.enumerated import (
    BETA,
    Setting,
    gradient,
    logits_of,
    pairs,
    run_step,
    scores,
    small_policy,
    token_logprobs,
)
from tests.training.small import settings
from tests.training.test_resume import records

from kleash.algorithms import RLOO
from kleash.errors import RunError, UsageError
from kleash.kl.penalties import Exact, InReward
from kleash.models.following import Reset
from kleash.models.frozen import Frozen
from kleash.models.load import load
from kleash.models.reference import build_reference
from kleash.models.several import Several
from kleash.models.spec import Adapter, ModelSpec
from kleash.training.api import start
from kleash.training.progress import Progress
from kleash.training.toml import parse_config

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
WEIGHTS = (0.3, 0.7)


@pytest.mark.parametrize("penalty", [Exact(), pytest.param(InReward(), marks=pytest.mark.slow)], ids=["exact", "k1"])
def test_the_gradient_is_that_of_the_weighted_sum(penalty, tmp_path, monkeypatch):
    """Through the real loop, over every pair of sequences; a mixture normalised at each token would not be it."""
    policy, references = small_policy(1), [small_policy(2), small_policy(3)]
    log_p = token_logprobs(logits_of(policy)).sum(1)
    log_q = [token_logprobs(logits_of(one)).sum(1).detach() for one in references]
    kl = sum(w * (log_p.exp() * (log_p - q)).sum() for w, q in zip(WEIGHTS, log_q, strict=True))
    truth = -gradient((log_p.exp() * scores()).sum() - BETA * kl, policy) / 3
    several = Several({str(n): Frozen(one, {}) for n, one in enumerate(references)}, WEIGHTS)
    spy = run_step(Setting(RLOO(group_size=2), penalty), policy, several, pairs(policy), tmp_path, monkeypatch)
    found = spy.seen[0]
    assert float((found - truth).norm() / truth.norm()) < LOOP
    mixed = sum(w * logits_of(one).detach() for w, one in zip(WEIGHTS, references, strict=True)).log_softmax(-1)
    log_p = token_logprobs(logits_of(policy)).sum(1)
    wrong = -gradient((log_p.exp() * (scores() - BETA * (log_p - token_logprobs(mixed).sum(1)))).sum(), policy) / 3
    assert float((wrong - truth).norm() / truth.norm()) > 100 * LOOP


def test_the_optimum_is_the_geometric_mixture():
    """E r − β Σ w KL(π‖ref_i) is stationary at Π ref_i^w exp(r/β)/Z, and β log Z there; without r Σ w KL = −log Z."""
    e, beta = enumerate_sequences(3, 3, eos=0), 0.7
    logs = [sequence_logprobs(random_logits(seed, e).detach(), e) for seed in (5, 6)]
    reward = torch.rand(len(logs[0]), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    mixed = sum(w * q for w, q in zip(WEIGHTS, logs, strict=True))
    for r in (reward, torch.zeros_like(reward)):
        free = (mixed + r / beta).requires_grad_()
        log_p = free.log_softmax(0)
        kl = sum(w * (log_p.exp() * (log_p - q)).sum() for w, q in zip(WEIGHTS, logs, strict=True))
        value = (log_p.exp() * r).sum() - beta * kl
        value.backward()
        assert float(free.grad.abs().max()) < EXACT  # type: ignore[union-attr]
        assert float(value.detach()) == pytest.approx(beta * float((mixed + r / beta).logsumexp(0)), abs=EXACT)


def two(directory: Path, weights: tuple[float, float] = (0.25, 0.75), **changes: Any) -> dict[str, Any]:
    other = directory / "other"
    if not other.exists():
        build.checkpoint(other, seed=5, **SMALL)
    names = ["start", str(other)]
    reference = [{"model": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    return settings(directory, **changes, model__reference=reference)


def test_a_run_on_two_references(tmp_path):
    """At step 0 the KL to the first is 0, so the reading is the other's times its weight; passes add up."""
    alone = settings(tmp_path, train__steps=1, out=str(tmp_path / "alone"))
    tree = two(tmp_path, train__steps=2)
    alone["model"]["reference"] = str(tmp_path / "other")
    truth = start(parse_config(alone)).steps[0]
    run = start(parse_config(tree))
    assert run.steps[0].kl_ref.value == pytest.approx(0.75 * truth.kl_ref.value, rel=FP32)
    passes = two(tmp_path, train__steps=2, train__groups_per_pass=1, out=str(tmp_path / "passes"))
    for one, other in zip(run.steps, start(parse_config(passes)).steps, strict=True):
        assert one.kl_ref.value == pytest.approx(other.kl_ref.value, rel=FP32)
    assert str(sorted(run.events[0].fingerprints["reference"])[0]).endswith("other × 0.75")


def test_resumed_each_reference_is_held_to(tmp_path):
    whole = start(parse_config(two(tmp_path, train__steps=4, out=str(tmp_path / "whole"))))
    start(parse_config(two(tmp_path, train__steps=2)))
    run = start(parse_config(two(tmp_path, train__steps=4)), resume=True)
    assert records(run.path)[2:] == records(whole.path)[2:]
    with pytest.raises(RunError, match=r"the references changed: start × 0.25, .*other × 0.75 before, start × 0.5, "):
        start(parse_config(two(tmp_path, (0.5, 0.5), train__steps=6)), resume=True)
    build.checkpoint(tmp_path / "other", seed=6, **SMALL)
    with pytest.raises(RunError, match=r"other × 0.75: the weights changed"):
        start(parse_config(two(tmp_path, train__steps=6)), resume=True)


@pytest.mark.parametrize(
    ("model", "kl", "said"),
    [
        ({"reference": [{"model": "start", "weight": 1.0}]}, {}, "at least two, each named once"),
        ({"reference": [{"model": "start", "weight": 0.5}] * 2}, {}, "at least two, each named once"),
        ({"reference": [{"model": "start", "weight": 0.5}, {"model": "m", "weight": 0.6}]}, {}, "add up to 1.1, and"),
        ({"reference": [{"model": "start", "weight": 0}, {"model": "m", "weight": 1}]}, {}, "must be above 0"),
        ({"reference": [{"model": " ", "weight": 0.5}, {"model": "m", "weight": 0.5}]}, {}, "a model is empty"),
        ({"reference_update": {"kind": "reset", "every": 2}}, {}, "moves one reference"),
        ({}, {"penalty": {"kind": "in_loss", "estimator": "k3"}}, "needs one reference, whose probabilities add up"),
        ({}, {"penalty": "chi2"}, "needs one reference"),
    ],
)
def test_what_cannot_be_meant(tmp_path, model, kl, said):
    tree = two(tmp_path)
    tree["model"] |= model
    tree["kl"] = kl
    with pytest.raises(UsageError, match=said):
        parse_config(tree)


# ── another precision ───────────────────────────────────────────────────────────────────────────────────


def test_a_reference_in_bf16_makes_a_floor_that_is_told(tmp_path):
    said: list[str] = []
    progress = Progress()
    progress.notice = said.append  # type: ignore[method-assign]
    run = start(parse_config(settings(tmp_path, model__reference_dtype="bfloat16")), progress=progress)
    assert run.finished
    assert 0 < run.steps[0].kl_ref.value < 1e-2
    (line,) = [line for line in said if line.startswith("the reference's own rounding is ")]
    assert line.endswith(" nats/token: a KL of that size means nothing")
    assert float(line.split()[5]) > 0
    assert run.events[0].fingerprints["reference"]["dtype"] == "bfloat16"
    assert any(line.startswith("reference  start, weights ") and line.endswith("… in bfloat16") for line in said)


def test_bf16_states_are_those_of_the_rounded_weights(tmp_path):
    spec = ModelSpec(str(build.checkpoint(tmp_path / "m")), reference_dtype="bfloat16")
    loaded, sample = load(spec), build.rollout()
    reference = build_reference(spec, loaded)
    states = reference.states(sample)
    assert states.hidden.dtype == states.head.weight.dtype == torch.bfloat16
    assert loaded.policy.head().weight.dtype == torch.float32, "the policy is not touched"
    truth = load(replace(spec, reference_dtype=None)).policy.model.to(torch.bfloat16).state_dict()
    kept = reference.policies[0].model.state_dict()
    assert all(torch.equal(truth[name], kept[name]) for name in truth)
    assert loaded.policy(sample, reference=states).kl.dtype == torch.float32
    adapted = replace(spec, adapter=Adapter(rank=2))
    with pytest.raises(UsageError, match="the reference is the policy's own base with another adapter"):
        build_reference(adapted, load(adapted))
    with pytest.raises(UsageError, match="in the policy's own precision"):
        ModelSpec("m", reference_dtype="bfloat16", reference_update=Reset(every=2))
