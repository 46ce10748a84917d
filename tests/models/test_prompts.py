"""Prompts to tokens: one BOS, no EOS, chat templates, refusals. Tokens to text: prompt + completion is the text."""

from typing import Any

import pytest
import torch
from tests.models.small_tokenizers import CHAT, TEXT, byte_level, metaspace

from kleash.errors import UsageError
from kleash.models.prompts import decode, encode
from kleash.models.sampling import left_padded
from kleash.models.spec import Chat
from kleash.records import Prompt
from kleash.tensors import Rollout

ROOM = {"context": 200, "max_new_tokens": 10}
BOS, EOS, PAD = 0, 1, 2
HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]


def as_bytes(text: str, tokenizer: Any) -> list[int]:
    """Tokens of a text without " the" in it, byte by byte through the vocabulary alone."""
    alphabet = byte_to_letter()
    return [tokenizer.convert_tokens_to_ids(alphabet[b]) for b in text.encode()]


def byte_to_letter() -> dict[int, str]:
    """The published byte alphabet of GPT-2: printable bytes stand for themselves, the rest follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


# ── encode ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_text_begins_as_the_tokenizer_says_and_has_no_end(bos: bool, eos: bool) -> None:
    tokenizer = byte_level(bos=bos, eos=eos)
    first = [BOS] if bos else []
    assert encode(["a b", "café\n"], tokenizer, **ROOM) == [
        first + as_bytes("a b", tokenizer),
        first + as_bytes("café\n", tokenizer),
    ]


def test_an_end_token_written_in_the_text_stays() -> None:
    tokenizer = byte_level(eos=True)
    assert encode(["a</s>"], tokenizer, **ROOM) == [[BOS, *as_bytes("a", tokenizer), EOS]]


@pytest.mark.parametrize("bos", [True, False])
def test_a_beginning_written_in_the_text_is_not_doubled(bos: bool) -> None:
    tokenizer = byte_level(bos=bos)
    assert encode(["<s>a"], tokenizer, **ROOM) == [[BOS, *as_bytes("a", tokenizer)]]


def test_two_beginnings_written_in_the_text_are_the_user_s() -> None:
    tokenizer = byte_level(bos=False)
    assert encode(["<s><s>a"], tokenizer, **ROOM) == [[BOS, BOS, *as_bytes("a", tokenizer)]]


@pytest.mark.parametrize("eos", [True, False])
def test_messages_go_through_the_template_with_one_bos(eos: bool) -> None:
    tokenizer = byte_level(eos=eos, chat=CHAT)
    expected = [BOS, *as_bytes("<system>be kind\n<user>hello\n<assistant>", tokenizer)]
    assert encode([HELLO], tokenizer, **ROOM) == [expected]


def test_text_and_messages_keep_their_order() -> None:
    tokenizer = byte_level(chat=CHAT)
    prompts: list[Prompt] = ["a", HELLO, "b", HELLO[1:]]
    assert encode(prompts, tokenizer, **ROOM) == [encode([p], tokenizer, **ROOM)[0] for p in prompts]


def test_truncation_and_padding_left_in_the_tokenizer_are_not_used() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=20)
    assert encode(["a b c"], tokenizer, **ROOM) == [[BOS, *as_bytes("a b c", tokenizer)]]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "prompt 1 is empty"),
        (" \n", "prompt 1 is empty"),
        ("a \ud83d", "prompt 1 has half a character"),
        ([{"role": "user", "content": "a \ud83d"}], "prompt 1 has half a character"),
        ([], "prompt 1 must be text or a non-empty list of chat messages"),
        (None, "prompt 1 must be text or a non-empty list of chat messages"),
        (["hello"], "prompt 1: message 0 must be"),
        ([{"role": "user"}], "prompt 1: message 0 must be"),
        ([HELLO[0], {"role": "user", "content": None}], "prompt 1: message 1 must be"),
        ([*HELLO, {"role": "assistant", "content": "hi"}], "prompt 1 ends with an assistant message"),
        ([{"role": "tool", "content": "x"}], "prompt 1: the tokenizer's chat template refuses .* no tools here"),
        ("x" * 191, "prompt 1 has 192 tokens; with max_new_tokens = 10 and a context of 200 .* have 190"),
    ],
)
def test_refusals_name_the_prompt(prompt: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        encode(["fine", prompt], byte_level(chat=CHAT), **ROOM)


def test_the_longest_prompt_that_fits() -> None:
    assert len(encode(["x" * 189], byte_level(), **ROOM)[0]) == 190


def test_messages_need_a_template() -> None:
    with pytest.raises(UsageError, match="prompt 0 is a list of chat messages, but the tokenizer has no chat template"):
        encode([HELLO], byte_level(), **ROOM)


# ── templates as they are ───────────────────────────────────────────────────────────────────────────────

QWEN = (  # thinking that can be switched off: an empty thought is then written for the model
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
R1 = CHAT.replace("<assistant>", "<assistant><think>\n")
GEMMA = (  # no system role, and turns that alternate
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)
DEAF = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
USER = HELLO[1:]
ANSWER = {"role": "assistant", "content": "<think>hm</think>hi"}


def text_of(prompt: Prompt, template: str, chat: Chat | None = None) -> str:
    """What the tokens say, special ones included."""
    tokenizer = byte_level(chat=template)
    (ids,) = encode([prompt], tokenizer, **ROOM, chat=chat)
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("prompt", "template", "chat", "text"),
    [
        (USER, QWEN, Chat(), "<|user|>hello\n<|assistant|>"),
        (USER, QWEN, Chat(variables={"enable_thinking": False}), "<|user|>hello\n<|assistant|><think></think>"),
        (USER, QWEN, Chat(variables={"enable_thinking": True}), "<|user|>hello\n<|assistant|>"),
        ([*USER, ANSWER, *USER], QWEN, Chat(), "<|user|>hello\n<|assistant|>hi\n<|user|>hello\n<|assistant|>"),
        (USER, R1, Chat(), "<s><user>hello\n<assistant><think>\n"),
        (USER, CHAT, Chat(add_generation_prompt=False), "<s><user>hello\n"),
        ([*USER, ANSWER], CHAT, Chat(add_generation_prompt=False), "<s><user>hello\n<assistant><think>hm</think>hi"),
        (USER, GEMMA, Chat(), "<s><user>hello<model>"),
    ],
)
def test_a_template_writes_the_prompt(prompt: Any, template: str, chat: Chat, text: str) -> None:
    assert text_of(prompt, template, chat) == text


def test_a_bos_in_the_template_is_the_only_one_and_none_is_added() -> None:
    """The tokenizer puts a BOS before texts; before a rendered conversation it must not."""
    for template, first in ((CHAT, [BOS]), (QWEN, [])):
        (ids,) = encode([USER], byte_level(bos=True, eos=True, chat=template), **ROOM)
        assert [i for i in ids if i in (BOS, EOS)] == first


@pytest.mark.parametrize(
    ("prompt", "template", "chat", "says"),
    [
        (HELLO, GEMMA, Chat(), "prompt 1: .*System role not supported. It takes them without the system message"),
        ([*USER, *USER], GEMMA, Chat(), "prompt 1: .*roles must alternate user/assistant$"),
        (HELLO, DEAF, Chat(), r"prompt 1: .*leaves message 0 \(role 'system'\) out"),
        (USER, "{{ messages + 3 }}", Chat(), "prompt 1: the tokenizer's chat template refuses these messages: .*list"),
        (USER, QWEN, Chat(variables={"enable_thinkin": True}), "reads no 'enable_thinkin'; it reads enable_thinking"),
        (USER, CHAT, Chat(variables={"thinking": True}), "reads no 'thinking'; it reads nothing that can be set"),
    ],
)
def test_what_a_template_refuses_or_drops_is_said(prompt: Any, template: str, chat: Chat, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        encode(["fine", prompt], byte_level(chat=template), **ROOM, chat=chat)


def test_generation_tags_of_a_template_hide_no_variable() -> None:
    template = QWEN.replace("<|assistant|>", "{% generation %}<|assistant|>{% endgeneration %}")
    assert text_of(USER, template, Chat(variables={"enable_thinking": False})).endswith("<think></think>")


def test_a_token_beyond_the_embedding_is_refused_by_name() -> None:
    tokenizer = byte_level()
    rows = len(tokenizer)
    tokenizer.add_tokens(["<new>"])
    assert encode(["a"], tokenizer, **ROOM, rows=rows)
    with pytest.raises(UsageError, match=f"prompt 1 has the token '<new>', number {rows} .*for {rows} tokens only"):
        encode(["a", "a <new>"], tokenizer, **ROOM, rows=rows)


# ── decode ──────────────────────────────────────────────────────────────────────────────────────────────


def rollout_of(prompts: list[list[int]], completions: list[list[int]], group: list[int]) -> Rollout:
    """Right-padded completions whose padding is a token with text, so that counting it would show."""
    prompt_ids, prompt_mask = left_padded(prompts, PAD)
    width = max(map(len, completions)) + 1
    ids = torch.tensor([c + [50] * (width - len(c)) for c in completions])
    mask = torch.tensor([[t < len(c) for t in range(width)] for c in completions])
    blank = torch.zeros(ids.shape)
    return Rollout(prompt_ids, prompt_mask, ids, mask, torch.tensor(group), blank, torch.zeros(len(ids)).bool())


@pytest.mark.parametrize("tokenizer", [byte_level(), metaspace()], ids=["byte_level", "metaspace"])
@pytest.mark.parametrize("cut", [1, 2, 4, 9])
def test_prompt_and_completion_are_the_text(tokenizer: Any, cut: int) -> None:
    """Cut a text after any token: what is decoded goes on exactly where the prompt stops, spaces included."""
    words = TEXT.split(" ")
    prompt, rest = " ".join(words[:cut]), " " + " ".join(words[cut:])
    ids = tokenizer(TEXT)["input_ids"]
    head = tokenizer(prompt)["input_ids"]
    assert ids[: len(head)] == head
    rollout = rollout_of([head, [BOS]], [ids[len(head) :], [*ids[len(head) :], EOS], ids[1:]], [0, 0, 1])
    assert decode(rollout, tokenizer) == [rest, rest, TEXT]


def test_an_empty_completion_is_an_empty_text() -> None:
    tokenizer = byte_level()
    prompt = tokenizer("a")["input_ids"]
    assert decode(rollout_of([prompt], [[EOS], [EOS]], [0, 0]), tokenizer) == ["", ""]


def test_a_prompt_cut_inside_a_character_does_not_swallow_text() -> None:
    tokenizer = byte_level()
    whole = tokenizer("é b")["input_ids"]
    assert decode(rollout_of([whole[:2]], [whole[2:]], [0]), tokenizer)[0].endswith(" b")


def test_spaces_before_punctuation_are_not_cleaned_up() -> None:
    tokenizer = byte_level()
    tokenizer.clean_up_tokenization_spaces = True
    prompt, after = tokenizer("a")["input_ids"], as_bytes(" b , c .", tokenizer)
    assert decode(rollout_of([prompt], [after], [0]), tokenizer) == [" b , c ."]
