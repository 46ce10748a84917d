"""The dataclasses of preference losses: what they read of a look, what each field turns, what they refuse."""

import dataclasses
import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from tests.tolerances import EXACT

from kleash.algorithms.preference import (
    LOSSES,
    TEXT_LOSSES,
    AdaptsToPairs,
    BetaDPO,
    PreferenceLoss,
    TextsLoss,
)
from kleash.errors import UsageError
from kleash.rl.dynamic_beta import GapStatistics
from kleash.tensors import Look

N, T = 3, 5
LENGTHS = [5, 3, 2, 4, 1, 1]
MASK = torch.arange(T) < torch.tensor(LENGTHS)[:, None]


def look_at(kind):
    """Log-probs of 2N texts. Without a reference in the look where the loss says that it needs none."""
    generator = torch.Generator().manual_seed(0)
    logprobs, ref = -2 * torch.rand(2, 2 * N, T, generator=generator, dtype=torch.float64)
    needed = {**LOSSES, **TEXT_LOSSES}[kind].needs_reference
    return Look(
        logprobs=logprobs.requires_grad_(), entropy=torch.zeros_like(logprobs), ref=ref if needed else None
    )  # fmt: skip


def token_rows(look):
    """Each text's log-probs, and log-ratios, of the tokens that count, in plain floats."""
    ref = torch.zeros_like(look.logprobs) if look.ref is None else look.ref
    log_p = [row[:n] for row, n in zip(look.logprobs.tolist(), LENGTHS, strict=True)]
    ratio = [row[:n] for row, n in zip((look.logprobs - ref).tolist(), LENGTHS, strict=True)]
    return log_p, ratio


def log_sigma(z):
    return -math.log1p(math.exp(-z))


def cut(rows, i, alpha):
    """Σ of text i with the weight alpha beyond the shorter of its pair."""
    shorter = min(len(rows[i]), len(rows[i ^ 1]))
    return sum(rows[i][:shorter]) + alpha * sum(rows[i][shorter:])


def mean(row):
    return sum(row) / len(row)


def odds(m):
    return math.log(math.exp(m) / (1 - math.exp(m)))


