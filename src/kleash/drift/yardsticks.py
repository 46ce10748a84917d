"""A KL in things a person can feel: times the noise floor, the model in 4 bits, a change of temperature."""

import math
from collections.abc import Sequence

import torch

from kleash.drift.compare import batches, states
from kleash.drift.floor import BATCH_TOKENS, few
from kleash.drift.records import Floor, Yardsticks
from kleash.drift.sources import Model, Pair
from kleash.drift.table import Document
from kleash.kl.audit import audit
from kleash.kl.tempering import equivalent_temperature, tempered_kl
from kleash.models.rounding import SCHEME, in_four_bits, share_on_grid

#: Scored tokens that the yardsticks are measured on.
TOKENS = 2048


@torch.no_grad()
def measure_yardsticks(
    pair: Pair, documents: Sequence[Document], forward: float, *, cooler: bool, floor: Floor | None
) -> Yardsticks:
    """What a mean forward KL of `forward` nats amounts to, on (some of) the same documents.

    Args:
        cooler: whether to look for a temperature below 1: the tuned model is surer of its tokens than the base.
    """
    parts = batches(few(documents, TOKENS), BATCH_TOKENS)
    known = [states(pair.base, batch, "base") for batch in parts]
    hidden, head = torch.cat([h for h, _ in known]), known[0][1]
    temperature = equivalent_temperature(lambda ts: tempered_kl(hidden, head, ts).tolist(), forward, cooler=cooler)
    scheme = _already(pair.base)
    four_bit = None
    if scheme is None:
        with in_four_bits(pair.base.opened.policy):
            rounded = torch.cat([states(pair.base, batch, "base")[0] for batch in parts])
        targets = [i for batch in parts for document in batch.documents for i in document.ids]
        kl = audit(hidden, head, rounded, head, torch.tensor(targets, device=hidden.device)).forward
        four_bit, scheme = float(kl[kl.isfinite()].mean()), SCHEME
    return Yardsticks(
        times_floor=forward / floor.value if floor is not None and floor.value > 0 else None,
        four_bit=four_bit,
        four_bit_scheme=scheme,
        temperature=None if math.isnan(temperature) else temperature,
    )


def _already(base: Model) -> str | None:
    """Why the base is not rounded to 4 bits: it is so already, in words."""
    if base.opened.quantised is not None:
        return f"not measured: the base is quantised already ({base.opened.quantised})"
    share = share_on_grid(base.opened.policy)
    return f"already 4-bit: {share:.0%} of the base's linear weights lie on a 4-bit grid" if share > 0.5 else None
