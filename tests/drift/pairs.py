"""Pairs of small random models for the tests of the audit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.models import build

from kleash.drift.parity import compare_tokens
from kleash.drift.sources import Pair, described
from kleash.drift.table import Document
from kleash.models.heads import recipe_from
from kleash.models.load import Loaded
from kleash.models.opened import Opened
from kleash.models.policy import Policy
from kleash.models.stopping import Ends


def opened(model: Any, vocab: int = build.VOCAB, name: str = "made") -> Opened:
    """A model made in memory, as `open_model` would have it."""
    tokenizer = build.tokenizer(vocab)
    policy = Policy(model, recipe_from(model.config, vocab)).requires_grad_(False).eval()
    return Opened(
        loaded=Loaded(
            policy=policy,
            tokenizer=tokenizer,
            name=name,
            source=Path(name),
            context=model.config.max_position_embeddings,
            ends=Ends.of(tokenizer),
            paths=("plain",),
            reading=("plain",),
            adapter=None,
        )
    )


def pair_of(base: Any, tuned: Any, vocab: int = build.VOCAB) -> Pair:
    """Two models in memory with one tokenizer."""
    first, second = opened(base, vocab, "base"), opened(tuned, vocab, "tuned")
    return Pair(
        base=described("base", first), tuned=described("tuned", second), compared=compare_tokens(first, second, "tuned")
    )


def documents(rows: Sequence[Sequence[int]], prompt: Sequence[int] = (1,)) -> list[Document]:
    """Token ids as documents after one prompt."""
    return [
        Document(
            id=f"d{number}",
            domain=None,
            prompt_text="",
            text="".join(f"t{i} " for i in ids),
            ids=tuple(ids),
            pieces=tuple(f"t{i} " for i in ids),
            classes=(0,) * len(ids),
            prompt_base=tuple(prompt),
            prompt_tuned=tuple(prompt),
        )
        for number, ids in enumerate(rows)
    ]


def random_documents(number: int = 9, most: int = 20, seed: int = 0, vocab: int = build.VOCAB) -> list[Document]:
    """Documents of different lengths."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, most, (number,), generator=g).tolist()
    return documents([torch.randint(3, vocab, (n,), generator=g).tolist() for n in lengths])


@torch.no_grad()
def full_logprobs(model: Any, document: Document, side: str = "base") -> torch.Tensor:
    """log-probs [scored, V] in float64 from the model's own logits, the document alone."""
    prompt = getattr(document, f"prompt_{side}")
    ids = torch.tensor([[*prompt, *document.ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1)
