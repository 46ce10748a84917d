"""KTO's loss against the paper's formula; its pairing; and what each of its baselines is, by enumeration."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tabular import enumerate_sequences, position_kl, probabilities, random_logits, sequence_kl, sequence_logprobs
from tests.tolerances import EXACT

from kleash.rl.kto import kto, mismatched, mismatched_baseline, prefix_baseline

BETA, WEIGHTS = 0.3, (1.3, 0.8)


def v(ratio, z0, desirable):
    """The paper's value: λ_D σ(β(r − z0)) or λ_U σ(β(z0 − r))."""
    weight, sign = (WEIGHTS[0], 1) if desirable else (WEIGHTS[1], -1)
    return weight / (1 + mpmath.e ** (-sign * BETA * (ratio - z0)))


@given(ratio=st.floats(-30, 30), z0=st.floats(0, 20), desirable=st.booleans())
@settings(deadline=None, max_examples=50)
def test_equals_the_papers_formula(ratio, z0, desirable):
    """λ_y − v(x, y), its slope, and the implicit reward."""
    live = torch.tensor([ratio], dtype=torch.float64, requires_grad=True)
    found = kto(live, torch.tensor([desirable]), z0, BETA, WEIGHTS)
    (slope,) = torch.autograd.grad(found.loss.sum(), live)
    with mpmath.workdps(30):
        point = mpmath.mpf(ratio)
        truth = WEIGHTS[not desirable] - v(point, z0, desirable)
        assert found.loss.item() == pytest.approx(float(truth), rel=EXACT, abs=EXACT)
        rate = -float(mpmath.diff(lambda x: v(x, z0, desirable), point))
        assert float(slope) == pytest.approx(rate, rel=EXACT, abs=EXACT)
    assert float(found.rewards) == pytest.approx(BETA * ratio, rel=EXACT)


@pytest.mark.parametrize("ratio", [-1e4, 0.0, 1e4])
@pytest.mark.parametrize("desirable", [True, False])
def test_one_class_alone_is_finite_in_fp32(ratio, desirable):
    """A step may hold one class only: no mean over nothing, no NaN (TRL issue 1447)."""
    live = torch.full((2,), ratio, requires_grad=True)
    found = kto(live, torch.full((2,), desirable), 0.0, BETA, WEIGHTS)
    (slope,) = torch.autograd.grad(found.loss.mean(), live)
    assert torch.isfinite(found.loss).all()
    assert torch.isfinite(slope).all()


@given(st.lists(st.integers(0, 4), min_size=0, max_size=12))
@settings(deadline=None)
def test_no_answer_meets_its_own_prompt(prompts):
    """Odd steps too (TRL issue 1911), and rows that share a prompt. As many are placed as can be."""
    found = mismatched(torch.tensor(prompts, dtype=torch.int64))
    pairs = list(zip(found.prompt.tolist(), found.text.tolist(), strict=True))
    assert all(prompts[p] != prompts[t] for p, t in pairs)
    assert len({p for p, _ in pairs}) == len({t for _, t in pairs}) == len(pairs)
    largest = max((prompts.count(p) for p in prompts), default=0)
    assert len(pairs) == min(len(prompts), 2 * (len(prompts) - largest))


def test_nothing_to_mismatch_is_not_a_zero():
    assert mismatched_baseline(torch.zeros(0)).value is None


E = enumerate_sequences(V=3, T=3, eos=0)


def test_what_each_baseline_is():
    """Two prompts, each with a policy, a reference and answers of its own: every population mean is enumerated.

    mismatched: KL(q‖π_ref) − KL(q‖π) of the other prompt's answers q; prefixes: Σ_t of the KL along the answers' own
    prefixes. Both are KL(π‖π_ref) if the answers are the policy's own samples, and neither is otherwise.
    """
    policies, references = ([random_logits(seed, E).detach() for seed in seeds] for seeds in ((1, 2), (3, 4)))
    log_p, log_ref = ([sequence_logprobs(x, E) for x in side] for side in (policies, references))
    ratio = [p - ref for p, ref in zip(log_p, log_ref, strict=True)]
    kl = [float(sequence_kl(p, ref, E)) for p, ref in zip(policies, references, strict=True)]
    answers = [probabilities(random_logits(seed, E), E) for seed in (5, 6)]
    for x, other in ((0, 1), (1, 0)):
        q = answers[other]
        measured = expected(lambda rows, x=x: mismatched_baseline(ratio[x][rows]).raw, q)
        truth = float((q * (q.log() - log_ref[x])).sum() - (q * (q.log() - log_p[x])).sum())
        assert measured == pytest.approx(truth, abs=EXACT)
        assert abs(measured - kl[x]) > 0.1
        own = expected(lambda rows, x=x: mismatched_baseline(ratio[x][rows]).raw, log_p[x].exp())
        assert own == pytest.approx(kl[x], abs=EXACT)

        positions = position_kl(policies[x], references[x], E)
        along = expected(lambda rows, at=positions: prefix_baseline(at[rows], E.mask[rows]).value, answers[x])
        slow = sum(
            float(w) * sum(float(k) for k, counts in zip(row, mask, strict=True) if counts)
            for w, row, mask in zip(answers[x], positions, E.mask, strict=True)
        )
        assert along == pytest.approx(slow, abs=EXACT)
        assert abs(along - kl[x]) > 0.1
        on_policy = expected(lambda rows, at=positions: prefix_baseline(at[rows], E.mask[rows]).value, log_p[x].exp())
        assert on_policy == pytest.approx(kl[x], abs=EXACT)


def expected(baseline, weight):
    """Σ_y weight(y) · the baseline of a step that holds y alone: a mean over texts has this expectation."""
    return sum(float(w) * baseline(slice(i, i + 1)) for i, w in enumerate(weight))


def test_the_papers_baseline_is_clamped_as_training_begins_to_work():
    """Two prompts, each answered in its own way. A policy that has learnt that has less mass than the reference on the
    other prompt's answers: the mean of the mismatched log-ratio is negative, although KL(policy‖reference) is not."""
    reference = torch.zeros_like(random_logits(0, E).detach())
    learnt = reference.clone()
    learnt[:, 1] += 2.0  # this prompt's answers are made of token 1; the other prompt's, of token 2
    ratio = sequence_logprobs(learnt, E) - sequence_logprobs(reference, E)
    theirs = (E.ids == 2).all(1)
    found = mismatched_baseline(ratio[theirs])
    assert found.clamped
    assert found.value == 0
    assert found.raw == pytest.approx(3 * (-math.log(2 + math.exp(2.0)) + math.log(3)), abs=EXACT)
    assert float(sequence_kl(learnt, reference, E)) > 0.5
