"""Models with different tokenizers, read on the same texts: bits a byte. No KL: there is no common set of tokens."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from kleash.drift.compare import BATCH_TOKENS, batches, states
from kleash.drift.sources import Model, Pair
from kleash.drift.table import ByteTable, Document
from kleash.drift.texts import Text, encoded
from kleash.errors import UsageError
from kleash.kl.fused import fused
from kleash.models.prompts import bare_ids


@torch.no_grad()
def measure_bytes(pair: Pair, texts: Sequence[Text]) -> ByteTable:
    """−log2 of each answer's (or text's) probability under either model, each through its own tokens and template.

    A text of the kind that has no prompt begins after the model's begin token, or its end token where it has none, so
    that all its bytes are scored. End tokens are not: they are no bytes. Texts that do not fit into a context are left
    out.

    Raises:
        UsageError: no text fits.
    """
    answered = [text for text in texts if text.answer.strip()]
    sides = [_documents(model, answered) for model in (pair.base, pair.tuned)]
    fits = [
        n
        for n, documents in enumerate(zip(*sides, strict=True))
        if all(d.ids and len(d.prompt_base) + len(d.ids) <= pair.reading.context for d in documents)
    ]
    if not fits:
        raise UsageError(f"none of these texts fits into a context of {pair.reading.context} tokens")
    bits = [
        _bits(model, [documents[n] for n in fits])
        for model, documents in zip((pair.base, pair.tuned), sides, strict=True)
    ]
    kept = [answered[n] for n in fits]
    return ByteTable(
        ids=tuple(text.id for text in kept),
        domains=tuple(text.domain for text in kept),
        n_bytes=np.array([len(text.answer.encode()) for text in kept], np.int64),
        bits_base=bits[0],
        bits_tuned=bits[1],
        left_out=len(answered) - len(kept),
    )


def _documents(model: Model, texts: Sequence[Text]) -> list[Document]:
    """The texts in this model's own tokens; both prompts of a document are its own here."""
    tokenizer, ends = model.tokenizer, model.opened.loaded.ends.eos_ids
    begin = ends[0] if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    asked = [text for text in texts if text.prompt]
    known = dict(zip((t.id for t in asked), encoded(asked, model.reader, model.reader.rows), strict=True))
    found = []
    for text in texts:
        prompt, ids = known.get(text.id) or ([begin], bare_ids([text.answer], tokenizer)[0])
        ids = ids[:-1] if ids and ids[-1] in ends else ids
        found.append(
            Document(
                id=text.id,
                domain=text.domain,
                prompt_text=text.shown,
                text=text.answer,
                ids=tuple(ids),
                pieces=(),
                classes=(0,) * len(ids),
                prompt_base=tuple(prompt),
                prompt_tuned=tuple(prompt),
            )
        )
    return found


def _bits(model: Model, documents: Sequence[Document]) -> np.ndarray:
    """Of each document; NaN where a token's log-prob is not finite."""
    found = np.empty(len(documents))
    for batch in batches(documents, BATCH_TOKENS[model.opened.policy.device.type]):
        hidden, head = states(model, batch, "base")
        targets = torch.tensor([i for d in batch.documents for i in d.ids], device=hidden.device)
        logprobs = fused(hidden, head, targets).logprobs.cpu().double()
        for number, part in zip(batch.numbers, logprobs.split([len(d.ids) for d in batch.documents]), strict=True):
            total = float(-part.sum() / math.log(2))
            found[number] = total if math.isfinite(total) else math.nan
    return found
