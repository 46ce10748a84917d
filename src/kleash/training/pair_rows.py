"""One row of preferences: what it says, whichever of the common forms it has. A bad one is told by a short sentence."""

from collections.abc import Mapping
from typing import Any

from kleash.characters import half_character
from kleash.records import Prompt

#: A text, or the one assistant's message that it is.
Answer = str | list[dict[str, Any]]

_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class BadRowError(Exception):
    """A row that cannot be learned from: what is wrong with it."""


def pair_of(row: Mapping[str, Any]) -> tuple[Prompt, Answer, Answer]:
    """Prompt, chosen and rejected. Raises BadRowError."""
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if type(chosen) is not type(rejected):
        raise BadRowError("one of chosen and rejected is text and the other a list of messages")
    if "prompt" not in row:
        prompt, chosen, rejected = _shared_beginning(chosen, rejected)
    else:
        (own, chosen), (other, rejected) = _answer(prompt, chosen, "chosen"), _answer(prompt, rejected, "rejected")
        if own != other:
            raise BadRowError("the prompts of chosen and rejected differ")
        prompt = own
    if _said(chosen).strip() == _said(rejected).strip():
        raise BadRowError("chosen and rejected are the same")
    return prompt, chosen, rejected


def judged_of(row: Mapping[str, Any]) -> tuple[Prompt, Answer, bool]:
    """Prompt, answer and whether it is wanted. Raises BadRowError."""
    prompt, answer = _answer(row["prompt"], row["completion"], "completion")
    label = row["label"]
    known = _TRUTH.get(str(label).strip().lower()) if isinstance(label, bool | int | str) else None
    if known is None:
        raise BadRowError(f"the label {label!r:.40} is neither true nor false")
    return prompt, answer, known


def _answer(prompt: Any, answer: Any, name: str) -> tuple[Prompt, Answer]:
    """The prompt as it is asked, and the answer without the prompt where it was repeated in it."""
    if not isinstance(prompt, str | list) or not prompt or (isinstance(prompt, str) and not prompt.strip()):
        raise BadRowError("the prompt is empty, or neither text nor a list of messages")
    if isinstance(prompt, str):
        _check_characters(prompt, "the prompt")
    if isinstance(answer, str):
        if not answer.strip():
            raise BadRowError(f"{name} is empty")
        _check_characters(answer, name)
        return prompt, answer
    messages = _messages(answer, name)
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt, "prompt")
    before, last = messages[:-1], messages[-1:]
    if before and [m for m in before if m["role"] != "system"] != [m for m in asked if m["role"] != "system"]:
        raise BadRowError(f"the conversation of {name} does not begin with the prompt")
    _check_answer(last, name)
    return before or asked, last


def _shared_beginning(chosen: Any, rejected: Any) -> tuple[Prompt, Answer, Answer]:
    if isinstance(chosen, str):
        raise BadRowError(
            "there is no column prompt, and chosen is text: put what both sides begin with into that column"
        )
    mine, other = _messages(chosen, "chosen"), _messages(rejected, "rejected")
    if mine[:-1] != other[:-1]:
        raise BadRowError("the prompts of chosen and rejected differ")
    if len(mine) < 2:
        raise BadRowError("there is no prompt: the conversations share no message before their last")
    for last, name in ((mine[-1:], "chosen"), (other[-1:], "rejected")):
        _check_answer(last, name)
    return mine[:-1], mine[-1:], other[-1:]


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise BadRowError(f"{name} is empty, or neither text nor a list of messages")
    for message in value:
        if not (isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))):
            raise BadRowError(f'{name}: a message must be {{"role": text, "content": text}}')
        _check_characters(message["content"], name)
    return value


def _check_characters(text: str, name: str) -> None:
    if half := half_character(text):
        raise BadRowError(f"{name} has {half}")


def _check_answer(last: list[dict[str, Any]], name: str) -> None:
    if last[0]["role"] != "assistant":
        raise BadRowError(f"{name} does not end with a message of the assistant's")
    if not last[0]["content"].strip():
        raise BadRowError(f"{name} is empty")


def _said(answer: Answer) -> str:
    return answer if isinstance(answer, str) else answer[0]["content"]
