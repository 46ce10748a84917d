"""From tokens to what an audit says: sums by hand, buckets by a slow loop, and what is not measured stays None."""

import dataclasses
import math

import numpy as np
import pytest
from tests.drift.tables import documents, spread, table
from tests.tolerances import EXACT

from kleash.drift import statistics
from kleash.drift.distribution import concentration, distribution, distribution_of_bytes
from kleash.drift.passages import MOST_MOVED, MOST_PASSAGES, MOST_TOKENS
from kleash.drift.table import ByteTable
from kleash.errors import RunError

OWNERS = documents(120)
KL = spread(OWNERS)
GIVEN = distribution(table(KL, OWNERS), name="off task", source="builtin-1")


def test_the_numbers_of_given_texts() -> None:
    assert (GIVEN.documents, GIVEN.tokens, GIVEN.non_finite, GIVEN.kind) == (120, 2400, 0, "exact")
    assert GIVEN.forward is not None and GIVEN.reverse is not None and GIVEN.jensen_shannon is not None
    assert GIVEN.forward.mean.value == pytest.approx(float(KL.mean()), rel=EXACT)
    assert GIVEN.reverse.mean.value == pytest.approx(2 * float(KL.mean()), rel=EXACT)
    assert GIVEN.jensen_shannon.value == pytest.approx(float(KL.mean()) / 4, rel=EXACT)
    assert (GIVEN.flips, GIVEN.sure_flips) == (480, 240)
    found = [GIVEN.same_top1, GIVEN.delta, GIVEN.rank, GIVEN.entropy_base, GIVEN.entropy_tuned]
    assert [i and i.value for i in found] == pytest.approx([0.8, -0.5, 10.5, 2, 1], rel=EXACT)
    assert GIVEN.new_mass == pytest.approx(0.25, rel=EXACT) and GIVEN.sampled is None


def test_the_tail() -> None:
    tail = GIVEN.forward
    assert tail is not None
    for found, share in ((tail.median, 0.5), (tail.q90, 0.9), (tail.q95, 0.95), (tail.q99, 0.99), (tail.q999, 0.999)):
        assert found.value == np.quantile(KL, share, method="inverted_cdf")
    at = int(np.argmax(KL))
    assert (tail.max, tail.max_at) == (KL[at], f"text-{at // 20}, token {at % 20 + 1}")
    assert tail.top_share == pytest.approx(sum(sorted(KL)[-24:]) / sum(KL), rel=EXACT)


def test_concentration_by_hand() -> None:
    assert concentration(np.array([1.0] * 99 + [9.0])) == pytest.approx(9 / 108, rel=EXACT)
    assert concentration(np.zeros(10)) is None
    assert concentration(np.array([1.0, math.nan, 3.0])) == 0.75  # of two tokens the larger


def test_by_document_adds_up() -> None:
    assert len(GIVEN.by_document) == 120
    assert GIVEN.by_document["text-7"] == (20, pytest.approx(float(KL[140:160].sum()), rel=EXACT))
    assert sum(total for _, total in GIVEN.by_document.values()) == pytest.approx(float(KL.sum()), rel=EXACT)


def test_parts_by_a_slow_loop() -> None:
    def bucket(name: str, row: int) -> str:
        position, confidence = row % 20, row / (len(KL) - 1)
        match name:
            case "domains":
                return f"domain {row // 20 % 3}"
            case "classes":
                return "eos" if position == 19 else "format" if position % 10 == 9 else "content"
            case "positions":
                return "1" if position == 0 else "2–4" if position < 4 else "5–16" if position < 16 else "17–64"
        for edge, text in ((0.25, "0%–25%"), (0.5, "25%–50%"), (0.75, "50%–75%"), (0.95, "75%–95%")):
            if confidence < edge:
                return text
        return "95%–100%"

    for name in ("domains", "classes", "positions", "confidence"):
        rows: dict[str, list[float]] = {}
        for row, value in enumerate(KL):
            rows.setdefault(bucket(name, row), []).append(float(value))
        found = {part.name: part for part in getattr(GIVEN, name)}
        assert found.keys() == rows.keys()
        for what, values in rows.items():
            assert found[what].forward.value == pytest.approx(sum(values) / len(values), rel=EXACT)
            assert found[what].share == pytest.approx(sum(values) / float(KL.sum()), rel=EXACT)
            assert found[what].simultaneous and found[what].forward.n == len(values)


