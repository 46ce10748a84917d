"""Pairs of a prompt's own samples: which are compared, the label's probability, and the loss in expectation over it."""

import math

import pytest
import torch
from tests.tolerances import EXACT

from kleash.errors import RunError
from kleash.rl.online_pairs import compared, label_loss, preference

SCORE = torch.tensor([1.0, 3.0, 3.0, 0.0, 5.0, 2.0, 2.0], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 0, 1, 2, 2])
SCORED = torch.tensor([True, True, True, False, True, True, True])


@pytest.mark.parametrize("which", ["all", "best_worst"])
def test_pairs_equal_a_slow_loop(which):
    found = compared(SCORE, SCORED, GROUP, which)
    slow = []
    for g in range(3):
        rows = [i for i in range(7) if GROUP[i] == g and SCORED[i]]
        if which == "all":
            pairs = [(i, j) for i in rows for j in rows if i < j]
        else:  # of equal scores the first is the best and the last the worst
            best = min(rows, key=lambda i: (-float(SCORE[i]), i))
            worst = max(rows, key=lambda i: (-float(SCORE[i]), i))
            pairs = [(best, worst)] if best != worst else []
        slow += [(i, j, len(rows) / len(pairs)) for i, j in pairs]
    assert list(zip(found.one.tolist(), found.other.tolist(), found.weight.tolist(), strict=True)) == slow
    assert float(found.weight.sum()) == 5  # the lone member of group 1 has no pair; the others weigh what they count


def test_no_pair_at_all():
    found = compared(SCORE, torch.zeros(7, dtype=torch.bool), GROUP, "all")
    assert len(found.one) == len(found.other) == len(found.weight) == 0


def test_the_label_of_two_scores():
    one, other = torch.tensor([2.0, 0.3, 0.5]), torch.tensor([0.5, 0.7, 0.5])
    odds = [1 / (1 + math.exp(b - a)) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert preference(one, other, "bradley_terry").tolist() == pytest.approx(odds)
    assert preference(one, other, "winner").tolist() == [1.0, 0.0, 0.5]
    assert preference(one[1:], other[1:], "win_rate").tolist() == pytest.approx([0.3, 0.5])


def test_scores_that_are_no_win_rates_are_refused():
    with pytest.raises(RunError, match=r"the scores of a pair, 0\.8 and 0\.7, .* add up to 1\. Use one judge"):
        preference(torch.tensor([0.4, 0.8]), torch.tensor([0.6, 0.7]), "win_rate")


@pytest.mark.parametrize("beta", [0.05, 2.0])
def test_the_loss_is_the_expectation_over_labels(beta):
    one = torch.tensor([0.3, -2.0, 4.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([1.0, -2.5, -3.0], dtype=torch.float64)
    p = torch.tensor([0.9, 0.5, 0.0], dtype=torch.float64)
    for loss in ("dpo", "ipo"):
        slow = []
        for a, b, share in zip(one, other, p.tolist(), strict=True):
            gap = a - b
            if loss == "dpo":
                won, lost = torch.log1p(torch.exp(-beta * gap)), torch.log1p(torch.exp(beta * gap))
            else:
                won, lost = (gap - 1 / (2 * beta)) ** 2, (gap + 1 / (2 * beta)) ** 2
            slow.append(share * won + (1 - share) * lost)
        expected = torch.stack(slow)
        found = label_loss(one, other, p, beta, loss)
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
        slopes = [torch.autograd.grad(x.sum(), one, retain_graph=True)[0] for x in (found, expected)]
        torch.testing.assert_close(*slopes, rtol=EXACT, atol=EXACT)
