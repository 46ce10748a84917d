"""Several references at once, each with a weight: Σ_i w_i KL(π‖ref_i)."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from kleash.models.frozen import Reference
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.tensors import ReferenceStates, Rollout


@dataclass(frozen=True)
class Several:
    """References by name, and their weights, which add up to 1. The first is the one that samples are drawn from.

    Σ_i w_i KL(π‖ref_i) = KL(π‖Π ref_i^w_i / Z) − log Z over whole sequences: the optimum of E[r] − β·that is
    π ∝ Π ref_i^w_i · exp(r/β), and the least it can be is −log Z, which is 0 only where all are one.

    Source: Aminian et al. 2025, arXiv 2502.01203 (reverse KL to several references).
    Proved by: tests/training/test_several.py::test_the_optimum_is_the_geometric_mixture
    """

    references: dict[str, Reference]
    weights: tuple[float, ...]

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Of each, by its name and weight."""
        named = zip(self.references.items(), self.weights, strict=True)
        return {f"{name} × {weight:g}": reference.fingerprint for (name, reference), weight in named}

    @property
    def policies(self) -> tuple[Policy, ...]:
        return tuple(policy for reference in self.references.values() for policy in reference.policies)

    def states(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> ReferenceStates:
        """The first one's, with the others' in it: a pass for each."""
        weighed = zip(self.references.values(), self.weights, strict=True)
        first, *others = (replace(one.states(rollout, path, rows), weight=weight) for one, weight in weighed)
        return replace(first, others=tuple(others))

    def running(self) -> AbstractContextManager[Policy]:
        return next(iter(self.references.values())).running()
