"""Classes of tokens, the KL by class against a slow loop, and which weights are refused."""

import math

import pytest
import torch
from tests.models import small_tokenizers
from tests.tolerances import EXACT
from tests.training.enumerated import EOS, small_tokenizer
from tests.training.small import settings, steps

from kleash.errors import UsageError
from kleash.models.stopping import Ends
from kleash.models.token_classes import CLASSES, token_classes
from kleash.training.api import start
from kleash.training.token_weights import ClassWeights, by_class
from kleash.training.toml import parse_config


def classed(tokenizer, size: int | None = None, **options) -> dict[str, set[str]]:
    """class → the tokens of it, by their names in the vocabulary."""
    size = len(tokenizer) if size is None else size
    numbers = token_classes(tokenizer, Ends.of(tokenizer), size, **options).tolist()
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return {kind: {names[i] for i, n in enumerate(numbers) if n == c} for c, kind in enumerate(CLASSES)}


def test_classes_by_the_token_alone():
    tokenizer = small_tokenizers.byte_level()
    tokenizer.add_tokens(["<think>"])
    found = classed(tokenizer)
    assert found["eos"] == {tokenizer.eos_token}
    assert {"<think>", "Ġ", ".", "!", "Ċ"} <= found["format"]
    assert {"a", "7", "Z"} <= found["content"]
    pieces = {
        t for t in tokenizer.get_vocab() if len(t) == 1 and tokenizer.decode([tokenizer.get_vocab()[t]]) == "\ufffd"
    }
    assert pieces and pieces <= found["content"], "a byte of a character that is not whole"
    assert "a" in classed(tokenizer, pattern="[ab]")["format"]
    assert "." in classed(tokenizer, pattern="[ab]")["content"]


def test_rows_beyond_the_tokenizer_are_content():
    numbers = token_classes(small_tokenizer(), Ends((EOS,), EOS), 9)
    assert numbers.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0]


def test_kl_by_class_equals_a_slow_loop():
    random = torch.Generator().manual_seed(2)
    kl, mask = torch.rand(4, 6, generator=random), torch.rand(4, 6, generator=random) < 0.7
    classes = torch.randint(3, (4, 6), generator=random)
    mean, share = by_class(kl, mask, classes)
    cells = [(float(kl[i, t]), int(classes[i, t])) for i, t in mask.nonzero().tolist()]
    total = math.fsum(k for k, _ in cells)
    for number, name in enumerate(CLASSES):
        own = [k for k, c in cells if c == number]
        assert mean[name] == pytest.approx(math.fsum(own) / len(own), rel=EXACT)
        assert share[name] == pytest.approx(math.fsum(own) / total, rel=EXACT)
    none, shares = by_class(torch.zeros(4, 6), mask, torch.zeros_like(classes))
    assert (none, shares) == ({"content": 0.0}, {})


def test_the_parts_are_those_of_kl_ref(tmp_path):
    run = start(parse_config(settings(tmp_path, train__learning_rate=0.05, train__max_new_tokens=20, train__steps=3)))
    for step in steps(run.path):
        if step.kl_ref.value == 0:
            assert step.kl_share == {}
            continue
        assert math.fsum(step.kl_share.values()) == pytest.approx(1, rel=EXACT)
        # the whole is Σ K_t; a class's part of it is its share, and its tokens are that over its mean
        whole = step.kl_ref_token.value * step.kl_ref_token.n_tokens
        tokens = [share * whole / step.kl_class[name] for name, share in step.kl_share.items() if step.kl_class[name]]
        assert math.fsum(tokens) == pytest.approx(step.kl_ref_token.n_tokens)


@pytest.mark.parametrize("weights", [{"eos": -1.0}, {"eos": 0.0, "format": 0.0, "content": 0.0}])
def test_weights_that_hold_nothing_are_refused(weights):
    with pytest.raises(UsageError, match=r"kl\.weights"):
        ClassWeights(**weights)


@pytest.mark.parametrize("penalty", ["in_reward", "future_sampled", {"kind": "in_loss", "estimator": "k2"}])
def test_weights_on_a_sampled_charge_are_refused(tmp_path, penalty):
    with pytest.raises(UsageError, match='use "exact", "chi2"'):
        parse_config(settings(tmp_path, kl__penalty=penalty, kl__weights={"eos": 0.0}))


def test_a_pattern_that_is_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="not a regular expression"):
        parse_config(settings(tmp_path, kl__format="["))
