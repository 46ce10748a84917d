"""Where each byte goes: what a run holds, and what it is going to need.

Weights are counted. What a pass keeps is reckoned from what small passes of the model kept (`measured`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kleash.kl.fused import CPU_CHUNK_BYTES, DEVICE_CHUNK_BYTES
from kleash.models.plan import Plan, Size, Work, activations, decoding, gathering
from kleash.models.policy import Policy
from kleash.models.quantised import quantised_layers

#: held: there once the models are loaded. run: from the first update on. update, sampling: while it lasts.
When = Literal["held", "run", "update", "sampling"]


@dataclass(frozen=True, slots=True)
class Entry:
    what: str
    size: int
    when: When


def entries(policy: Policy, references: Sequence[Policy], size: Size, work: Work) -> list[Entry]:
    """All that does not depend on how much goes through at a time."""
    own = list(policy.parameters()) + list(policy.buffers())
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    moved = held(trained)
    beside = [tensor for other in references for tensor in (*other.parameters(), *other.buffers())]
    other = held([*own, *beside]) - held(own)
    frozen = held(own) - moved
    states = sum(work.rows * work.length * size.hidden * element_of(other) for other in references)
    found = [
        Entry("weights that are trained", moved, "held"),
        Entry("weights that are not", frozen, "held"),
        Entry("reference's own weights", other, "held"),
        Entry("gradients", moved, "run"),
        Entry("optimizer state", sum(2 * p.numel() * p.element_size() + 4 for p in trained), "run"),
        Entry("weights in the compute dtype", int(size.bodies * size.kept.fixed), "update"),
        Entry("reference's hidden states", states, "update"),
        Entry("head, fused", _head(policy, size, work), "update"),
        Entry("head in fp32", _widened(policy), "sampling"),
        Entry("a quantised layer, unpacked", _unpacked(policy), "update"),
        Entry("a quantised layer, unpacked", _unpacked(policy), "sampling"),
    ]
    return [entry for entry in found if entry.size]


def planned(size: Size, work: Work, plan: Plan) -> list[Entry]:
    """What a plan decides."""
    found = [
        Entry("activations", activations(size, work, plan), "update"),
        Entry("gradients of a pass, gathered", gathering(size, work, plan), "update"),
        Entry("keys and values of the sampler", decoding(size, work, plan.sampled), "sampling"),
    ]
    return [entry for entry in found if entry.size]


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes behind these tensors, each storage once: a tied weight is one, so is one shared by two models."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def to_come(found: Iterable[Entry]) -> int:
    """Bytes of these that are not there once the models are loaded, at an update's peak."""
    return sum(entry.size for entry in found if entry.when in ("run", "update"))


def peak(found: Iterable[Entry]) -> int:
    """Bytes of all that is there together: in an update or while sampling, whichever is more."""
    kept = {when: sum(e.size for e in found if e.when == when) for when in ("held", "run", "update", "sampling")}
    return kept["held"] + kept["run"] + max(kept["update"], kept["sampling"])


def element_of(policy: Policy) -> int:
    """Bytes of a number in its final hidden states."""
    return (policy.compute or policy.causal.dtype).itemsize


def _widened(policy: Policy) -> int:
    weight = policy.head().weight
    return 4 * weight.numel() if weight.dtype.itemsize < 4 else 0


def _unpacked(policy: Policy) -> int:
    """The largest, in the dtype it computes in, with four bytes for each of what was two weights in a byte."""
    sizes = [layer.in_features * layer.out_features for layer in quantised_layers(policy.body)]
    return max(sizes, default=0) * (element_of(policy) + 2)


def _head(policy: Policy, size: Size, work: Work) -> int:
    """Three tiles of logits, the hidden states that meet them with their gradient, and the gradient of the weight."""
    chunk = CPU_CHUNK_BYTES if policy.device.type == "cpu" else DEVICE_CHUNK_BYTES
    tokens, weight = work.groups * work.group_size * work.length, policy.head().weight
    tiles = 3 * min(chunk, 4 * tokens * size.vocab)
    return tiles + 3 * tokens * size.hidden * 4 + (held([weight]) if weight.requires_grad else 0)
