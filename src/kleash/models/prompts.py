"""From prompts (text or chat messages) to token ids, and from sampled tokens back to text."""

import re
import sys
from typing import Any

from jinja2 import Environment, TemplateError, meta

from kleash.characters import half_character
from kleash.errors import UsageError
from kleash.models.spec import Chat
from kleash.models.stopping import Ends
from kleash.tensors import Rollout

#: Prompt tokens decoded along with a completion, so that its first token reads as a continuation.
CONTEXT_TOKENS = 8
#: transformers' own tags in a template, which Jinja does not know; they change no text.
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
#: What comes out of a template that does not like its messages.
TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError, KeyError, AttributeError)


def encode(
    prompts: list[Any],
    tokenizer: Any,
    *,
    context: int,
    max_new_tokens: int,
    chat: Chat | None = None,
    rows: int = sys.maxsize,
) -> list[list[int]]:
    """Token ids of each prompt.

    Text gets the special tokens that the tokenizer puts in front, one BOS at most, and no end token: the completion
    goes on from it. Messages go through the chat template, which writes its own BOS, up to where the assistant's
    answer begins.

    Args:
        prompts: what the data holds, each a `Prompt` (text or messages) or else refused here.
        context: positions the model can hold; a prompt and `max_new_tokens` must fit.
        rows: of the model's embedding. A tokenizer may know more tokens; in a prompt they are refused.

    Raises:
        UsageError: an empty or too long prompt, malformed messages, messages without a chat template or not as the
            template wants them, a token the model does not have; the message names the prompt by its index.
    """
    chat = chat or Chat()
    for index, prompt in enumerate(prompts):
        _check(index, prompt, tokenizer, chat)
    if chat.variables and not all(isinstance(prompt, str) for prompt in prompts):
        _check_variables(chat, tokenizer)
    texts = iter(encode_texts([p for p in prompts if isinstance(p, str)], tokenizer))
    encoded = [
        next(texts) if isinstance(prompt, str) else _encode_messages(index, prompt, tokenizer, chat)
        for index, prompt in enumerate(prompts)
    ]
    for index, ids in enumerate(encoded):
        if not ids:
            raise UsageError(f"prompt {index} has no tokens; give it some text")
        if (largest := max(ids)) >= rows:
            raise UsageError(
                f"prompt {index} has the token {tokenizer.convert_ids_to_tokens(largest)!r}, number {largest} of the "
                f"tokenizer, and the model has embeddings for {rows} tokens only: leave it out of the prompt, or "
                "resize the model's embeddings and train them first"
            )
        if len(ids) > context - max_new_tokens:
            raise UsageError(
                f"prompt {index} has {len(ids)} tokens; with max_new_tokens = {max_new_tokens} and a context of "
                f"{context} a prompt may have {max(0, context - max_new_tokens)}: shorten it or lower max_new_tokens"
            )
    return encoded


