"""One pass over two heads against float64 loops over full logits."""

import math

import pytest
import torch
from tests.tolerances import EXACT, FP32
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.audit import Audited, audit
from kleash.tensors import Head

NAN, INF = math.nan, math.inf


def heads(vocabs: tuple[int, int], dtype: torch.dtype, sizes: tuple[int, int] = (6, 5)) -> list[Head]:
    g = torch.Generator().manual_seed(3)
    return [
        Head(torch.randn(v + 3, h, generator=g).to(dtype), torch.randn(v + 3, generator=g).to(dtype), v, s, cap)
        for v, h, s, cap in zip(vocabs, sizes, (1.3, 0.7), (None, 5.0), strict=True)
    ]


def hidden(n: int, size: int, dtype: torch.dtype, seed: int = 5) -> Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def logits_of(h: Tensor, head: Head) -> list[list[float]]:
    z = (h.double() @ head.weight.double().T + (0 if head.bias is None else head.bias.double())) * head.scale
    z = z if head.softcap is None else head.softcap * torch.tanh(z / head.softcap)
    return z[:, : head.vocab].tolist()


def by_hand(z: list[float], y: list[float], target: int) -> dict[str, float]:
    """Written from the definitions, a token at a time, in float64."""
    shared = min(len(z), len(y))
    whole = [[math.exp(a) for a in side] for side in (z, y)]
    p, q = ([a / math.fsum(e[:shared]) for a in e[:shared]] for e in whole)

    def kl(a: list[float], b: list[float]) -> float:
        return math.fsum(s * math.log(s / t) for s, t in zip(a, b, strict=True) if s)

    mean = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    first, second = sorted(p, reverse=True)[:2]
    middle = (first + second) / 2
    return {
        "forward": kl(p, q),
        "reverse": kl(q, p),
        "jensen_shannon": (kl(p, mean) + kl(q, mean)) / 2,
        "logp_base": math.log(p[target]),
        "logp_tuned": math.log(q[target]),
        "same_top1": p.index(max(p)) == q.index(max(q)),
        "flip_radius": first * math.log(first / middle) + second * math.log(second / middle),
        "rank": 1 + sum(b > q[target] for b in q),
        "entropy_base": -math.fsum(a * math.log(a) for a in p),
        "entropy_tuned": -math.fsum(b * math.log(b) for b in q),
        "confidence": max(p),
        "new_mass": math.fsum(whole[1][shared:]) / math.fsum(whole[1]),
        "lost_mass": math.fsum(whole[0][shared:]) / math.fsum(whole[0]),
    }


def compare(found: Audited, expected: list[dict[str, float]], tolerance: float) -> None:
    for name in expected[0]:
        values = getattr(found, name).double().tolist()
        assert values == pytest.approx([float(row[name]) for row in expected], abs=tolerance, rel=tolerance), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("vocabs", [(11, 11), (11, 14), (14, 11)])
@pytest.mark.parametrize("chunk_bytes", [1, 300, None])
def test_equals_float64_from_full_logits(dtype: torch.dtype, vocabs: tuple[int, int], chunk_bytes: int | None) -> None:
    base, tuned = heads(vocabs, dtype)
    h, k, targets = hidden(7, 6, dtype), hidden(7, 5, dtype, seed=6), torch.arange(7) + 2
    found = audit(h, base, k, tuned, targets, chunk_bytes=chunk_bytes)
    rows = zip(logits_of(h, base), logits_of(k, tuned), targets.tolist(), strict=True)
    compare(found, [by_hand(*row) for row in rows], EXACT if dtype == torch.float64 else FP32)


def test_a_head_widened_column_by_column_gives_the_numbers_of_a_wide_one(monkeypatch: pytest.MonkeyPatch) -> None:
    base, tuned = heads((11, 14), torch.bfloat16)
    wide = [
        Head(x.weight.float(), None if x.bias is None else x.bias, x.vocab, x.scale, x.softcap) for x in (base, tuned)
    ]
    h, k, targets = hidden(7, 6, torch.bfloat16), hidden(7, 5, torch.bfloat16, seed=6), torch.arange(7)
    monkeypatch.setattr("kleash.kl.audit.WIDENED_COLUMNS", 4)
    narrow = audit(h, base, k, tuned, targets)
    full = audit(h.float(), wide[0], k.float(), wide[1], targets)
    for name in ("forward", "reverse", "jensen_shannon", "rank", "new_mass"):
        assert getattr(narrow, name).tolist() == pytest.approx(getattr(full, name).tolist(), abs=FP32), name


