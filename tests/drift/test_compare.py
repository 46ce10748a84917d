"""What an audit measures, against enumeration, full logits and what cannot be otherwise."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests.drift.pairs import documents, full_logprobs, pair_of, random_documents
from tests.models import build
from tests.tolerances import AUDIT, FP32, HEAD, QUADRATIC

from kleash.drift import compare
from kleash.drift.cache import StateCache
from kleash.drift.compare import Hooks, measure
from kleash.errors import RunError, UsageError

F64 = torch.float64


def moved(model: Any, share: float, seed: int = 9) -> Any:
    """A copy whose body's matrices are moved by so much noise."""
    twin = build.model("llama", next(model.parameters()).dtype)
    twin.load_state_dict(model.state_dict())
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(share * torch.randn(p.shape, generator=g).to(p))
    return twin


def test_a_model_against_itself_is_zero() -> None:
    model = build.model()
    found = measure(pair_of(model, model), random_documents())
    assert found.forward is not None
    assert found.reverse is not None
    assert max(np.abs(found.forward).max(), np.abs(found.reverse).max()) == 0
    assert found.same_top1 is not None
    assert found.same_top1.all()
    assert found.partial is None


def test_a_tabular_pair_equals_enumeration() -> None:
    """Every sequence of three tokens out of five: the KL of sequences, both ways, and each token's against softmax."""
    small = {"vocab_size": 5, "tie_word_embeddings": False, "eos_token_id": 2}
    base, tuned = (build.model("llama", F64, seed=seed, **small) for seed in (1, 2))
    rows = documents(list(product(range(5), repeat=3)))
    found = measure(pair_of(base, tuned, vocab=5), rows, batch_tokens=100)
    assert found.forward is not None
    assert found.reverse is not None
    p = np.array([float(full_logprobs(base, d).gather(-1, torch.tensor(d.ids)[:, None]).sum()) for d in rows])
    q = np.array([float(full_logprobs(tuned, d).gather(-1, torch.tensor(d.ids)[:, None]).sum()) for d in rows])
    assert math.fsum(np.exp(p)) == pytest.approx(1, abs=AUDIT)
    by_document = [np.bincount(found.document, weights=column) for column in (found.forward, found.reverse)]
    assert float(np.exp(p) @ by_document[0]) == pytest.approx(float(np.exp(p) @ (p - q)), abs=AUDIT)
    assert float(np.exp(q) @ by_document[1]) == pytest.approx(float(np.exp(q) @ (q - p)), abs=AUDIT)
    for number, d in enumerate(rows):
        one, two = full_logprobs(base, d), full_logprobs(tuned, d)
        expected = (one.exp() * (one - two)).sum(-1).tolist()
        assert found.forward[found.document == number].tolist() == pytest.approx(expected, abs=AUDIT)


def test_a_scaled_head_equals_a_float64_script() -> None:
    base = build.model(tie_word_embeddings=False)
    tuned = build.model(tie_word_embeddings=False)
    with torch.no_grad():
        tuned.lm_head.weight.mul_(1.05)
    rows = random_documents()
    found = measure(pair_of(base, tuned), rows)
    logprobs = [(full_logprobs(base, d), full_logprobs(tuned, d)) for d in rows]
    for name, expected in {
        "forward": [(p.exp() * (p - q)).sum(-1) for p, q in logprobs],
        "reverse": [(q.exp() * (q - p)).sum(-1) for p, q in logprobs],
        "entropy_tuned": [-(q.exp() * q).sum(-1) for _, q in logprobs],
        "confidence": [p.exp().amax(-1) for p, _ in logprobs],
        "rank": [
            1.0 + (q > q.gather(-1, torch.tensor(d.ids)[:, None])).sum(-1)
            for d, (_, q) in zip(rows, logprobs, strict=True)
        ],
    }.items():
        assert getattr(found, name).tolist() == pytest.approx(torch.cat(expected).tolist(), rel=HEAD, abs=HEAD), name


def test_the_kl_of_a_small_step_grows_with_its_square() -> None:
    base = build.model("llama", F64)
    tuned = moved(base, 0.05)
    rows, means = random_documents(), []
    for a in (0.01, 0.02, 0.04):
        between = moved(base, 0.0)
        with torch.no_grad():
            for p, b, t in zip(between.parameters(), base.parameters(), tuned.parameters(), strict=True):
                p.copy_(b + a * (t - b))
        found = measure(pair_of(base, between), rows)
        assert found.forward is not None
        means.append(found.forward.mean())
    assert means[1] / means[0] == pytest.approx(4, rel=QUADRATIC)
    assert means[2] / means[1] == pytest.approx(4, rel=QUADRATIC)


def test_batches_change_nothing() -> None:
    base = build.model()
    pair, rows = pair_of(base, moved(base, 0.05)), random_documents()
    whole = measure(pair, rows)
    for batch_tokens in (1, 30, 100):
        parts = measure(pair, rows, batch_tokens=batch_tokens)
        assert [d.id for d in parts.documents] == [d.id for d in rows]
        assert parts.forward == pytest.approx(whole.forward, abs=FP32)
        assert parts.token.tolist() == whole.token.tolist()


def test_documents_of_like_length_go_together() -> None:
    rows = random_documents(40)
    for batch in compare.batches(rows, 64):
        lengths = [1 + len(d.ids) for d in batch.documents]
        assert len(lengths) == 1 or max(lengths) * len(lengths) <= 64
        assert 1 - sum(lengths) / (max(lengths) * len(lengths)) <= compare.WASTE


