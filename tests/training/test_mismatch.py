"""A sampler that is not the policy: what each correction of the credit computes, and that the leash needs none."""

import math
from dataclasses import asdict, replace

import pytest
import torch
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    SPACE,
    C,
    S,
    Setting,
    gradient,
    logits_of,
    objective,
    pairs,
    run_step,
    scores,
    singles,
    small_policy,
    token_logprobs,
)
from tests.training.off_policy import move, moved_policy, size_for
from torch import Tensor

from kleash.algorithms import PPO, RLOO, ReinforcePP
from kleash.errors import UsageError
from kleash.kl.penalties import Exact, InReward, NoPenalty
from kleash.rl.mismatch import Mismatch
from kleash.training.toml import parse_config

#: Without a bound: no ratio of the small models comes near it.
FREE = Mismatch(level="sequence", cap=1e9)
#: Bounds that many tokens meet.
BOUNDED = {
    "truncated tokens": Mismatch(level="token", cap=1.2),
    "truncated sequences": Mismatch(cap=1.5),
    "masked tokens": Mismatch(kind="masked", level="token", cap=1.3),
    "masked sequences": Mismatch(kind="masked", cap=2.0, floor=0.25),
}
NO_REWARD = torch.zeros(S, dtype=torch.float64)
FREE_CAP = 1e6


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def sampler():
    """What draws the samples: neither the policy, `small_policy(1)`, nor the reference, `small_policy(2)`."""
    return small_policy(3)


def by_hand(mismatch: Mismatch, log_ratio: Tensor) -> Tensor:
    """w of each enumerated token, one number at a time."""
    found = torch.ones_like(log_ratio)
    low = 1 / mismatch.cap if mismatch.floor is None else mismatch.floor
    for s, t in SPACE.mask.nonzero().tolist():
        w = math.exp(float(log_ratio[s, t] if mismatch.level == "token" else log_ratio[s].sum()))
        if mismatch.kind == "truncated":
            found[s, t] = min(w, mismatch.cap)
        else:
            found[s, t] = w if low <= w <= mismatch.cap else 0.0
    return found


# ── the whole gradient, where nothing is bounded ────────────────────────────────────────────────────────────