#: The defaults' formula of one pair: token log-probs p and log-ratios x of all texts, c the chosen row, r the other.
FORMULAS = {
    "dpo": lambda p, x, c, r: -log_sigma(0.1 * (sum(x[c]) - sum(x[r]))),
    "cdpo": lambda p, x, c, r: (
        -0.9 * log_sigma(0.1 * (sum(x[c]) - sum(x[r]))) - 0.1 * log_sigma(0.1 * (sum(x[r]) - sum(x[c])))
    ),
    "robust_dpo": lambda p, x, c, r: (
        (-0.9 * log_sigma(0.1 * (sum(x[c]) - sum(x[r]))) + 0.1 * log_sigma(0.1 * (sum(x[r]) - sum(x[c])))) / 0.8
    ),
    "ipo": lambda p, x, c, r: (sum(x[c]) - sum(x[r]) - 5) ** 2,
    "hinge": lambda p, x, c, r: max(0.0, 1 - 0.1 * (sum(x[c]) - sum(x[r]))),
    "exo": lambda p, x, c, r: sum(
        math.exp(log_sigma(z)) * (log_sigma(z) - math.log(label))
        for z, label in ((0.1 * (sum(x[c]) - sum(x[r])), 0.999), (0.1 * (sum(x[r]) - sum(x[c])), 0.001))
    ),
    "f_dpo": lambda p, x, c, r: -log_sigma(0.1 * (log_sigma(sum(x[c])) - log_sigma(sum(x[r])))),
    "ld_dpo": lambda p, x, c, r: -log_sigma(0.1 * (cut(x, c, 0.5) - cut(x, r, 0.5))),
    "beta_dpo": lambda p, x, c, r: -log_sigma(0.1 * (sum(x[c]) - sum(x[r]))),
    "orpo": lambda p, x, c, r: -mean(p[c]) - 0.1 * log_sigma(odds(mean(p[c])) - odds(mean(p[r]))),
    "simpo": lambda p, x, c, r: -log_sigma(2 * mean(p[c]) - 2 * mean(p[r]) - 0.6),
    "cpo": lambda p, x, c, r: -log_sigma(0.1 * (sum(p[c]) - sum(p[r]))) - mean(p[c]),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_is_its_formula_of_a_look(kind):
    loss, look = LOSSES[kind](), look_at(kind)
    found = loss.loss(look, MASK, loss.beta)
    log_p, ratio = token_rows(look)
    truth = [FORMULAS[kind](log_p, ratio, 2 * i, 2 * i + 1) for i in range(N)]
    assert found.loss.tolist() == pytest.approx(truth, rel=EXACT)
    assert found.rewards.chosen.shape == found.rewards.rejected.shape == (N,)


def test_kto_is_its_formula_of_a_look():
    loss, look = TEXT_LOSSES["kto"](desirable=1.2, undesirable=0.7), look_at("kto")
    desirable = [True, False, False, True, True, False]
    found = loss.loss(look, MASK, torch.tensor(desirable), 0.4, loss.beta)
    truth = [
        1.2 * math.exp(log_sigma(0.1 * (0.4 - sum(row)))) if good else 0.7 * math.exp(log_sigma(0.1 * (sum(row) - 0.4)))
        for row, good in zip(token_rows(look)[1], desirable, strict=True)
    ]
    assert found.loss.tolist() == pytest.approx(truth, rel=EXACT)


@pytest.mark.parametrize("kind", LOSSES)
def test_chosen_texts_are_pushed_up_and_others_down(kind):
    loss, look = LOSSES[kind](), look_at(kind)
    (gradient,) = torch.autograd.grad(loss.loss(look, MASK, loss.beta).loss.sum(), look.logprobs)
    assert (gradient[0::2][MASK[0::2]] < 0).all()
    assert (gradient[1::2][MASK[1::2]] > 0).all()
    assert (gradient[~MASK] == 0).all()


@pytest.mark.parametrize("kind", LOSSES)
def test_a_pair_is_a_pair_in_any_batch(kind):
    """The loss of a pair does not depend on which others it is asked with: microbatches add up."""
    loss, look = LOSSES[kind](), look_at(kind)
    together = loss.loss(look, MASK, loss.beta).loss
    for i in range(N):
        rows = slice(2 * i, 2 * i + 2)
        ref = None if look.ref is None else look.ref[rows]
        alone = Look(logprobs=look.logprobs[rows], entropy=look.entropy[rows], ref=ref)
        assert torch.equal(loss.loss(alone, MASK[rows], loss.beta).loss, together[i : i + 1])


@pytest.mark.parametrize("kind", LOSSES)
def test_beta_is_the_callers(kind):
    """A controller moves beta: the loss takes the one it is given."""
    look = look_at(kind)
    given = LOSSES[kind]().loss(look, MASK, 0.37).loss
    assert torch.equal(given, LOSSES[kind](beta=0.37).loss(look, MASK, 0.37).loss)
    assert not torch.equal(given, LOSSES[kind]().loss(look, MASK, 0.74).loss)


@pytest.mark.parametrize("kind", [*LOSSES, *TEXT_LOSSES])
def test_every_loss_is_one_and_says_where_it_ends(kind):
    loss = {**LOSSES, **TEXT_LOSSES}[kind]()
    assert isinstance(loss, PreferenceLoss if kind in LOSSES else TextsLoss)
    assert isinstance(loss, AdaptsToPairs) == (kind == "beta_dpo")
    assert loss.kind == kind
    assert loss.label.startswith("reference in the loss" if loss.needs_reference else "no reference in the loss")


#: What turns each field besides beta.
TURNED = {
    "dpo": {"length": "mean"},
    "cdpo": {"flip": 0.3},
    "robust_dpo": {"flip": 0.3},
    "ipo": {"length": "mean"},
    "exo": {"smoothing": 0.2},
    "f_dpo": {"divergence": "forward_kl"},
    "ld_dpo": {"alpha": 0.1},
    "simpo": {"gamma": 0.1},
    "cpo": {"nll": 0.5},
}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, turned in TURNED.items() for field in turned])
def test_every_field_turns_the_loss(kind, field):
    look = look_at(kind)
    turned = LOSSES[kind](**{field: TURNED[kind][field]})
    assert not torch.equal(turned.loss(look, MASK, 0.1).loss, LOSSES[kind]().loss(look, MASK, 0.1).loss)


