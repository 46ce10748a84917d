"""What a beta is worth, against gradients of the libraries' own losses on a problem that can be enumerated."""

import itertools
from pathlib import Path

import pytest
import torch
from tests.tolerances import EXACT

from kleash.check import check
from kleash.check.convert import convert
from kleash.check.records import Checked
from kleash.errors import UsageError

V, T, BETA = 3, 2, 0.3
ANSWERS = list(itertools.product(range(V), repeat=T))
SCORES = torch.tensor([(2.0 * a - b) / 3 + (a == b) for a, b in ANSWERS], dtype=torch.float64)


def logits() -> torch.Tensor:
    """[1 + V, V]: the first token's, and the second's after each first."""
    return torch.linspace(-0.7, 0.9, (1 + V) * V, dtype=torch.float64).reshape(1 + V, V).sin().requires_grad_()


def reference() -> torch.Tensor:
    return torch.linspace(0.4, -0.8, (1 + V) * V, dtype=torch.float64).reshape(1 + V, V).cos().log_softmax(-1)


def logprobs(table: torch.Tensor) -> torch.Tensor:
    """[answers, T] of every answer."""
    rows = table.log_softmax(-1)
    return torch.stack([torch.stack([rows[0, a], rows[1 + a, b]]) for a, b in ANSWERS])


def groups(size: int, own: torch.Tensor) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """Every ordered group of answers with its probability."""
    sequence = own.detach().sum(-1)
    return [(g, sequence[list(g)].sum().exp()) for g in itertools.product(range(len(ANSWERS)), repeat=size)]


def gradient(loss: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, table, retain_graph=True)[0].flatten()


def price(loss_gradient: torch.Tensor, charge: torch.Tensor, table: torch.Tensor) -> float:
    """b/a of loss_gradient = −a·∇E[R] + b·∇charge, found by least squares; the fit must be exact."""
    own = logprobs(table)
    reward = gradient((own.sum(-1).exp() * SCORES).sum(), table)
    both = torch.stack([-reward, charge], -1)
    solved = torch.linalg.lstsq(both, loss_gradient[:, None]).solution[:, 0]
    torch.testing.assert_close(both @ solved, loss_gradient, rtol=0, atol=EXACT)
    return (solved[1] / solved[0]).item()


def own_charge(table: torch.Tensor) -> torch.Tensor:
    """∇ of Σ_t E_prefix KL_t with the prefixes held: what a KL in the loss descends."""
    rows, ref = table.log_softmax(-1), reference()
    kl = (rows.exp() * (rows - ref)).sum(-1)
    return gradient(kl[0] + (rows[0].exp().detach() * kl[1:]).sum(), table)


def sequence_charge(table: torch.Tensor) -> torch.Tensor:
    own = logprobs(table)
    return gradient((own.sum(-1).exp() * (own - logprobs(reference())).sum(-1)).sum(), table)


def in_loss(size: int, normaliser: float) -> float:
    """GRPO with k3 × live ratio: A from the group's mean with the sample in it, both terms over one normaliser."""
    table = logits()
    own, ref = logprobs(table), logprobs(reference())
    total = torch.zeros((), dtype=torch.float64)
    for group, probability in groups(size, own):
        at = list(group)
        ratio = (own[at] - own[at].detach()).exp()
        advantage = (SCORES[at] - SCORES[at].mean())[:, None]
        d = ref[at] - own[at]
        total = total + probability * ((-advantage * ratio + BETA * (d.exp() - d - 1) * ratio) / normaliser).sum()
    return price(gradient(total, table), own_charge(table), table)


def in_reward(size: int, baselined: bool) -> float:
    """k1 summed over the answer: charged before a leave-one-out baseline (TRL's RLOO), or after the group's mean."""
    table = logits()
    own, ref = logprobs(table), logprobs(reference())
    k1 = (own - ref).sum(-1).detach()
    total = torch.zeros((), dtype=torch.float64)
    for group, probability in groups(size, own):
        at = list(group)
        if baselined:
            charged = SCORES[at] - BETA * k1[at]
            advantage = charged - (charged.sum() - charged) / (size - 1)
        else:
            advantage = SCORES[at] - SCORES[at].mean() - BETA * k1[at]
        total = total - probability * (advantage * own[at].sum(-1)).sum()
    return price(gradient(total, table), sequence_charge(table), table)


def checked(folder: Path, name: str, text: str, **options: object) -> Checked:
    (folder / name).write_text(text)
    return check(folder / name, **options)[0]