def test_an_interval_of_a_part_is_wider_than_alone() -> None:
    part = GIVEN.domains[0].forward
    own = np.arange(len(KL)) // 20 % 3 == 0
    alone = statistics.mean(KL[own], (np.arange(len(KL)) // 20)[own], positive=True)
    assert part.low is not None and alone.low is not None and part.high is not None and alone.high is not None
    assert part.low < alone.low and part.high > alone.high


def test_each_models_samples_have_their_own_direction() -> None:
    tuned = distribution(table(KL, OWNERS), name="its own words", source="samples", author="tuned")
    base = distribution(table(KL, OWNERS), name="the base's words", source="samples", author="base")
    assert tuned.forward is None and tuned.reverse is not None and not tuned.domains
    assert base.reverse is None and base.forward is not None and base.domains
    assert tuned.by_document["text-0"][1] == pytest.approx(2 * base.by_document["text-0"][1], rel=EXACT)


def test_the_sampled_estimate_of_a_server() -> None:
    """log-prob of the sampled tokens under their author less that under the other; not where the KL is exact."""
    for author, sign in (("tuned", 1), ("base", -1)):
        bound = table(KL, OWNERS, kind="lower bound")
        found = distribution(bound, name="samples", source="server", author=author)
        assert found.sampled is not None and found.sampled.value == pytest.approx(-0.5 * sign, rel=EXACT)
        exact = distribution(table(KL, OWNERS), name="samples", source="local", author=author)
        assert exact.sampled is None


def test_a_server_without_distributions() -> None:
    names = ("forward", "reverse", "jensen_shannon", "same_top1", "sure_flip", "rank", "entropy_base", "entropy_tuned")
    nothing = dict.fromkeys((*names, "confidence", "new_mass"))
    found = distribution(table(KL, OWNERS, kind="sampled", **nothing), name="x", source="y", author="tuned")
    assert all(getattr(found, name) is None for name in (*names[:4], *names[5:], "flips", "sure_flips", "new_mass"))
    assert found.sampled is not None and found.delta is not None
    assert not (found.domains or found.moved or found.passages or found.by_document)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    broken = KL.copy()
    broken[[3, 700]] = math.nan
    found = distribution(table(broken, OWNERS), name="off task", source="x")
    assert (found.non_finite, found.tokens) == (2, 2400)
    assert found.forward is not None and found.forward.mean.n == 2398
    assert found.forward.mean.value == pytest.approx(float(np.delete(KL, [3, 700]).mean()), rel=EXACT)
    none = distribution(table(np.full(len(KL), math.nan), OWNERS), name="off task", source="x")
    assert (none.forward, none.jensen_shannon, none.passages, none.moved) == (None, None, [], [])
    assert none.non_finite == 2400 and none.domains == []


def test_a_token_without_a_distribution_is_neither_a_flip_nor_of_rank_0() -> None:
    """As `kleash.kl.audit` gives them: not the same likeliest token, rank 0, all else NaN."""
    rows = [3, 700]
    given = table(KL, OWNERS)
    changes: dict[str, np.ndarray] = {}
    for name, value in (("confidence", math.nan), ("forward", math.nan), ("same_top1", False), ("rank", 0)):
        column = getattr(given, name).copy()
        column[rows] = value
        changes[name] = column
    found = distribution(dataclasses.replace(given, **changes), name="off task", source="x")  # type: ignore[arg-type]
    position = np.delete(np.arange(len(KL)) % 20, rows)
    assert found.flips == int((position % 5 == 0).sum())
    assert found.same_top1 is not None and found.same_top1.n == 2398 and found.rank is not None
    assert found.same_top1.value == pytest.approx(float((position % 5 != 0).mean()), rel=EXACT)
    assert found.rank.value == pytest.approx(float((position + 1).mean()), rel=EXACT)
    shown = [token for passage in found.passages for token in passage.tokens if token.forward is None]
    assert not any(token.flipped for token in shown)


def test_nothing_to_compare() -> None:
    with pytest.raises(RunError, match=r"there is no token to compare on in off task \(x\)"):
        distribution(table(KL[:0], ()), name="off task", source="x")


def test_the_passages_that_moved_most_and_one_as_most_do() -> None:
    means = [float(KL[20 * i : 20 * i + 20].mean()) for i in range(120)]
    order = sorted(range(120), key=lambda i: -means[i])
    expected = [*order[: MOST_PASSAGES - 1], order[60]]
    assert [passage.id for passage in GIVEN.passages] == [f"text-{i}" for i in expected]
    first = GIVEN.passages[0]
    assert (first.prompt, "".join(token.text for token in first.tokens)) == (
        f"prompt {order[0]}",
        "abcdefghijklmnopqrst",
    )
    assert first.forward == pytest.approx(means[order[0]], rel=EXACT)
    assert [token.flipped for token in first.tokens] == [i % 5 == 0 for i in range(20)]


def test_a_report_stays_small() -> None:
    owners = documents(30, tokens=900)
    found = distribution(table(spread(owners), owners), name="x", source="y")
    assert len(found.passages) == MOST_PASSAGES and len(found.moved) == MOST_MOVED
    assert all(len(passage.tokens) == MOST_TOKENS for passage in found.passages)


def test_an_answer_of_one_word_does_not_lead() -> None:
    owners = (*documents(30), dataclasses.replace(documents(1, tokens=1)[0], id="yes"))
    kl = np.append(spread(owners[:-1]), 50.0)
    found = distribution(table(kl, owners), name="x", source="y")
    assert "yes" not in [passage.id for passage in found.passages]
    assert found.moved[0].forward == 50 and found.forward is not None and found.forward.max_at == "yes, token 1"


def test_no_token_fills_the_list_of_the_moved() -> None:
    """Every text's first token is the same, and moved most in all of them."""
    kl = np.where(np.arange(len(KL)) % 20 == 0, 30.0, KL)
    found = distribution(table(kl, OWNERS), name="x", source="y")
    assert [token.forward for token in found.moved].count(30.0) == 2
    values = [token.forward or 0 for token in found.moved]
    assert values == sorted(values, reverse=True)


def test_bits_per_byte_of_two_tokenizers() -> None:
    compared = ByteTable(
        ids=("a", "b", "c"),
        domains=(None, None, None),
        n_bytes=np.array([10, 30, 5]),
        bits_base=np.array([10.0, 10.0, math.nan]),
        bits_tuned=np.array([20.0, 40.0, 3.0]),
    )
    found = distribution_of_bytes(compared, name="off task", source="x")
    assert (found.bits_per_byte, found.bytes, found.tokens, found.non_finite) == ((0.5, 1.5), 40, None, 1)
    assert found.forward is None
    broken = dataclasses.replace(compared, bits_base=np.full(3, math.nan))
    with pytest.raises(RunError, match="finite probability"):
        distribution_of_bytes(broken, name="off task", source="x")