def test_the_order_of_f_dpo_turns_it():
    look = look_at("f_dpo")
    first, second = (LOSSES["f_dpo"](divergence="alpha", alpha=a).loss(look, MASK, 0.1).loss for a in (0.2, 0.8))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", ["dpo", "ipo"])
def test_a_mean_says_so_in_its_label(kind):
    assert LOSSES[kind](length="mean").label != LOSSES[kind]().label


BETA_TURNED = {"beta": 0.2, "alpha": 0.1, "momentum": 0.5, "keep": 0.5, "floor": 0.2}


def test_beta_dpo_adapts():
    """Each of its fields changes what it makes of one step; `gap` is the difference of the log-ratios, detached."""
    loss, look = BetaDPO(), look_at("beta_dpo")
    _, ratio = token_rows(look)
    gap = loss.gap(look, MASK)
    assert not gap.requires_grad
    assert gap.tolist() == pytest.approx([sum(ratio[2 * i]) - sum(ratio[2 * i + 1]) for i in range(N)], rel=EXACT)

    def adapted(**fields):
        found = BetaDPO(**fields).adapt(gap, GapStatistics(0.4, 1.0), torch.Generator().manual_seed(0))
        return found._replace(keep=found.keep.tolist())

    assert set(BETA_TURNED) == {f.name for f in dataclasses.fields(BetaDPO)} - {"kind"}
    for field, value in BETA_TURNED.items():
        assert adapted(**{field: value}) != adapted(), field


REFUSED = [
    *((kind, {"beta": 0.0}, "loss.beta = 0.0 must be above 0") for kind in [*LOSSES, *TEXT_LOSSES]),
    ("cdpo", {"flip": 0.5}, "below 0.5"),
    ("robust_dpo", {"flip": 0.5}, "below 0.5"),
    ("robust_dpo", {"flip": -0.1}, "at least 0"),
    ("exo", {"smoothing": 0.0}, "must lie between 0, where the loss is infinite"),
    ("exo", {"smoothing": 0.5}, "and 0.5"),
    ("f_dpo", {"divergence": "alpha"}, "needs its order"),
    ("f_dpo", {"divergence": "alpha", "alpha": 1.0}, "needs its order"),
    ("f_dpo", {"divergence": "js", "alpha": 0.5}, '"js" has none'),
    ("ld_dpo", {"alpha": 1.1}, "must lie between 0"),
    ("beta_dpo", {"alpha": -0.1}, "loss.alpha = -0.1 must be at least 0"),
    ("beta_dpo", {"momentum": 1.0}, "below 1"),
    ("beta_dpo", {"keep": 0.0}, "above 0"),
    ("beta_dpo", {"keep": 1.1}, "at most 1"),
    ("beta_dpo", {"floor": 0.0}, "loss.floor = 0.0 must be above 0"),
    ("simpo", {"gamma": -0.1}, "loss.gamma = -0.1 must be at least 0"),
    ("cpo", {"nll": -1.0}, "loss.nll = -1.0 must be at least 0"),
    ("kto", {"desirable": 0.0}, "loss.desirable = 0.0 must be above 0"),
    ("kto", {"undesirable": 0.0}, "loss.undesirable = 0.0 must be above 0"),
]


@pytest.mark.parametrize(("kind", "settings", "reason"), REFUSED)
def test_refused_settings(kind, settings, reason):
    with pytest.raises(UsageError) as refused:
        {**LOSSES, **TEXT_LOSSES}[kind](**settings)
    assert reason in str(refused.value)


@pytest.mark.parametrize("kind", [*LOSSES, *TEXT_LOSSES])
def test_an_unknown_key_is_refused(kind):
    adapter = TypeAdapter({**LOSSES, **TEXT_LOSSES}[kind])
    assert adapter.validate_python({"beta": 0.2}).beta == 0.2
    with pytest.raises(ValidationError, match="bate"):
        adapter.validate_python({"bate": 0.2})