@pytest.mark.parametrize("loss", ["dapo", "bnpo", "grpo", "dr_grpo"])
def test_a_beta_in_the_loss_is_a_price_per_answer_whatever_the_normaliser(tmp_path: Path, loss: str) -> None:
    """Tokens of the group, tokens of the answer, the limit: they divide reward and KL alike."""
    normaliser = {"dapo": 2.0 * T, "bnpo": 2.0 * T, "grpo": 2.0 * T, "dr_grpo": 2 * 1024.0}[loss]
    run = checked(
        tmp_path, "run.py",
        f"a = GRPOConfig(beta={BETA}, loss_type='{loss}', num_generations=2, scale_rewards='none')",
    )  # fmt: skip
    assert run.charges[0].per_sequence() == pytest.approx(in_loss(2, normaliser), rel=EXACT)


@pytest.mark.parametrize("size", [2, 3])
def test_a_beta_in_the_reward(tmp_path: Path, size: int) -> None:
    run = checked(tmp_path, "run.py", f"a = RLOOConfig(beta={BETA}, num_generations={size})")
    assert run.charges[0].per_sequence() == pytest.approx(in_reward(size, baselined=True), rel=EXACT)


def test_a_charge_that_no_baseline_sees_weighs_more(tmp_path: Path) -> None:
    """OpenRLHF takes the group's mean off the reward alone, and charges the KL afterwards."""
    run = checked(
        tmp_path, "run.sh",
        f"python -m openrlhf.cli.train_ppo_ray --algo.kl.init_coef {BETA} --algo.advantage.estimator dr_grpo "
        "--rollout.n_samples_per_prompt 2\n",
    )  # fmt: skip
    assert run.charges[0].per_sequence() == pytest.approx(in_reward(2, baselined=False), rel=EXACT)


def test_the_reward_s_spread_is_part_of_the_price(tmp_path: Path) -> None:
    """(R/σ) − β·KL = (R − β·σ·KL)/σ."""
    run = checked(tmp_path, "run.py", "a = GRPOConfig(beta=0.04, num_generations=8)", tokens=200.0)
    assert run.charges[0].per_sequence(0.25) == pytest.approx(0.04 * 8 / 7 * 0.25, rel=EXACT)
    assert convert(run, "kleash", reward_std=0.25).beta == pytest.approx(0.04 * 8 / 7 * 0.25, rel=EXACT)
    assert "spread" in convert(run, "kleash").notes[0]


def test_another_length_keeps_the_price_of_a_nat_per_token(tmp_path: Path) -> None:
    """β·KL over an answer = β·L·(KL per token): at four times the length a quarter of the beta."""
    run = checked(tmp_path, "run.py", "a = RLOOConfig(beta=0.08)", tokens=128.0)
    there = convert(run, "verl", length=512.0)
    assert there.beta * 512 == pytest.approx(0.08 * 128, rel=EXACT)
    assert "kl_coef=0.02" in there.lines[1]


@pytest.mark.parametrize("to", ["trl", "verl", "openrlhf", "kleash"])
def test_there_and_back(tmp_path: Path, to: str) -> None:
    """What a conversion writes is read again as the same price."""
    start = checked(tmp_path, "start.toml", 'out = "o"\n[kl]\nbeta = 0.05\n')
    lines = convert(start, to).lines
    name, text = {
        "trl": ("run.py", f"a = {lines[0]}"),
        "verl": ("run.sh", "python -m verl.trainer.main_ppo " + " ".join(lines)),
        "openrlhf": ("run.sh", "python -m openrlhf.cli.train_ppo_ray " + " ".join(lines)),
        "kleash": ("run.toml", "\n".join(lines)),
    }[to]
    assert checked(tmp_path, name, text).charges[0].per_sequence() == pytest.approx(0.05, rel=EXACT)


def test_targets_change_their_unit(tmp_path: Path) -> None:
    run = checked(tmp_path, "run.yaml", "stage: ppo\nmax_new_tokens: 300\nppo_target: 6.0\n")
    assert "target_kl=0.02" in " ".join(convert(run, "verl").lines)
    assert 'target = "6 nats/sequence"' in convert(run, "kleash").lines
    assert 'target = "2 nats/sequence"' in convert(run, "kleash", length=100.0).lines


@pytest.mark.parametrize(
    ("text", "said"),
    [("a = GRPOConfig()", "no beta to convert: beta = 0"), ("a = GRPOConfig(beta=args.beta)", "does not tell it")],
)
def test_nothing_to_convert_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        convert(checked(tmp_path, "run.py", text), "kleash")
