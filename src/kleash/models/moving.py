"""A reference whose weights follow the policy's, with the first one kept beside it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kleash.errors import RunError
from kleash.models.adapters import POLICY_ADAPTER
from kleash.models.fingerprint import adapter_digest, differences, weights_digest
from kleash.models.frozen import AdapterSnapshot, Frozen, Reference
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.tensors import ReferenceStates, Rollout


@dataclass(slots=True)
class Moving:
    """`current` is what the leash is tied to now, `origin` what it was tied to first; `moved`: they are not the same.

    Of an adapter, `current` is a copy of it in the same model, whose factors A and B move, each by itself. Samples are
    drawn from the origin, so that what is compared with them is compared with one and the same thing all along.
    `start`: the weights of `current` before its first move.
    """

    current: Frozen | AdapterSnapshot
    origin: Reference
    followed: Policy
    start: Mapping[str, Tensor]
    moved: bool = False

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Of the origin: what the run started from."""
        return self.origin.fingerprint

    @property
    def policies(self) -> tuple[Policy, ...]:
        return (*self.current.policies, *self.origin.policies)

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        """With the origin's states in it, once they are others: a second pass."""
        states = self.current.states(rollout, path, rows)
        return replace(states, origin=self.origin.states(rollout, path, rows)) if self.moved else states

    def running(self) -> AbstractContextManager[Policy]:
        return self.origin.running()

    def follow(self, share: float) -> None:
        """weights ← share·policy + (1 − share)·weights, in place; with share 1 they are bitwise the policy's.

        Source: Gorbatovski et al. 2024 (TR-DPO), arXiv 2404.09656.
        Proved by: tests/models/test_moving.py::test_a_move_is_the_weighted_mean
        """
        with torch.no_grad():
            for weight, policys in self._pairs():
                weight.lerp_(policys.to(weight.dtype), share)
        self.moved = True

    def fingerprint_now(self) -> dict[str, Any]:
        """Of the weights as they are now; the rest of a model does not move."""
        if isinstance(self.current, AdapterSnapshot):
            return {**self.fingerprint, "adapter": adapter_digest(self.current.policy, self.current.name)}
        return {**self.fingerprint, "weights": weights_digest(self.current.policy)}

    def tensors(self) -> dict[str, Tensor]:
        """All that moves, by name."""
        return {name: weight.detach() for name, weight in self._weights()}

    def put(self, tensors: Mapping[str, Tensor], expected: Mapping[str, Any]) -> None:
        """The moved weights as they were saved.

        Raises:
            RunError: they are not those whose fingerprint was `expected`.
        """
        with torch.no_grad():
            for name, weight in self._weights():
                if name not in tensors or tensors[name].shape != weight.shape:
                    raise RunError(f"the reference that was saved is of another model: it has no {name} of this shape")
                weight.copy_(tensors[name])
        self.moved = True
        if odd := differences(dict(expected), self.fingerprint_now()):
            raise RunError(f"the reference that was saved is not the one that the run had ({'; '.join(odd)})")

    def restart(self) -> None:
        """Back to the weights it started from."""
        with torch.no_grad():
            for name, weight in self._weights():
                weight.copy_(self.start[name])
        self.moved = False

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        named = self.current.policy.model.named_parameters()
        if isinstance(self.current, Frozen):
            return named
        own = self.current.name
        return ((name, weight) for name, weight in named if own in name.split("."))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        policys = dict(self.followed.model.named_parameters())
        for name, weight in self._weights():
            parts = name.split(".")
            if isinstance(self.current, AdapterSnapshot):
                parts = [POLICY_ADAPTER if part == self.current.name else part for part in parts]
            yield weight, policys[".".join(parts)]
