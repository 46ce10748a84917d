"""What the loop needs of a reference, and the kinds of one that stay as they are.

A reference runs by the policy's own path, dtype and autocast, so that before the first update its states are bitwise
the policy's and every KL is exactly 0.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from kleash.models import adapters
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.tensors import ReferenceStates, Rollout


@runtime_checkable
class Reference(Protocol):
    """What the loop needs of a reference."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What it is; verified on resume with `kleash.models.fingerprint.differences`."""
        ...

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The modules that run its forward: the trained policy itself, with another adapter, or further ones."""
        ...

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        """Final hidden states at the positions that predict each completion token, and the head; no gradients."""
        ...

    def running(self) -> AbstractContextManager[Policy]:
        """One of `policies` as the reference itself while the context lasts: to sample from."""
        ...


@dataclass(frozen=True)
class Frozen:
    """A second model in memory."""

    policy: Policy
    fingerprint: dict[str, Any]

    @property
    def policies(self) -> tuple[Policy, ...]:
        return (self.policy,)

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

    @property
    def policies(self) -> tuple[Policy, ...]:
        return (self.policy,)

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        with self.running() as policy:
            return _states(policy, rollout, path, rows)

    @contextmanager
    def running(self) -> Iterator[Policy]:
        with adapters.switched_off(self.policy.model):
            yield self.policy


@dataclass(frozen=True)
class AdapterSnapshot:
    """The policy's base with a second adapter, which does not train: a copy of the one that the run started from."""

    policy: Policy
    fingerprint: dict[str, Any]
    name: str = adapters.SNAPSHOT_ADAPTER

    @property
    def policies(self) -> tuple[Policy, ...]:
        return (self.policy,)

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        with self.running() as policy:
            return _states(policy, rollout, path, rows)

    @contextmanager
    def running(self) -> Iterator[Policy]:
        with adapters.switched_to(self.policy.model, self.name):
            yield self.policy


def _states(policy: Policy, rollout: Rollout, path: PathName, rows: int | None) -> ReferenceStates:
    # no_grad, never inference_mode: its tensors could not be saved for the policy's backward pass.
    with torch.no_grad():
        hidden = policy.hidden(rollout, path, rows)
        head = policy.head()
    bias = None if head.bias is None else head.bias.detach()
    return ReferenceStates(hidden, replace(head, weight=head.weight.detach(), bias=bias))