def unended_turn(tokenizer: Any, ends: Ends, chat: Chat) -> str | None:
    """The token with which the template closes an assistant's turn, if it is not one that ends a completion.

    A model that was taught this template writes that token, and would then go on with a turn of the user's. None where
    it is an end token, or nothing can be told: no such token, or a template that does not take the trial.
    """
    said = "kleash"
    trial = [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
    try:
        text = tokenizer.apply_chat_template(trial, tokenize=False, **chat.variables)
    except TEMPLATE_ERRORS:
        return None
    before, _, after = text.rpartition(said)
    ids = tokenizer(after, add_special_tokens=False)["input_ids"] if before else []
    closing = next((i for i in ids if i in tokenizer.added_tokens_decoder), None)
    return None if closing is None or closing in ends.eos_ids else tokenizer.convert_ids_to_tokens(closing)


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
    before = written(tails, tokenizer)
    whole = written([tails[n] + ids for n, ids in zip(groups, completions, strict=True)], tokenizer)
    alone = written(completions, tokenizer)
    return [
        # a prompt cut inside a character is no prefix of its continuation: then the completion is decoded alone
        whole[row][len(before[n]) :] if whole[row].startswith(before[n]) else alone[row]
        for row, n in enumerate(groups)
    ]


def written(ids: list[list[int]], tokenizer: Any) -> list[str]:
    """Tokens as text, special ones left out."""
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def encode_texts(texts: list[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of texts, with what the tokenizer puts in front, one BOS at most, and nothing after."""
    if not texts:
        return []
    bare = bare_ids(texts, tokenizer)
    full = tokenizer(texts, add_special_tokens=True, padding=False, truncation=False, verbose=False)["input_ids"]
    return [_begin(b, f, tokenizer) for b, f in zip(bare, full, strict=True)]


def _begin(bare: list[int], full: list[int], tokenizer: Any) -> list[int]:
    """`full` without what the tokenizer puts after a text, and without a second BOS before one written in the text."""
    before = next((n for n in range(len(full) - len(bare) + 1) if full[n : n + len(bare)] == bare), None)
    ids = full if before is None or not bare else full[: before + len(bare)]
    twice = bare[:1] == [tokenizer.bos_token_id] and ids[:2] == [tokenizer.bos_token_id] * 2
    return ids[1:] if twice and len(ids) > len(bare) else ids


def _encode_messages(index: int, messages: list[dict[str, Any]], tokenizer: Any, chat: Chat) -> list[int]:
    """The template's text as tokens, nothing added: what begins and what ends a turn is the template's to write."""
    return bare_ids([asked_text(index, messages, tokenizer, chat)], tokenizer)[0]


def bare_ids(texts: list[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of texts, nothing added."""
    return tokenizer(texts, add_special_tokens=False, padding=False, truncation=False, verbose=False)["input_ids"]


def asked_text(index: int, messages: list[dict[str, Any]], tokenizer: Any, chat: Chat) -> str:
    """Messages as the template writes them, up to where the assistant's answer begins, or goes on.

    Raises:
        UsageError: the template refuses them, or leaves one of them out.
    """
    going_on = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=going_on and not chat.add_generation_prompt,
            **chat.variables,
        )
    except TEMPLATE_ERRORS as error:
        raise UsageError(f"prompt {index}: {_refused(messages, tokenizer, chat, error)}") from error
    for turn, message in enumerate(messages):
        # Templates may cut what an assistant said, its thoughts above all; what it was told must reach it.
        if message["role"] != "assistant" and message["content"].strip() not in text:
            raise UsageError(
                f"prompt {index}: the tokenizer's chat template leaves message {turn} (role {message['role']!r}) out "
                "of the text, so the model would not see it; put it into the user's message"
            )
    return text


def _refused(messages: list[dict[str, Any]], tokenizer: Any, chat: Chat, error: Exception) -> str:
    """Why a template refuses messages, in its own words, and what helps where that can be told by trying."""
    said = f"the tokenizer's chat template refuses these messages: {error}"
    rest = [message for message in messages if message["role"] != "system"]
    if len(rest) == len(messages) or not rest:
        return said
    try:
        tokenizer.apply_chat_template(rest, tokenize=False, **chat.variables)
    except TEMPLATE_ERRORS:
        return said
    return f"{said}. It takes them without the system message: leave that out, or put it into the user's message"


def _check_variables(chat: Chat, tokenizer: Any) -> None:
    """A template ignores what it does not read, so a misspelt variable would go unnoticed."""
    template = _GENERATION.sub("", tokenizer.get_chat_template())
    try:
        read = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    except TemplateError:  # the template is at fault, and says so itself when it is used
        return
    unread = sorted(set(chat.variables) - read)
    if unread:
        own = {"messages", "add_generation_prompt", "raise_exception", "strftime_now", *tokenizer.special_tokens_map}
        known = ", ".join(sorted(read - own)) or "nothing that can be set"
        raise UsageError(f"the tokenizer's chat template reads no {unread[0]!r}; it reads {known}")


def _check(index: int, prompt: Any, tokenizer: Any, chat: Chat) -> None:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError(f"prompt {index} is empty; give it some text")
        check_characters(f"prompt {index}", prompt)
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
        check_characters(f"prompt {index}", message["content"])
    if prompt[-1]["role"] == "assistant" and chat.add_generation_prompt:
        raise UsageError(
            f"prompt {index} ends with an assistant message, but the assistant's answer is what is sampled; "
            "end it with a user message, or set data.add_generation_prompt = false to go on with that message"
        )
    if not tokenizer.chat_template:
        raise UsageError(
            f"prompt {index} is a list of chat messages, but the tokenizer has no chat template; "
            "give prompts as text (without data.system and data.chat), or use a chat model"
        )


def check_characters(what: str, text: str) -> None:
    if half := half_character(text):
        raise UsageError(f"{what} has {half}; mend the data, or leave it out")
