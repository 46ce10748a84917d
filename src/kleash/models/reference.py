"""From a config to the reference: the policy that the leash is tied to. Which one it is, is never left to chance."""

from copy import deepcopy
from dataclasses import replace

import torch

from kleash.errors import UsageError
from kleash.models import adapters
from kleash.models.fingerprint import fingerprint
from kleash.models.frozen import AdapterOff, AdapterSnapshot, Frozen, Reference
from kleash.models.load import Loaded, load_frozen
from kleash.models.moving import Moving
from kleash.models.policy import Policy
from kleash.models.several import Several
from kleash.models.spec import DType, ModelSpec


def build_reference(spec: ModelSpec, loaded: Loaded, *, temperature: float = 1.0) -> Reference:
    """The reference that `spec.reference` names, for a policy that has just been loaded and not yet moved.

    Call it before the weights of a checkpoint are put into the policy: "start" means the policy as it is now.

    Raises:
        UsageError: "base" without an adapter, a reference with another tokenizer, or one that cannot follow the policy.
    """
    if not isinstance(spec.reference, str):
        each = {one.model: _still(spec, one.model, loaded, temperature) for one in spec.reference}
        return Several(dict(each), tuple(one.weight for one in spec.reference))
    origin = _still(spec, spec.reference, loaded, temperature)
    return origin if spec.reference_update is None else _moving(spec, loaded, origin)


def _still(spec: ModelSpec, name: str, loaded: Loaded, temperature: float) -> Frozen | AdapterOff | AdapterSnapshot:
    policy, tokenizer = loaded.policy, loaded.tokenizer
    switched: str | None = None
    match name, loaded.adapter:
        case "start", None:
            kind, policy = Frozen, _frozen_copy(policy)
        case "start", "loaded":
            adapters.snapshot(policy.model)
            kind, switched = AdapterSnapshot, adapters.SNAPSHOT_ADAPTER
        case ("start", "fresh") | ("base", "fresh" | "loaded"):  # a fresh adapter changes nothing: B = 0
            kind = AdapterOff
        case "base", None:
            raise UsageError(
                'model.reference = "base" means the adapter switched off, and this policy has none; '
                'use "start" (the policy as loaded), or name a model'
            )
        case _:
            other = _named(spec, name, loaded)
            kind, policy, tokenizer = Frozen, other.policy, other.tokenizer
            switched = None if other.adapter is None else adapters.POLICY_ADAPTER
    if spec.reference_dtype is not None:
        policy = _stored(policy, spec.reference_dtype, kind)
    return kind(policy, fingerprint(policy, tokenizer, temperature=temperature, adapter=switched))


def _stored(policy: Policy, dtype: DType, kind: type) -> Policy:
    """The same weights kept and computed in another precision."""
    if kind is not Frozen:
        raise UsageError(
            f"model.reference_dtype = {dtype!r}: the reference is the policy's own base with another adapter, so its "
            "precision is the policy's; leave it out"
        )
    return Policy(policy.model.to(getattr(torch, dtype)), policy.recipe, compute=None).requires_grad_(False).eval()


def _moving(spec: ModelSpec, loaded: Loaded, origin: Frozen | AdapterOff | AdapterSnapshot) -> Moving:
    """One that starts as `origin`: a second copy of a model, or of an adapter."""
    policy = loaded.policy
    if isinstance(origin, Frozen):
        start, followed = (dict(p.model.named_parameters()) for p in (origin.policy, policy))
        if {name: w.shape for name, w in start.items()} != {name: w.shape for name, w in followed.items()}:
            raise UsageError(
                f"the reference {spec.reference} cannot follow the policy: its weights are not of the same names and "
                'shapes. With an adapter, use model.reference = "start" or "base"'
            )
        return Moving(Frozen(_frozen_copy(origin.policy), origin.fingerprint), origin, policy, start)
    name = adapters.MOVING_ADAPTER
    adapters.snapshot(policy.model, name, off=isinstance(origin, AdapterOff))
    moving = Moving(AdapterSnapshot(policy, origin.fingerprint, name), origin, policy, {})
    moving.start = {name: weight.clone() for name, weight in moving.tensors().items()}
    return moving


def _frozen_copy(policy: Policy) -> Policy:
    copy = Policy(deepcopy(policy.model), policy.recipe, compute=policy.compute)
    return copy.requires_grad_(False).eval()


def _named(spec: ModelSpec, name: str, loaded: Loaded) -> Loaded:
    """A second model, by name, whose tokens mean the same as the policy's."""
    asked = replace(spec, policy=name, reference="start", reference_update=None, adapter=None, critic=None)
    asked = replace(asked, quantize=None, reference_dtype=None, gradient_checkpointing=False)
    other = load_frozen(asked, loaded.policy)
    if other.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise UsageError(
            f"the reference {name} has another tokenizer than the policy {spec.policy}, so their next-token "
            "distributions cannot be compared; choose a reference of the same family"
        )
    return other
