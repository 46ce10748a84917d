"""Drift over the wire: never more than there is, right on average, and refused where it cannot be had."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from tests.drift.pairs import documents, full_logprobs, pair_of, random_documents
from tests.drift.stub import Stub, serving
from tests.models import build
from tests.tolerances import AUDIT, FP32

from kleash.drift import served
from kleash.drift.compare import Hooks, measure
from kleash.drift.served import connect
from kleash.drift.server import estimate_served, measure_served, reading_of, served_samples
from kleash.drift.sources import Pair
from kleash.drift.texts import Text
from kleash.errors import RunError, UsageError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "FIRST_WAIT", 0.001)


@pytest.fixture
def pair() -> Pair:
    return pair_of(build.model(), build.model(seed=1))


@pytest.fixture
def both(pair: Pair) -> Iterator[tuple[Stub, Stub]]:
    stubs = [Stub(side.opened.policy.causal) for side in (pair.base, pair.tuned)]
    with serving(stubs[0]), serving(stubs[1]):
        yield stubs[0], stubs[1]


def test_a_bound_never_exceeds_the_exact_value_and_grows_to_it(pair: Pair, both: tuple[Stub, Stub]) -> None:
    rows = random_documents()
    exact = measure(pair, rows)
    before = np.zeros(len(exact))
    for top in (2, 8, 20, build.VOCAB):
        found = measure_served(connect(both[0].url), connect(both[1].url), rows, top=top)
        assert found.kind == "lower bound"
        for name in ("forward", "reverse", "jensen_shannon"):
            assert (getattr(found, name) <= getattr(exact, name) + FP32).all(), name
        assert found.forward is not None
        assert found.forward.mean() > before.mean()
        before = found.forward
        assert found.logp_tuned == pytest.approx(exact.logp_tuned, abs=FP32)
        for name in ("same_top1", "rank", "confidence"):
            assert getattr(found, name).tolist() == pytest.approx(getattr(exact, name).tolist(), abs=FP32), name
        assert (found.entropy_base, found.new_mass, found.sure_flip) == (None, None, None)
    assert before == pytest.approx(exact.forward, abs=FP32)


@pytest.mark.parametrize("at_hand", ["base", "tuned"])
def test_one_side_at_hand(pair: Pair, both: tuple[Stub, Stub], at_hand: str) -> None:
    rows = random_documents()
    exact = measure(pair, rows)
    base = pair.base if at_hand == "base" else connect(both[0].url)
    tuned = pair.tuned if at_hand == "tuned" else connect(both[1].url)
    found = measure_served(base, tuned, rows, top=8)
    assert found.forward is not None
    assert exact.forward is not None
    assert (found.forward <= exact.forward + FP32).all()
    assert found.forward.mean() > 0.2 * exact.forward.mean()
    for name in ("same_top1", "rank", "confidence", "logp_base"):
        assert getattr(found, name).tolist() == pytest.approx(getattr(exact, name).tolist(), abs=FP32), name
    with pytest.raises(UsageError, match="compared exactly"):
        measure_served(pair.base, pair.tuned, rows)


def test_the_sampled_estimate_is_right_on_average() -> None:
    """k3 of every sequence of two tokens out of five, weighted by its probability, is the KL of sequences."""
    small = {"vocab_size": 5, "tie_word_embeddings": False}
    base, tuned = build.model(seed=1, **small), build.model(seed=2, **small)
    rows = documents(list(product(range(5), repeat=2)))
    p, q = ([full_logprobs(m, d).gather(-1, _column(d.ids))[:, 0] for d in rows] for m in (base, tuned))
    with serving(Stub(base, "echo only")) as one, serving(Stub(tuned, "echo only")) as two:
        sides = connect(one.url), connect(two.url)
        reverse = estimate_served(*sides, rows, drawn_by="tuned")
        forward = estimate_served(*sides, rows, drawn_by="base")
    assert (reverse.kind, reverse.forward, forward.reverse) == ("sampled", None, None)
    for found, own, other in ((reverse.reverse, q, p), (forward.forward, p, q)):
        assert found is not None
        weights = [math.exp(float(row.sum())) for row in own]
        expected = math.fsum(w * float((a - b).sum()) for w, a, b in zip(weights, own, other, strict=True))
        total = np.bincount(reverse.document, weights=found)
        assert float(np.array(weights) @ total) == pytest.approx(expected, abs=FP32)
        assert found.min() >= -AUDIT


def _column(ids: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(ids)[:, None]


def test_a_server_draws_from_the_whole_distribution(pair: Pair, both: tuple[Stub, Stub]) -> None:
    texts = [Text(id=f"q{n}", domain="d", prompt=f"t{n + 3}", answer="") for n in range(4)]
    found = served_samples(connect(both[1].url), reading_of(pair.base.reader), texts, max_new_tokens=5, seed=1)
    assert [(d.id, d.domain, len(d.ids), d.ended) for d in found] == [(f"q{n}", "d", 5, True) for n in range(4)]
    assert sorted(body["seed"] for body in both[1].seen) == [65_537, 65_538, 65_539, 65_540]
    estimate = estimate_served(pair.base, connect(both[1].url), found, drawn_by="tuned")
    assert estimate.reverse is not None
    assert estimate.reverse.min() >= -FP32
    with pytest.raises(UsageError, match="no prompt to answer"):
        served_samples(connect(both[1].url), reading_of(pair.base.reader), [])


@pytest.mark.parametrize(
    ("misdeed", "said"),
    [
        ("generated only", "gives no log-probs of prompt tokens"),
        ("renormalised", "renormalised"),
        ("more than one", "add up to"),
        ("other tokens", "it has other tokens"),
        ("own token missing", "it has other tokens"),
        ("refuses", "HTTP 400: .*Cannot request more than 5 logprobs"),
        ("echo only", "a sampled estimate can be had"),
        ("garbage", "its answer is not JSON"),
        ("half", "could not be asked"),
        ("list", "which is no JSON object"),
        ("null", "which is no JSON object"),
        ("other form", "prompt_logprobs of another form than vLLM's"),
        ("no numbers", "prompt_logprobs of another form than vLLM's"),
    ],
)
def test_what_no_bound_can_be_had_from_is_refused(pair: Pair, misdeed: str, said: str) -> None:
    with serving(Stub(pair.tuned.opened.policy.causal, misdeed)) as stub, pytest.raises(RunError, match=said):
        measure_served(pair.base, connect(stub.url), random_documents(), top=8)


def test_a_log_prob_that_is_none_is_counted_and_not_taken_for_no_drift(pair: Pair) -> None:
    """NaN is null where JSON has no word for it."""
    rows = random_documents()
    with serving(Stub(pair.tuned.opened.policy.causal, "nan")) as stub:
        found = measure_served(pair.base, connect(stub.url), rows, top=8)
    ends = np.cumsum([len(row.ids) for row in rows]) - 1
    assert found.forward is not None and found.reverse is not None
    assert np.flatnonzero(np.isnan(found.forward)).tolist() == np.flatnonzero(np.isnan(found.reverse)).tolist()
    assert np.flatnonzero(np.isnan(found.forward)).tolist() == ends.tolist()
    assert found.non_finite == len(rows)


def test_a_server_that_has_too_much_to_do_is_asked_again_and_then_given_up(pair: Pair) -> None:
    rows = random_documents(1)
    with serving(Stub(build.model(), failures=served.TRIES - 1, status=429)) as stub:
        assert len(measure_served(pair.base, connect(stub.url), rows, top=8).documents) == 1
        stub.failures = 100
        with pytest.raises(RunError, match="HTTP 429"):
            measure_served(pair.base, connect(stub.url), rows, top=8)


def test_samples_without_their_tokens_are_refused(pair: Pair) -> None:
    texts = [Text(id="q", domain=None, prompt="t3", answer="")]
    with serving(Stub(build.model(), "no token ids")) as stub, pytest.raises(RunError, match="which tokens it drew"):
        served_samples(connect(stub.url), reading_of(pair.base.reader), texts)


def test_samples_of_another_vocabulary_are_refused(pair: Pair) -> None:
    texts = [Text(id="q", domain=None, prompt="t3", answer="")]
    with serving(Stub(build.model(), "foreign token")) as stub, pytest.raises(RunError, match="drew token 99999, and"):
        served_samples(connect(stub.url), reading_of(pair.base.reader), texts)


def test_a_server_that_is_loading_is_asked_again_and_an_absent_one_is_said(pair: Pair) -> None:
    rows = random_documents(2)
    with serving(Stub(build.model(), failures=2)) as stub:
        assert len(measure_served(pair.base, connect(stub.url), rows, top=8).documents) == 2
        url = stub.url
    with pytest.raises(RunError, match="could not be asked"):
        connect(url)


def test_models_are_named_where_a_server_has_several() -> None:
    with serving(Stub(build.model(), names=("a", "b"))) as stub:
        assert connect(f"{stub.url}#b").model == "b"
        assert connect(f"{stub.url}#b").context == 64
        with pytest.raises(UsageError, match=r"serves several models; name one as .*#NAME: a, b"):
            connect(stub.url)
        with pytest.raises(UsageError, match="does not serve c"):
            connect(f"{stub.url}#c")


def test_a_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serving(Stub(build.model())) as stub:
        server = connect(stub.url)
        assert stub.headers[-1]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(server)


def test_ctrl_c_leaves_the_documents_that_are_there(pair: Pair) -> None:
    def stop(done: int, _: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with serving(Stub(pair.tuned.opened.policy.causal)) as stub:
        rows = random_documents()
        found = measure_served(pair.base, connect(stub.url), rows, top=8, hooks=Hooks(progress=stop))
    assert found.partial is not None
    assert 0 < len(found.documents) < len(rows)
    assert len(found) == sum(len(d.ids) for d in found.documents)
