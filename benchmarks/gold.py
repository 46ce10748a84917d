"""The hidden truth of `benchmarks.overoptimisation`: preferences are drawn from it, and no reward model is told it."""

from typing import Any

from kleash.demo.grammar import fluency
from kleash.rewards.vader import Vader


def gold(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Share of sentences that parse × (1 + VADER compound of the completion) / 2: from 0 to 1, kind and fluent at 1."""
    kind = Vader()(completions)
    whole = [fluency([prompt + completion]) for prompt, completion in zip(prompts, completions, strict=True)]
    return [share * (1 + compound) / 2 for share, compound in zip(whole, kind, strict=True)]
