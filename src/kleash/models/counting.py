"""Counts the token positions that really go through a model, by phase: a claim about cost is measured, not derived."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from kleash.models.policy import Policy


class TokenCounter:
    """Counts every forward of the bodies of these policies and of their critics (a shared body once).

    `counts` maps phase → token positions, padding included: it is what was computed. Forwards outside any phase are
    counted under "other".
    """

    def __init__(self, *policies: Policy) -> None:
        self.counts: Counter[str] = Counter()
        self._phase = "other"
        critics = [policy.critic.body for policy in policies if policy.critic is not None]
        bodies = {id(body): body for body in [*(p.body for p in policies), *critics] if body is not None}
        self._hooks = [body.register_forward_pre_hook(self._count, with_kwargs=True) for body in bodies.values()]

    def _count(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.counts[self._phase] += ids.numel()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything computed inside is counted under `name`."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            self._phase = before

    def take(self) -> dict[str, int]:
        """The counts so far; counting starts again at 0."""
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def close(self) -> None:
        """Takes the hooks off."""
        for hook in self._hooks:
            hook.remove()
