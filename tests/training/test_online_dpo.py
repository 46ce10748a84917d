"""Online DPO through the real loop, enumerated; where it ends, by solvers that know nothing of kleash; its config."""

import pytest
import torch
from scipy.optimize import root
from tests.tabular import sequence_logprobs
from tests.tolerances import LOOP
from tests.training import tabular_loop as tabular
from tests.training.enumerated import (
    BETA,
    C,
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
from tests.training.test_config import tree
from tests.training.test_posterior import CONVERGED, PROMISED
from tests.training.test_resume import same_run

from kleash.algorithms import OnlineDPO
from kleash.errors import UsageError
from kleash.kl.penalties import InPreference
from kleash.training import online
from kleash.training.api import start
from kleash.training.toml import parse_config

#: Of rewards at which what is left out of a first-order statement is as small.
SMALL = 1e-4
#: Nats from where Adam is to end, and in its steps has nearly ended.
NEARLY = 1e-6


def log_ratios(policy, reference):
    log_p = token_logprobs(logits_of(policy)).sum(1)
    return log_p, log_p - token_logprobs(logits_of(reference)).sum(1).detach()


def labels_of(reward, how):
    gap = reward[:, None] - reward[None, :]
    return torch.sigmoid(gap) if how == "bradley_terry" else 0.5 + 0.5 * gap.sign()


def test_gradient_of_ipo_is_that_of_the_win_rate_on_a_leash(tmp_path, monkeypatch):
    """∇[E_π P(y beats π) − β KL(policy‖reference)] of the sequence, the opponent held fixed."""
    policy, reference = small_policy(1), small_policy(2)
    algorithm = OnlineDPO(preference="ipo", labels="winner")
    log_p, log_ratio = log_ratios(policy, reference)
    win_rate = labels_of(scores(), "winner") @ log_p.detach().exp()
    truth = -gradient((log_p.exp() * (win_rate - BETA * log_ratio)).sum(), policy) / C
    found = run_step(Setting(algorithm, InPreference()), policy, reference, pairs(policy), tmp_path, monkeypatch).seen[
        0
    ]
    assert (found - truth).norm() / truth.norm() < LOOP


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("preference", "labels", "groups_per_pass"),
    [
        ("dpo", "bradley_terry", 2500),
        pytest.param("dpo", "winner", None, marks=SLOW),
        pytest.param("ipo", "winner", None, marks=SLOW),
    ],
)
def test_gradient_through_the_loop(preference, labels, groups_per_pass, tmp_path, monkeypatch):
    """That of the published loss over pairs of samples, which are held fixed, times 2/beta or beta/4, over C."""
    policy, reference = small_policy(1), small_policy(2)
    algorithm = OnlineDPO(preference=preference, labels=labels)
    log_p, log_ratio = log_ratios(policy, reference)
    gap, share = log_ratio[:, None] - log_ratio[None, :], labels_of(scores(), labels)
    if preference == "dpo":
        loss = 2 / BETA * (-share * torch.sigmoid(BETA * gap).log() - (1 - share) * torch.sigmoid(-BETA * gap).log())
    else:
        loss = BETA / 4 * (share * (gap - 1 / (2 * BETA)) ** 2 + (1 - share) * (gap + 1 / (2 * BETA)) ** 2)
    drawn = (log_p[:, None] + log_p[None, :]).detach().exp()
    truth = gradient((drawn * loss).sum() / C, policy)
    setting = Setting(algorithm, InPreference(), groups_per_pass=groups_per_pass)
    found = run_step(setting, policy, reference, pairs(policy), tmp_path, monkeypatch).seen[0]
    assert (found - truth).norm() / truth.norm() < LOOP


@SLOW
def test_near_the_reference_dpo_takes_the_step_of_the_other_algorithms(tmp_path, monkeypatch):
    """Its scale: with small rewards, at the reference, the gradient is that of E reward, to first order."""
    policy, reward = small_policy(1), SMALL * scores()
    log_p, _ = log_ratios(policy, policy)
    truth = -gradient((log_p.exp() * reward).sum(), policy) / C
    setting = Setting(OnlineDPO(), InPreference(), reward=reward)
    found = run_step(setting, policy, small_policy(1), pairs(policy), tmp_path, monkeypatch).seen[0]
    assert (found - truth).norm() / truth.norm() < SMALL  # the order that is left out


