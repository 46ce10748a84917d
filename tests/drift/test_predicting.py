"""How well given texts are predicted: the score by hand, what is left out, and what is no witness."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.drift.tables import documents, spread, table
from tests.tolerances import EXACT

from kleash.drift.distribution import distribution
from kleash.drift.predicting import prediction, texts_lost
from kleash.drift.records import Prediction
from kleash.drift.table import CLASSES, TokenTable

OWNERS = documents(40)
RANDOM = np.random.default_rng(3)


def made(owners=OWNERS, **changes: object) -> TokenTable:
    n = sum(len(owner.ids) for owner in owners)
    base = -RANDOM.exponential(1.0, n)
    columns = {"logp_base": base, "logp_tuned": base - RANDOM.exponential(0.5, n)}
    return table(spread(owners), owners, **(columns | changes))


def found(seen: TokenTable) -> Prediction:
    got = prediction(seen)
    assert got is not None
    return got


def test_letters_by_hand() -> None:
    """Every byte's −log frequency, and every token's log-prob, added up one by one; the end of a text is no letter."""
    seen = made()
    spelled = [
        (piece, base, tuned)
        for row, (base, tuned) in enumerate(zip(seen.logp_base, seen.logp_tuned, strict=True))
        for piece in [seen.documents[seen.document[row]].pieces[seen.position[row]]]
        if CLASSES[seen.token_class[row]] in ("content", "format")
    ]
    count = Counter("".join(piece for piece, _, _ in spelled).encode())
    cost = -sum(n * math.log(n / count.total()) for n in count.values())
    got = found(seen)
    assert got.base == pytest.approx(1 + sum(base for _, base, _ in spelled) / cost, abs=EXACT)
    assert got.tuned == pytest.approx(1 + sum(tuned for _, _, tuned in spelled) / cost, abs=EXACT)
    assert got.change.value == pytest.approx(got.tuned - got.base, abs=EXACT)
    assert got.letters == pytest.approx(cost / len(spelled), abs=EXACT)
    assert (got.change.n, got.change.clusters) == (len(spelled), 40)
    low, high = got.change.low, got.change.high
    assert low is not None and high is not None and low < got.change.value < high < 0


def test_a_model_that_knows_only_the_letters_scores_nothing() -> None:
    """Each token of one letter at its frequency: 0; all of them certain: 1."""
    owners = tuple(replace(owner, classes=(0,) * 20) for owner in OWNERS)
    got = found(made(owners, logp_base=np.full(800, -math.log(20)), logp_tuned=np.zeros(800)))
    assert got.base == pytest.approx(0, abs=EXACT)
    assert got.tuned == pytest.approx(1, abs=EXACT)


def test_a_text_with_an_unknown_token_is_left_out() -> None:
    seen = made()
    broken = seen.logp_tuned.copy()
    broken[25] = np.nan
    less = replace(seen, documents=seen.documents, logp_tuned=broken)
    assert found(less).change.clusters == 39
    assert found(less).change.n == found(seen).change.n - 19


def test_nothing_is_left() -> None:
    assert prediction(made(logp_base=np.full(800, np.nan))) is None


def test_of_samples_it_is_not_said() -> None:
    """A model predicts its own words well: that is no score."""
    assert distribution(made(), name="its own words", source="x", author="tuned").prediction is None
    assert distribution(made(), name="off task", source="x").prediction is not None


@pytest.mark.parametrize(
    ("base", "tuned", "said"), [(-1.0, -1.1, False), (-1.0, -2.0, True), (-2.9, -4.0, None), (-9.0, -12.0, None)]
)
def test_lost_only_for_sure_and_of_a_base_that_knew_them(base: float, tuned: float, said: bool | None) -> None:
    noise = RANDOM.normal(0, 0.05, 800)
    got = found(made(logp_base=np.full(800, base), logp_tuned=tuned + noise))
    assert texts_lost(got) is said


def test_too_few_texts_tell_nothing() -> None:
    few = documents(20)
    assert texts_lost(found(made(few, logp_base=np.full(400, -1.0), logp_tuned=np.full(400, -2.5)))) is None
