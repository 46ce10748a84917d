"""A hidden reward whose truth is known: kind words, as far as they stand in sentences that the grammar can say.

It labels the pairs that a reward model learns from and is never shown to the policy, so that one can see where the
learned reward and the true one part.
"""

from typing import Any

from kleash.demo.grammar import fluency
from kleash.rewards.vader import Vader


def gold(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
    """From 0 to 1: sentiment of the completion, moved to [0, 1], times the fluency of prompt and completion."""
    kind = Vader()(completions)
    whole = [f"{prompt}{completion}" for prompt, completion in zip(prompts, completions, strict=True)]
    return [(1 + mood) / 2 * fluency([text]) for mood, text in zip(kind, whole, strict=True)]