def self_play(share):
    """log π with π ∝ ref·exp(P(y beats π)/β): the equilibrium of the game against oneself."""
    log_ref = sequence_logprobs(tabular.REFERENCE, tabular.SPACE)

    def off(log_p):
        now = torch.tensor(log_p).log_softmax(0)
        return (now - (log_ref + share @ now.exp() / tabular.BETA).log_softmax(0)).numpy()

    found = root(off, log_ref.numpy(), tol=1e-14)
    return torch.tensor(found.x).log_softmax(0)


@pytest.mark.parametrize("group", [{}, {"pairs": "best_worst"}], ids=["pairs", "best and worst"])
def test_dpo_of_bradley_terry_ends_at_the_posterior(group):
    found = tabular.converged(OnlineDPO(**group), InPreference())
    assert tabular.kl(found, tabular.posterior()[0]) < CONVERGED


@pytest.mark.parametrize("labels", ["bradley_terry", "winner"])
def test_ipo_ends_at_the_equilibrium_of_self_play(labels):
    end = self_play(labels_of(tabular.REWARD, labels))
    assert float(end.exp().sum()) == pytest.approx(1)
    found = tabular.converged(OnlineDPO(preference="ipo", labels=labels), InPreference())
    assert tabular.kl(found, end) < NEARLY
    assert tabular.kl(found, tabular.posterior()[0]) > PROMISED


@SLOW
def test_the_sampled_loop_gets_there_too():
    generator = torch.Generator().manual_seed(0)
    found = tabular.converged(OnlineDPO(group_size=4), InPreference(), lambda p: tabular.sampled(p, 256, 4, generator))
    assert tabular.kl(found, tabular.posterior()[0]) < PROMISED


def test_a_round_of_many_updates_ends_there_as_well():
    """Iterative DPO: pairs of an older policy teach the same, for no ratio is in the loss."""
    algorithm = OnlineDPO(minibatches=3)
    assert tabular.kl(tabular.converged(algorithm, InPreference()), tabular.posterior()[0]) < NEARLY


ROUNDS = {
    "algorithm": {"kind": "online_dpo", "epochs": 2, "minibatches": 2},
    "model__reference_update": {"kind": "reset", "every": 2},
    "train__learning_rate": 1e-2,
}


def test_rounds_resume_bit_for_bit(tmp_path, monkeypatch):
    start(parse_config(settings(tmp_path, **ROUNDS, out=str(tmp_path / "whole"))))
    config, tell = parse_config(settings(tmp_path, **ROUNDS)), online._tell

    def die(state, record, *rest):
        if record.step == 3:
            raise KeyboardInterrupt
        tell(state, record, *rest)

    monkeypatch.setattr(online, "_tell", die)
    with pytest.raises(KeyboardInterrupt):
        start(config)
    monkeypatch.undo()
    start(config, resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")


def online_tree(**changed):
    return tree(**{"algorithm": {"kind": "online_dpo"}, **changed})


def test_the_leash_is_in_the_loss():
    assert parse_config(online_tree()).kl.penalty == InPreference()
    held = parse_config(online_tree(kl={"target": "4 nats/sequence"})).kl
    assert held.penalty == InPreference() and held.law.kind == "pi"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kl": {"penalty": "in_reward"}}, "would count the KL twice"),
        ({"kl": {"beta": 0}}, r"nothing to learn at 0; use a small beta"),
        ({"kl": {"controller": {"kind": "linear", "end": 0, "steps": 5}}}, "nothing to learn at 0"),
        ({"algorithm": {"kind": "online_dpo", "labels": "winner"}}, "cannot hold a KL target"),
        ({"algorithm": {"kind": "online_dpo", "group_size": 1}}, "needs at least 2"),
        ({"algorithm": {"kind": "online_dpo", "group_size": 4, "labels": "win_rate"}}, "of one pair only where"),
        ({"train": {"mismatch": {}}}, r"has none: a pair\s+teaches the same"),
        ({"algorithm": {"kind": "grpo"}, "kl": {"penalty": "in_preference"}}, 'use penalty = "exact"'),
    ],
)
def test_what_is_refused(changed, said):
    with pytest.raises(UsageError, match=said):
        parse_config(online_tree(**changed))


def test_certain_labels_are_trained_on_with_a_beta():
    given = {"algorithm": {"kind": "online_dpo", "labels": "winner"}, "kl": {"beta": 0.1}}
    assert parse_config(online_tree(**given)).kl.schedule == ()