def test_padding_rows_of_the_head_have_no_mass() -> None:
    base, tuned = (build.model(seed=seed, vocab_size=40, tie_word_embeddings=False) for seed in (1, 2))
    rows = random_documents()
    pair = pair_of(base, tuned)
    assert pair.parity.masked_rows == 3
    found = measure(pair, rows)
    expected = []
    for d in rows:
        p, q = (full_logprobs(m, d)[:, : build.VOCAB].log_softmax(-1) for m in (base, tuned))
        expected += (p.exp() * (p - q)).sum(-1).tolist()
    assert found.forward == pytest.approx(np.array(expected), abs=FP32)


def test_a_token_that_breaks_the_model_is_counted_and_not_averaged() -> None:
    base = build.model(tie_word_embeddings=False)
    tuned = build.model(tie_word_embeddings=False)
    with torch.no_grad():
        tuned.get_input_embeddings().weight[7] = math.nan
    found = measure(pair_of(base, tuned), documents([[5, 6, 7, 8, 9], [5, 6, 8]]))
    assert found.forward is not None
    bad = np.isnan(found.forward)  # in its own document also tokens before it: attention adds 0 times NaN
    assert bad[3:5].all()
    assert not bad[5:].any()
    assert found.non_finite == bad.sum() == np.isnan(found.logp_tuned).sum()


def test_where_memory_runs_out_batches_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    base = build.model()
    pair, rows = pair_of(base, moved(base, 0.05)), random_documents(12, 8)
    whole = measure(pair, rows)
    true = compare.states

    def starved(model: Any, batch: compare.Batch, side: str) -> Any:
        if len(batch.documents) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return true(model, batch, side)

    monkeypatch.setattr(compare, "states", starved)
    found = measure(pair, rows)
    assert found.halved > 0
    assert found.forward == pytest.approx(whole.forward, abs=FP32)

    def hopeless(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(compare, "states", hopeless)
    with pytest.raises(RunError, match="on document d"):
        measure(pair, rows)


def test_other_errors_are_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(compare, "states", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        measure(pair_of(build.model(), build.model()), random_documents())


def test_the_cache_gives_the_numbers_and_spares_the_forward(tmp_path: Any) -> None:
    base = build.model()
    rows, cache = random_documents(), StateCache(root=tmp_path)
    calls = []
    base.get_decoder().register_forward_hook(lambda *_: calls.append(1))
    pair = pair_of(base, moved(base, 0.05))
    plain = measure(pair, rows)
    calls.clear()
    first = measure(pair, rows, cache=cache)
    assert len(calls) > 0
    calls.clear()
    again = measure(pair, rows, cache=cache)
    assert calls == []
    for found in (first, again):
        assert found.forward is not None
        assert plain.forward is not None
        assert found.forward.tolist() == plain.forward.tolist()
    other = pair_of(moved(base, 0.01), base)
    assert measure(other, rows, cache=cache).forward is not None
    assert len(list(tmp_path.iterdir())) == 2  # another model, other states


def test_the_cache_keeps_to_its_size_and_mistrusts_its_files(tmp_path: Any) -> None:
    pair, rows = pair_of(build.model(), build.model(seed=1)), random_documents()
    measure(pair, rows, cache=StateCache(root=tmp_path))
    kept = list(tmp_path.glob("*/*.safetensors"))
    kept[0].write_bytes(b"cut short")
    expected = measure(pair, rows).forward
    assert expected is not None
    found = measure(pair, rows, cache=StateCache(root=tmp_path)).forward
    assert found is not None
    assert found.tolist() == expected.tolist()
    measure(pair, rows, batch_tokens=30, cache=StateCache(root=tmp_path, most_bytes=3000))
    assert sum(p.stat().st_size for p in tmp_path.glob("*/*.safetensors")) <= 3000


def test_ctrl_c_leaves_what_is_measured() -> None:
    pair, rows = pair_of(build.model(), build.model(seed=1)), random_documents()

    def stop(done: int, _: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    estimates: list[float] = []
    found = measure(pair, rows, batch_tokens=30, hooks=Hooks(estimate=estimates.append, progress=stop))
    assert found.partial is not None
    assert 0 < len(found.documents) < len(rows)
    assert len(found) == sum(len(d.ids) for d in found.documents)
    assert len(estimates) == 1
    assert estimates[0] > 0

    def at_once(*_: Any) -> None:
        raise KeyboardInterrupt

    broken = pytest.MonkeyPatch()
    with broken.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compare, "states", at_once)
        measure(pair, rows)


def test_nothing_to_measure() -> None:
    with pytest.raises(UsageError, match="no documents"):
        measure(pair_of(build.model(), build.model()), [])


def test_a_flip_that_rounding_could_have_made_is_not_sure() -> None:
    base = build.model()
    pair, rows = pair_of(base, moved(base, 0.05)), random_documents()
    sure, unsure = measure(pair, rows), measure(pair, rows, reach=math.log(2))
    assert sure.same_top1 is not None
    assert sure.sure_flip is not None
    assert unsure.sure_flip is not None
    assert sure.sure_flip.tolist() == (~sure.same_top1).tolist()
    assert sure.sure_flip.any()
    assert not unsure.sure_flip.any()
