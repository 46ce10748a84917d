"""The reference: the policy that the leash is tied to, frozen. Which one it is, is never left to chance.

A reference runs by the policy's own path, dtype and autocast, so that before the first update its states are bitwise
the policy's and every KL is exactly 0.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from kleash.errors import UsageError
from kleash.models import adapters
from kleash.models.fingerprint import fingerprint
from kleash.models.load import Loaded, load_frozen
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.tensors import ReferenceStates, Rollout


@runtime_checkable
class Reference(Protocol):
    """What the loop needs of a reference."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What it is; verified on resume with `kleash.models.fingerprint.differences`."""
        ...

    @property
    def policy(self) -> Policy:
        """The module that runs its forward: the trained policy itself, with another adapter, or a second one."""
        ...

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        """Final hidden states at the positions that predict each completion token, and the head; no gradients."""
        ...

    def running(self) -> AbstractContextManager[Policy]:
        """`policy` as the reference itself while the context lasts: to sample from."""
        ...


@dataclass(frozen=True)
class Frozen:
    """A second model in memory."""

    policy: Policy
    fingerprint: dict[str, Any]

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        return _states(self.policy, rollout, path, rows)

    @contextmanager
    def running(self) -> Iterator[Policy]:
        yield self.policy


@dataclass(frozen=True)
class AdapterOff:
    """The policy's base, its adapter switched off: no second model."""

    policy: Policy
    fingerprint: dict[str, Any]

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        with self.running() as policy:
            return _states(policy, rollout, path, rows)

    @contextmanager
    def running(self) -> Iterator[Policy]:
        with adapters.switched_off(self.policy.model):
            yield self.policy


@dataclass(frozen=True)
class AdapterSnapshot:
    """The policy's base with a frozen copy of the adapter that the run started from."""

    policy: Policy
    fingerprint: dict[str, Any]

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        with self.running() as policy:
            return _states(policy, rollout, path, rows)

    @contextmanager
    def running(self) -> Iterator[Policy]:
        with adapters.switched_to(self.policy.model, adapters.SNAPSHOT_ADAPTER):
            yield self.policy


def _states(policy: Policy, rollout: Rollout, path: PathName, rows: int | None) -> ReferenceStates:
    # no_grad, never inference_mode: its tensors could not be saved for the policy's backward pass.
    with torch.no_grad():
        hidden = policy.hidden(rollout, path, rows)
        head = policy.head()
    bias = None if head.bias is None else head.bias.detach()
    return ReferenceStates(hidden, replace(head, weight=head.weight.detach(), bias=bias))


def build_reference(spec: ModelSpec, loaded: Loaded, *, temperature: float = 1.0) -> Reference:
    """The reference that `spec.reference` names, for a policy that has just been loaded and not yet moved.

    Call it before the weights of a checkpoint are put into the policy: "start" means the policy as it is now.

    Raises:
        UsageError: "base" without an adapter, or a reference with another tokenizer.
    """
    policy, tokenizer = loaded.policy, loaded.tokenizer
    switched: str | None = None
    match spec.reference, loaded.adapter:
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
            other = _named(spec, loaded)
            kind, policy, tokenizer = Frozen, other.policy, other.tokenizer
            switched = None if other.adapter is None else adapters.POLICY_ADAPTER
    return kind(policy, fingerprint(policy, tokenizer, temperature=temperature, adapter=switched))


def _frozen_copy(policy: Policy) -> Policy:
    copy = Policy(deepcopy(policy.model), policy.recipe, compute=policy.compute)
    return copy.requires_grad_(False).eval()


def _named(spec: ModelSpec, loaded: Loaded) -> Loaded:
    """A second model, by name, whose tokens mean the same as the policy's."""
    asked = replace(
        spec, policy=spec.reference, reference="start", adapter=None, critic=None, gradient_checkpointing=False
    )
    other = load_frozen(asked, loaded.policy)
    if other.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise UsageError(
            f"the reference {spec.reference} has another tokenizer than the policy {spec.policy}, so their next-token "
            "distributions cannot be compared; choose a reference of the same family"
        )
    return other