EXACTLY = {
    "rloo": (RLOO(group_size=2, prefix_cap=FREE_CAP), Exact(), pairs, None),
    "rloo, in passes": (RLOO(group_size=2, prefix_cap=FREE_CAP), Exact(), pairs, 1000),
    "reinforce++": (ReinforcePP(whiten=False, prefix_cap=FREE_CAP), Exact(), singles, None),
    "reinforce++, k1": (ReinforcePP(whiten=False, prefix_cap=FREE_CAP), InReward(), singles, 17),
    "ppo": (
        PPO(epochs=1, gae_lambda=1.0, whiten=False, vf_coef=0.0, clip="none", prefix_cap=FREE_CAP),
        Exact(),
        singles,
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACTLY)
def test_uncapped_sequence_weights_are_exact(name, tmp_path, monkeypatch):
    algorithm, penalty, drawn, groups = EXACTLY[name]
    policy, reference = small_policy(1, critic="head" if name == "ppo" else None), small_policy(2)
    truth = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    setting = Setting(algorithm, penalty, groups_per_pass=groups, mismatch=FREE)
    found = run_step(setting, policy, reference, drawn(sampler()), tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


def test_without_a_correction_it_is_another_gradient(tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    truth = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    setting = Setting(ReinforcePP(whiten=False), Exact())
    found = run_step(setting, policy, reference, singles(sampler()), tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) > 0.1


# ── bounded: the reward's credit as the formula says, the leash untouched ───────────────────────────────────


def credit(mismatch: Mismatch, policy, old, *, mean: float) -> Tensor:
    """−1/C · E_μ Σ_t w_t ρ_t (R − mean) ∇ℓ_t, written as a plain sum; ρ = π/π_old."""
    mu, was, now = (token_logprobs(logits_of(p)) for p in (sampler(), old, policy))
    w = by_hand(mismatch, (was - mu).detach())
    rho = (now - was).detach().exp()
    total = (mu.detach().sum(1).exp()[:, None] * w * rho * (scores() - mean)[:, None] * now * SPACE.mask).sum()
    return -gradient(total, policy) / C


@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_weights_compute_what_their_formula_says(name, tmp_path, monkeypatch):
    policy, mismatch = small_policy(1), BOUNDED[name]
    setting = Setting(ReinforcePP(whiten=False), NoPenalty(), mismatch=mismatch)
    found = run_step(setting, policy, small_policy(2), singles(sampler()), tmp_path, monkeypatch).seen[0]
    assert relative(found, credit(mismatch, policy, policy, mean=0.0)) < LOOP
    truth = -gradient(objective(policy, small_policy(2), 0.0, scores()), policy) / C
    assert relative(found, truth) > 1e-2, "a bound was met"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["truncated sequences", "masked tokens"])
def test_the_leash_is_exact_under_any_correction(name, tmp_path, monkeypatch):
    """Also in the second update, which starts from a third distribution; and beside a reward that is corrected."""
    size = size_for(0.13)
    policy, reference, moved = small_policy(1), small_policy(2), moved_policy(size)
    algorithm = RLOO(group_size=2, epochs=2, clip="none", prefix_cap=FREE_CAP)
    setting = Setting(algorithm, Exact(), mismatch=BOUNDED[name], moves=[move(policy, size)])
    found = run_step(setting, policy, reference, pairs(sampler()), tmp_path, monkeypatch).seen
    chance = token_logprobs(logits_of(sampler())).sum(1).detach().exp()
    mean = float((chance * scores()).sum())
    for seen, at in zip(found, (small_policy(1), moved), strict=True):
        leash = -gradient(objective(at, reference, BETA, NO_REWARD), at) / C
        assert relative(seen, leash + credit(BOUNDED[name], at, small_policy(1), mean=mean)) < LOOP


# ── the weights alone ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mismatch", [FREE, *BOUNDED.values()], ids=["free", *BOUNDED])
def test_weights_are_constants_and_their_bounds_are_counted(mismatch):
    old, mu = (token_logprobs(logits_of(p)) for p in (small_policy(1), sampler()))
    found = mismatch.weights(old, mu.detach(), SPACE.mask)
    expected, plain = (by_hand(m, (old - mu).detach()) for m in (mismatch, replace(FREE, level=mismatch.level)))
    assert not found.value.requires_grad
    torch.testing.assert_close(found.value[SPACE.mask], expected[SPACE.mask], rtol=EXACT, atol=EXACT)
    met = (expected != plain) & SPACE.mask
    assert torch.equal(found.bounded, met)
    assert bool(met.any()) == (mismatch is not FREE)


@pytest.mark.parametrize("mismatch", BOUNDED.values(), ids=BOUNDED)
def test_agreement_is_exactly_one_and_the_mask_hides_the_rest(mismatch):
    mask = torch.tensor([[True, False, True]])
    sampler = torch.tensor([[-1.0, math.nan, -2.0]])
    found = mismatch.weights(torch.tensor([[-1.0, math.inf, -2.0]]), sampler, mask)
    assert torch.equal(found.value, torch.ones(1, 3))
    assert not found.bounded.any()
    far = mismatch.weights(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[-1e4, 0.0, -1e4]]), mask)
    bound = mismatch.cap if mismatch.kind == "truncated" else 0.0
    assert far.value[mask].tolist() == pytest.approx([bound] * 2)


REFUSED = [
    ({"cap": 0.5}, "at least 1"),
    ({"floor": 0.5}, "would not be used"),
    ({"kind": "masked", "floor": 1.5}, "between 0"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_is_no_correction_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        Mismatch(**given)


def test_it_is_read_and_contradictions_are_said():
    tree = {
        "out": "runs/x", "model": {"policy": "kleash:tiny"}, "data": {"prompts": "p.txt"},
        "rewards": [{"use": "vader"}], "train": {"mismatch": {"kind": "masked", "cap": 5.0, "floor": 0.5}},
    }  # fmt: skip
    found = parse_config(tree).train.mismatch
    assert found is not None
    assert asdict(found) == {"kind": "masked", "level": "sequence", "cap": 5.0, "floor": 0.5}
    assert "0 outside [0.5, 5]" in found.label
    with pytest.raises(UsageError, match="contradict each other"):
        parse_config(tree | {"algorithm": {"kind": "rloo", "off_policy": "full", "clip": "none"}})
