"""The entropy bonus: its gradient at the optimizer, enumerated; its averages; a run that goes on with its state."""

from dataclasses import asdict

import pytest
import torch
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    SPACE,
    C,
    S,
    Setting,
    T,
    gradient,
    logits_of,
    objective,
    pairs,
    rollout_of,
    run_step,
    scores,
    singles,
    small_policy,
    token_logprobs,
)
from tests.training.off_policy import move, moved_policy
from tests.training.small import OF_THE_MACHINE, settings, steps
from torch import Tensor

from kleash.algorithms import PPO, RLOO, EntropyBonus, ReinforcePP, ReMax, Totals
from kleash.beta.entropy import AdaptiveEntropy, EntropyState, FixedEntropy
from kleash.kl.penalties import Exact, InReward, NoPenalty
from kleash.models.policy import Policy
from kleash.tensors import Batch, Look
from kleash.training.api import start
from kleash.training.entropy import kept, put_back
from kleash.training.toml import parse_config

COEF = 0.3
ON_SINGLES = {
    "remax": ReMax(),
    "reinforce++": ReinforcePP(whiten=False, clip="none"),
    "ppo": PPO(epochs=1, gae_lambda=1.0, whiten=False, vf_coef=0.0, clip="none", clip_value="none"),
}


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def entropy_of(policy: Policy, scope: str, prefixes: Tensor | None = None) -> Tensor:
    """E Σ_t H_t, live. token: the probabilities of the prefixes held fixed, those of `prefixes` if given."""
    p = logits_of(policy)
    whole = token_logprobs(p).sum(1).exp()
    if scope == "sequence":
        return -(whole * whole.log()).sum()
    each = torch.where(SPACE.mask, -(p.exp() * p).sum(-1), 0.0).sum(1)
    return ((whole if prefixes is None else prefixes).detach() * each).sum()


@pytest.mark.parametrize("scope", ["token", "sequence"])
@pytest.mark.parametrize(
    "name", ["remax", "ppo", *(pytest.param(n, marks=pytest.mark.slow) for n in ("reinforce++", "rloo"))]
)
def test_gradient_through_the_loop(name, scope, tmp_path, monkeypatch):
    algorithm = ON_SINGLES.get(name, RLOO(group_size=2))
    policy, reference = small_policy(1, critic="head" if name == "ppo" else None), small_policy(2)
    truth = -gradient(
        objective(policy, reference, BETA, scores()) + COEF * entropy_of(policy, scope), policy
    ) / C  # fmt: skip
    rollout = singles(policy) if algorithm.group_size == 1 else pairs(policy)
    setting = Setting(algorithm, Exact(), entropy={"coef": COEF, "scope": scope})
    found = run_step(setting, policy, reference, rollout, tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP
    other = gradient(entropy_of(policy, "sequence") - entropy_of(policy, "token"), policy)
    assert relative(found - COEF * other / C, truth) > 1e-2, "the two scopes differ by the future term"


def test_gradient_with_accumulation_and_another_penalty(tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    aim = objective(policy, reference, BETA, scores()) + COEF * entropy_of(policy, "sequence")
    truth = -gradient(aim, policy) / C
    setting = Setting(ReMax(), InReward(), groups_per_pass=17, entropy={"coef": COEF, "scope": "sequence"})
    found = run_step(setting, policy, reference, singles(policy), tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


@pytest.mark.parametrize("scope", ["token", "sequence"])
def test_gradient_of_a_second_update(scope, tmp_path, monkeypatch):
    """On samples of the policy as it was: exact for whole completions, for a token with the old policy's prefixes."""
    policy, moved = small_policy(1), moved_policy(0.1)
    old = token_logprobs(logits_of(policy)).sum(1).exp()
    truth = -COEF * gradient(entropy_of(moved, scope, old), moved) / C
    algorithm = ReinforcePP(whiten=False, clip="none", epochs=2, prefix_cap=1e6)
    setting = Setting(
        algorithm,
        NoPenalty(),
        beta=0.0,
        reward=torch.zeros(S, dtype=torch.float64),
        moves=[move(policy, 0.1)],
        entropy={"coef": COEF, "scope": scope},
    )
    found = run_step(setting, policy, small_policy(2), singles(policy), tmp_path, monkeypatch).seen[1]
    assert relative(found, truth) < LOOP


@pytest.mark.parametrize("length", ["constant", "sequence_mean", "token_mean"])
def test_it_is_averaged_as_the_algorithm_averages(length):
    rows = torch.tensor([0, S // 2, S - 1])
    rollout = rollout_of(rows, torch.zeros(S, T, dtype=torch.float64), torch.ones(3, dtype=torch.float64) / 3, 1)
    scored = torch.tensor([True, False, True])
    entropy = torch.rand(3, T, dtype=torch.float64, requires_grad=True)
    batch = Batch(rollout, torch.zeros(3, dtype=torch.float64), scored)
    counts = SPACE.mask[rows].sum(1)
    totals = Totals(2, int(counts[0] + counts[2]), 7, 1.0)
    found = EntropyBonus(coef=0.5).term(Look(entropy.detach(), entropy), batch, totals, length, 5.0)
    slow = torch.zeros((), dtype=torch.float64)
    for i in (0, 2):
        for t in range(int(counts[i])):
            over = {"constant": 2 * 7, "sequence_mean": 2 * int(counts[i]), "token_mean": totals.tokens}[length]
            slow = slow - 0.5 * entropy[i, t] / over
    torch.testing.assert_close(found.value, slow, rtol=EXACT, atol=EXACT)


def run(directory, resume=False, **changes):
    return start(parse_config(settings(directory, **changes)), resume=resume)


def figures(directory):
    return [{k: v for k, v in asdict(s).items() if k not in OF_THE_MACHINE} for s in steps(directory / "run")]


def test_a_run_moves_its_coefficient_and_resumes_with_it(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for directory in (whole, cut):
        directory.mkdir()
    entropy = {"kind": "adaptive", "target": "9 nats/token", "delta": 0.25, "start": 0.5}
    run(whole, entropy=entropy)
    run(cut, entropy=entropy, train__steps=2)
    run(cut, entropy=entropy, resume=True)
    of = {f["step"]: f for f in figures(cut)}
    assert [of[f["step"]] for f in figures(whole)] == figures(whole)
    # No policy over these words has 9 nats: it rises to its bound. The last record measures, and has no loss.
    assert [f["entropy_coef"] for f in figures(whole)] == [0.5, 0.75, 1.0, 1.0, None]
    assert [f["entropy_coef_clipped"] for f in figures(whole)] == [0, 0, 1, 2, None]


def test_a_bonus_raises_the_entropy(tmp_path):
    found = {}
    for coef in (0.5, -0.5):
        directory = tmp_path / str(coef)
        directory.mkdir()
        run(directory, entropy={"coef": coef}, train__learning_rate=1e-2, kl__target="50 nats/sequence")
        found[coef] = steps(directory / "run")[-1].entropy
    assert found[0.5] > found[-0.5] + 0.1


def test_another_law_begins_anew():
    law, state = AdaptiveEntropy(target="1 nats/token"), EntropyState(0.1, 0.2, 3)
    assert put_back(law, kept(law, state)) == state
    assert put_back(AdaptiveEntropy(target="2 nats/token"), kept(law, state)) is None
    assert put_back(FixedEntropy(coef=0.1), None) is None
    assert put_back(None, kept(law, state)) is None
    assert kept(None, None) is None