def test_equal_sides_are_exactly_zero_apart() -> None:
    head = Head(torch.randn(4096, 64, generator=torch.Generator().manual_seed(1)), None, 4096)
    h = hidden(33, 64, torch.float32)
    found = audit(h, head, h.clone(), head, torch.arange(33), chunk_bytes=4096 * 4 * 5)
    for name in ("forward", "reverse", "jensen_shannon"):
        assert getattr(found, name).abs().max() == 0, name
    assert bool(found.same_top1.all())


def test_probabilities_that_vanish_leave_no_nan() -> None:
    base, tuned = (Head(torch.eye(4), None, 4) for _ in range(2))
    h = torch.tensor([[0.0, -300.0, -300.0, 200.0]])
    k = torch.tensor([[0.0, -300.0, 200.0, -300.0]])
    found = audit(h, base, k, tuned, torch.tensor([3]))
    assert found.forward.tolist() == pytest.approx([500.0], rel=FP32)
    assert found.reverse.tolist() == pytest.approx([500.0], rel=FP32)
    assert found.jensen_shannon.tolist() == pytest.approx([math.log(2)], rel=FP32)
    assert found.rank.tolist() == [3]


def planted(rows: list[list[float]]) -> tuple[Tensor, Head]:
    """Hidden states and a head whose logits are these rows."""
    bias = [0.0] * len(rows[0])
    return torch.tensor(rows), Head(torch.eye(len(rows[0])), torch.tensor(bias), len(rows[0]))


def through_bias(logits: list[float]) -> tuple[Tensor, Head]:
    """One row of logits written as a bias: an infinity times 0 would be a NaN."""
    return torch.zeros(1, 2), Head(torch.zeros(len(logits), 2), torch.tensor(logits), len(logits))


def test_tokens_that_neither_side_can_produce_add_nothing() -> None:
    (h, base), (k, tuned) = through_bias([1.0, 2.0, -INF, 0.5]), through_bias([0.5, 2.5, -INF, 0.1])
    found = audit(h, base, k, tuned, torch.tensor([3]))
    compare(found, [by_hand([1.0, 2.0, 0.5], [0.5, 2.5, 0.1], 2)], FP32)


def test_a_token_that_one_side_cannot_produce_makes_one_direction_infinite() -> None:
    (h, base), (k, tuned) = through_bias([1.0, 2.0, 0.3]), through_bias([0.5, 2.5, -INF])
    found = audit(h, base, k, tuned, torch.tensor([2]))
    assert found.forward.tolist() == [INF]
    p, q = torch.tensor([1.0, 2.0, 0.3]).softmax(0), torch.tensor([0.5, 2.5]).softmax(0)
    assert found.reverse.tolist() == pytest.approx([float((q * (q / p[:2]).log()).sum())], rel=FP32)
    assert found.logp_tuned.tolist() == [-INF]
    assert 0 < float(found.jensen_shannon) < math.log(2)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_broken_row_is_nan_and_its_neighbours_are_not(bad: float) -> None:
    h, base = planted([[1.0, 2.0, 0.5], [0.1, 0.2, 0.3]])
    k, tuned = planted([[0.5, 1.0, 0.0], [bad, 0.0, 0.1]])
    found = audit(h, base, k, tuned, torch.tensor([1, 1]))
    for name in ("forward", "reverse", "jensen_shannon", "logp_tuned", "entropy_tuned", "confidence"):
        assert getattr(found, name).isfinite().tolist() == [True, False], name
    assert (found.same_top1.tolist()[1], found.rank.tolist()[1]) == (False, 0)


def test_no_flip_below_the_radius() -> None:
    """The nearest distribution that flips is at the radius, none is nearer."""
    g = torch.Generator().manual_seed(0)
    p = torch.rand(500, 4, generator=g).double() + 0.05
    q = torch.rand(500, 4, generator=g).double() + 0.05
    head = Head(torch.eye(4, dtype=torch.float64), None, 4)
    found = audit(p.log(), head, q.log(), head, torch.zeros(500, dtype=torch.long))
    assert bool((found.forward[~found.same_top1] >= found.flip_radius[~found.same_top1]).all())
    sorted_p = p.sort(-1, descending=True).values
    nearest = torch.cat([sorted_p[:, :2].mean(-1, keepdim=True).expand(-1, 2), sorted_p[:, 2:]], -1)
    attained = audit(sorted_p.log(), head, nearest.log(), head, torch.zeros(500, dtype=torch.long))
    assert attained.forward.tolist() == pytest.approx(found.flip_radius.tolist(), abs=EXACT)


def test_nothing_to_score_and_targets_outside() -> None:
    head = Head(torch.eye(3), None, 3)
    assert len(audit(torch.empty(0, 3), head, torch.empty(0, 3), head, torch.empty(0, dtype=torch.long)).rank) == 0
    with pytest.raises(UsageError, match="not among the 3"):
        audit(torch.zeros(1, 3), head, torch.zeros(1, 3), head, torch.tensor([3]))
