"""From prompts (text or chat messages) to token ids, and from sampled tokens back to text."""

from typing import Any

from jinja2 import TemplateError

from kleash.errors import UsageError
from kleash.tensors import Rollout

#: Prompt tokens decoded along with a completion, so that its first token reads as a continuation.
CONTEXT_TOKENS = 8


def encode(prompts: list[Any], tokenizer: Any, *, context: int, max_new_tokens: int) -> list[list[int]]:
    """Token ids of each prompt.

    Text gets the special tokens that the tokenizer puts in front, one BOS at most, and no end token: the completion
    goes on from it. Messages go through the chat template, which writes its own BOS, up to where the assistant's
    answer begins.

    Args:
        prompts: what the data holds, each a `Prompt` (text or messages) or else refused here.
        context: positions the model can hold; a prompt and `max_new_tokens` must fit.

    Raises:
        UsageError: an empty or too long prompt, malformed messages, messages without a chat template; the message
            names the prompt by its index.
    """
    for index, prompt in enumerate(prompts):
        _check(index, prompt, tokenizer)
    texts = iter(_encode_texts([p for p in prompts if isinstance(p, str)], tokenizer))
    encoded = [
        next(texts) if isinstance(prompt, str) else _encode_messages(index, prompt, tokenizer)
        for index, prompt in enumerate(prompts)
    ]
    for index, ids in enumerate(encoded):
        if not ids:
            raise UsageError(f"prompt {index} has no tokens; give it some text")
        if len(ids) > context - max_new_tokens:
            raise UsageError(
                f"prompt {index} has {len(ids)} tokens; with max_new_tokens = {max_new_tokens} and a context of "
                f"{context} a prompt may have {max(0, context - max_new_tokens)}: shorten it or lower max_new_tokens"
            )
    return encoded


def decode(rollout: Rollout, tokenizer: Any) -> list[str]:
    """The text of each completion, exactly as it goes on from its prompt: prompt + completion is the whole text.

    Only tokens that count are decoded and special tokens are left out. A leading space stays where the tokens have
    one. Some decoders drop the space of the very first token they see, so the prompt's last tokens are decoded with
    the completion and their text is cut off again.
    """
    tails = [
        ids[mask][-CONTEXT_TOKENS:].tolist() for ids, mask in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)
    ]
    completions = [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.mask, strict=True)]
    groups = rollout.group.tolist()
    before = _decode(tails, tokenizer)
    whole = _decode([tails[n] + ids for n, ids in zip(groups, completions, strict=True)], tokenizer)
    alone = _decode(completions, tokenizer)
    return [
        # a prompt cut inside a character is no prefix of its continuation: then the completion is decoded alone
        whole[row][len(before[n]) :] if whole[row].startswith(before[n]) else alone[row]
        for row, n in enumerate(groups)
    ]


def _decode(ids: list[list[int]], tokenizer: Any) -> list[str]:
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _encode_texts(texts: list[str], tokenizer: Any) -> list[list[int]]:
    if not texts:
        return []
    options = {"padding": False, "truncation": False, "verbose": False}
    bare = tokenizer(texts, add_special_tokens=False, **options)["input_ids"]
    full = tokenizer(texts, add_special_tokens=True, **options)["input_ids"]
    return [_begin(b, f, tokenizer) for b, f in zip(bare, full, strict=True)]


def _begin(bare: list[int], full: list[int], tokenizer: Any) -> list[int]:
    """`full` without the end tokens the tokenizer added, and without a second BOS before one written in the text."""
    added = _trailing(full, tokenizer.eos_token_id) - _trailing(bare, tokenizer.eos_token_id)
    ids = full[: len(full) - added] if bare else full
    twice = bare[:1] == [tokenizer.bos_token_id] and ids[:2] == [tokenizer.bos_token_id] * 2
    return ids[1:] if twice and len(full) > len(bare) else ids


def _trailing(ids: list[int], token: int | None) -> int:
    return next((n for n, i in enumerate(reversed(ids)) if i != token), len(ids))


def _encode_messages(index: int, messages: list[dict[str, Any]], tokenizer: Any) -> list[int]:
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except TemplateError as error:
        raise UsageError(f"prompt {index}: the tokenizer's chat template refuses these messages: {error}") from error


def _check(index: int, prompt: Any, tokenizer: Any) -> None:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError(f"prompt {index} is empty; give it some text")
        _check_characters(index, prompt)
        return
    if not isinstance(prompt, list) or not prompt:
        raise UsageError(
            f"prompt {index} must be text or a non-empty list of chat messages, not {type(prompt).__name__} {prompt!r}"
        )
    for turn, message in enumerate(prompt):
        if not (isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))):
            raise UsageError(
                f'prompt {index}: message {turn} must be {{"role": text, "content": text}}, not {message!r}'
            )
        _check_characters(index, message["content"])
    if prompt[-1]["role"] == "assistant":
        raise UsageError(
            f"prompt {index} ends with an assistant message, but the assistant's answer is what is sampled; "
            "end it with a user message"
        )
    if not tokenizer.chat_template:
        raise UsageError(
            f"prompt {index} is a list of chat messages, but the tokenizer has no chat template; "
            "give prompts as text, or use a chat model"
        )


def _check_characters(index: int, text: str) -> None:
    """Half of a surrogate pair, as "\\ud83d" alone in JSON, is no character, and no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"prompt {index} has half a character ({text[error.start]!r}) at position {error.start}; "
            "mend the data, or leave that prompt out"
        ) from None
