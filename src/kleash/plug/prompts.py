"""The prompts that a guest's policy is heard on: the user's, or the first of the trainer's own."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from kleash.errors import UsageError


def token_ids(trainer: Any, given: Sequence[Any] | None, n: int) -> tuple[tuple[int, ...], ...]:
    """Token ids of at most n different prompts.

    Raises:
        UsageError: none are given, and the training set has none.
    """
    tokenizer = tokenizer_of(trainer)
    rows = [{"prompt": prompt} for prompt in given] if given is not None else trainer.train_dataset
    found: dict[tuple[int, ...], None] = {}
    for row in islice(rows if rows is not None else (), 50 * n):
        ids = _of(row, tokenizer)
        if ids:
            found[ids] = None
        if len(found) == n:
            break
    if not found:
        raise UsageError('there is no prompt to write after: the training set has no "prompt"; give some, prompts=[…]')
    return tuple(found)


def _of(row: Any, tokenizer: Any) -> tuple[int, ...]:
    if "prompt" not in row:
        return tuple(row.get("prompt_ids") or row.get("prompt_input_ids") or ())
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return tuple(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def tokenizer_of(trainer: Any) -> Any:
    """The tokenizer, inside a processor where there is one."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
