"""Samples of either side, and bits a byte of two that share no tokens."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drift.pairs import pair_of
from tests.models import build
from tests.tolerances import FP32

from kleash.drift import words
from kleash.drift.byte_scores import measure_bytes
from kleash.drift.compare import measure
from kleash.drift.sources import open_pair
from kleash.drift.texts import Text
from kleash.drift.words import samples
from kleash.errors import RunError, UsageError
from kleash.models.draw import keyed_noise

ASKED = [Text(id=f"q{n}", domain=None, prompt=" ".join(["t4"] * (n + 1)), answer="") for n in range(7)]


def test_a_side_answers_each_prompt_from_its_own_distribution() -> None:
    base, tuned = build.model(), build.model(seed=1)
    pair = pair_of(base, tuned)
    for side, model in (("base", base), ("tuned", tuned)):
        found = samples(pair, ASKED, side, max_new_tokens=6, seed=3)
        assert [d.id for d in found] == [text.id for text in ASKED]
        noise = keyed_noise(3, 0, list(range(7)), 1, 6)
        for row, document in enumerate(found):
            assert document.ended == (document.ids[-1] == 2)
            assert len(document.ids) == 6 or document.ended
            assert document.prompt_base == document.prompt_tuned == (4,) * (row + 1)
            first = likeliest_with_noise(model, document.prompt_base, noise[row, 0])
            assert document.ids[0] == first
        assert measure(pair, found).non_finite == 0


def test_the_likeliest_answer_is_the_models_own_argmax_token_by_token() -> None:
    model = build.model(seed=1)
    for document in samples(pair_of(build.model(), model), ASKED, "tuned", max_new_tokens=5, greedy=True):
        for n, token in enumerate(document.ids):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*document.prompt_base, *document.ids[:n]]])).logits[0, -1]
            assert token == int(logits.argmax())


def likeliest_with_noise(model: Any, prompt: tuple[int, ...], noise: torch.Tensor) -> int:
    """The sampler's draw, with its own arithmetic on the model's own logits."""
    from kleash.models.draw import draw

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0, -1:]
    return int(draw(logits.log_softmax(-1), noise[None]))


def test_the_same_seed_draws_the_same_whatever_is_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(build.model(), build.model(seed=1))
    whole = [d.ids for d in samples(pair, ASKED, "tuned", max_new_tokens=6)]
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(words, "TOGETHER", 3)
    again = samples(pair, ASKED, "tuned", max_new_tokens=6, progress=lambda *n: told.append(n))
    assert [d.ids for d in again] == whole
    assert told == [(3, 7), (6, 7), (7, 7)]
    assert [d.ids for d in samples(pair, ASKED, "tuned", max_new_tokens=6, seed=1)] != whole


def test_where_memory_runs_out_fewer_answer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = pair_of(build.model(), build.model(seed=1))
    whole = [d.ids for d in samples(pair, ASKED, "base", max_new_tokens=6)]
    true = words.sample

    def starved(policy: Any, prompts: Any, *args: Any, **more: Any) -> Any:
        if len(prompts) > 2:
            raise MemoryError
        return true(policy, prompts, *args, **more)

    monkeypatch.setattr(words, "sample", starved)
    assert [d.ids for d in samples(pair, ASKED, "base", max_new_tokens=6)] == whole

    def hopeless(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(words, "sample", hopeless)
    with pytest.raises(RunError, match="answered one prompt"):
        samples(pair, ASKED, "base", max_new_tokens=6)


def test_prompts_without_room_and_texts_without_prompts() -> None:
    pair = pair_of(build.model(), build.model())
    long = Text(id="long", domain=None, prompt=" ".join(["t4"] * 60), answer="")
    assert [d.id for d in samples(pair, [*ASKED, long], "base", max_new_tokens=6)] == [text.id for text in ASKED]
    with pytest.raises(UsageError, match="leaves room for 6 new tokens in a context of 64"):
        samples(pair, [long], "base", max_new_tokens=6)
    with pytest.raises(UsageError, match="no prompt to answer"):
        samples(pair, [Text(id="a", domain=None, prompt="", answer="t5")], "base")


def test_bits_a_byte_of_two_tokenizers(tmp_path: Path) -> None:
    pair = open_pair(str(build.checkpoint(tmp_path)), "kleash:tiny")
    texts = [
        Text(id="a", domain="x", prompt="", answer="t5 t6 t7"),
        Text(id="b", domain=None, prompt="t8 ", answer="t9 t10"),
        Text(id="long", domain=None, prompt="", answer=" ".join(["t5"] * 100)),
        Text(id="prompt", domain=None, prompt="t8", answer=""),
    ]
    found = measure_bytes(pair, texts)
    assert (found.ids, found.domains, found.left_out) == (("a", "b"), ("x", None), 1)
    assert found.n_bytes.tolist() == [8, 6]
    model = build.model()

    def bits(prompt: list[int], ids: list[int]) -> float:
        with torch.no_grad():
            logprobs = model(input_ids=torch.tensor([prompt + ids])).logits[0].double().log_softmax(-1)
        return -sum(float(logprobs[len(prompt) - 1 + n, i]) for n, i in enumerate(ids)) / math.log(2)

    assert found.bits_base == pytest.approx(np.array([bits([2], [5, 6, 7]), bits([8], [9, 10])]), rel=FP32)
    assert found.bits_per_byte[0] == pytest.approx(found.bits_base.sum() / 14, rel=FP32)
    assert np.isfinite(found.bits_tuned).all()
    with pytest.raises(UsageError, match="none of these texts fits"):
        measure_bytes(pair, texts[2:3])
