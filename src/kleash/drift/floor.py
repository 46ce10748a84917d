"""The noise floor: what rounding alone makes of a model compared with itself. A KL below it is no measurable drift."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kleash.drift.compare import Batch, batches, states
from kleash.drift.records import Floor
from kleash.drift.sources import Model, Pair
from kleash.drift.table import Document
from kleash.errors import RunError
from kleash.kl.audit import audit
from kleash.models.exhausted import is_out_of_memory, release
from kleash.models.rounding import held_in
from kleash.tensors import Head

#: Scored tokens that are run again, and that are run in the other precision: its noise is larger and varies more.
TOKENS = 512
PRECISION_TOKENS = 2048
BATCH_TOKENS = 2048


def measure_floor(pair: Pair, documents: Sequence[Document]) -> tuple[Floor, float]:
    """The base against itself, and the largest KL that this makes of one token.

    What is varied: the same forward again; each document alone instead of with others; and, if either model computes
    in half precision, that precision against float32 (left out for quantised weights, or where memory is short). The
    floor is the largest of the means of |KL|: what is nothing but rounding may come out below 0.

    Raises:
        RunError: every token's distribution is broken (NaN).
    """
    together = batches(few(documents, TOKENS), BATCH_TOKENS)
    alone = [Batch([n], [document]) for batch in together for n, document in zip(*batch, strict=True)]
    first = _all_states(pair.base, together)
    found = {
        "repeated": _apart(first, _all_states(pair.base, together), together),
        "batch shape": _apart(first, _all_states(pair.base, alone), together),
    }
    coarse = _coarse(pair)
    if coarse is not None and (rounded := _precision(pair, documents, coarse)) is not None:
        found[f"{str(coarse).removeprefix('torch.')} against float32"] = rounded
    finite = {name: kl[kl.isfinite()].abs() for name, kl in found.items()}
    if not all(len(kl) for kl in finite.values()):
        raise RunError(f"the base model {pair.base.record.name} gives NaN on every token: its weights are broken")
    by = {name: float(kl.mean()) for name, kl in finite.items()}
    return Floor(value=max(by.values()), by=by), max(float(kl.max()) for kl in finite.values())


def few(documents: Sequence[Document], tokens: int) -> list[Document]:
    """The first documents with so many scored tokens together, one at least."""
    total, found = 0, []
    for document in documents:
        if found and total + len(document.ids) > tokens:
            break
        found.append(document)
        total += len(document.ids)
    return found


def _all_states(model: Model, parts: Sequence[Batch]) -> tuple[Tensor, Head]:
    found = [states(model, batch, "base") for batch in parts]
    return torch.cat([hidden for hidden, _ in found]), found[0][1]


def _apart(a: tuple[Tensor, Head], b: tuple[Tensor, Head], parts: Sequence[Batch]) -> Tensor:
    """The forward KL of each token, both sides in the order of `parts`."""
    targets = [i for batch in parts for document in batch.documents for i in document.ids]
    return audit(*a, *b, torch.tensor(targets, device=a[0].device)).forward


def _coarse(pair: Pair) -> torch.dtype | None:
    """The half precision that one of the two computes in, None if neither does or the base cannot be moved to it."""
    if pair.base.opened.quantised is not None:
        return None
    dtypes = [side.opened.policy.causal.dtype for side in (pair.base, pair.tuned)]
    half = [dtype for dtype in dtypes if dtype.itemsize == 2]
    return half[0] if half else None


def _precision(pair: Pair, documents: Sequence[Document], coarse: torch.dtype) -> Tensor | None:
    """The base in float32 against the base in half precision; None where both do not fit into memory."""
    policy, parts = pair.base.opened.policy, batches(few(documents, PRECISION_TOKENS), BATCH_TOKENS)
    stored_coarse = policy.causal.dtype == coarse
    try:
        first = _all_states(pair.base, parts)
        with held_in(policy, torch.float32 if stored_coarse else coarse):
            second = _all_states(pair.base, parts)
            return _apart(second, first, parts) if stored_coarse else _apart(first, second, parts)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        release()
        return None
