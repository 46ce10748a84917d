"""Answers as token ids: prompt + answer is the text, the end token counts, a turn ends as the template ends it."""

from dataclasses import replace
from typing import Any

import pytest
from tests.models.small_tokenizers import CHAT, byte_fallback, byte_level, metaspace

from kleash.errors import UsageError
from kleash.models.answers import Encoded, encode_answers
from kleash.models.prompts import decode, encode
from kleash.models.spec import Chat
from kleash.models.stopping import Ends

BOS, EOS, PAD = 0, 1, 2
#: As ChatML and Llama 3 do: a token of its own closes each turn, and a line end follows.
CLOSED = CHAT.replace("{{ m.content }}\n", "{{ m.content }}</s>\n")
USER = {"role": "user", "content": "the soup"}


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def ends(tokenizer: Any) -> Ends:
    return Ends.of(tokenizer)


def encoded(prompts: list[Any], answers: list[tuple[Any, ...]], tokenizer: Any, **settings: Any) -> Encoded:
    settings = {"context": 100} | settings
    return encode_answers(prompts, answers, tokenizer, ends(tokenizer), **settings)


@pytest.mark.parametrize("make", [byte_level, metaspace, byte_fallback])
def test_prompt_and_answer_are_the_text_and_end(make: Any) -> None:
    tokenizer = make()
    prompts, answers = ["the cat", "a dog"], [(" sat on the mat.", " ran"), (" ran to the end", " sat")]
    found = encoded(prompts, answers, tokenizer)
    rollout = found.rollout([0, 1])
    assert decode(rollout, tokenizer) == [answer for pair in answers for answer in pair]
    assert rollout.group.tolist() == [0, 0, 1, 1]
    lengths = rollout.mask.sum(1).tolist()
    assert [rollout.completion_ids[row, n - 1] for row, n in enumerate(lengths)] == [EOS] * 4
    assert lengths == [len(ids) for pair in found.answers for ids in pair]
    assert not rollout.truncated.any()
    assert found.prompts == encode(prompts, tokenizer, context=100, max_new_tokens=1)
    assert (found.cut, found.apart, found.group_size, len(found)) == (0, 0, 2, 2)


def test_a_prompt_alone_is_the_same_in_another_order() -> None:
    tokenizer = byte_level()
    found = encoded(["a", "bb"], [(" c",), (" dd",)], tokenizer)
    turned, straight = found.rollout([1, 0]), found.rollout([0, 1])
    assert decode(turned, tokenizer) == decode(straight, tokenizer)[::-1]
    assert found.digest == encoded(["a", "bb"], [(" c",), (" dd",)], tokenizer).digest
    assert found.digest != encoded(["a", "bb"], [(" c",), (" dd",)], tokenizer, max_tokens=4).digest
    assert found.digest != encoded(["bb", "a"], [(" dd",), (" c",)], tokenizer).digest


def test_where_the_tokens_flow_together_the_answer_is_tokenised_apart() -> None:
    tokenizer = byte_level()  # " the" is one token, so prompt + answer does not begin with the prompt's tokens
    found = encoded(["see t"[:4], "go th"[:3] + "t"], [("the",), ("he end",)], tokenizer)
    assert found.apart == 2
    assert decode(found.rollout([0, 1]), tokenizer) == ["the", "he end"]


def test_apart_means_without_a_space_of_the_tokenizer_s_own() -> None:
    tokenizer = byte_fallback()  # puts ▁ before any text
    found = encoded(["the end t"], [("he",)], tokenizer)
    assert found.apart == 1
    assert decode(found.rollout([0]), tokenizer) == ["he"]


def test_an_end_written_in_the_text_is_not_doubled() -> None:
    found = encoded(["a"], [("b</s>", "b")], byte_level())
    assert found.answers[0][0] == found.answers[0][1]


@pytest.mark.parametrize("template", [CHAT, CLOSED])
def test_a_turn_ends_with_one_end_token_and_nothing_after(template: str) -> None:
    tokenizer = byte_level(chat=template)
    found = encoded([[USER], [USER]], [(said("good"), "good"), (said("so </s> so"), "cold")], tokenizer)
    assert found.answers[0][0] == found.answers[0][1], "a text is the message that holds it"
    whole = tokenizer.decode(found.prompts[0] + found.answers[0][0])
    assert whole == "<s><user>the soup\n<assistant>good</s>".replace(
        "soup\n", "soup</s>\n" if template == CLOSED else "soup\n"
    )
    assert found.answers[1][0].count(EOS) == 2, "the one in the message, and the turn's"
    assert all(ids[-1] == EOS for pair in found.answers for ids in pair)


def test_an_unfinished_message_is_gone_on_with() -> None:
    tokenizer = byte_level(chat=CHAT)
    chat = Chat(add_generation_prompt=False)
    found = encoded([[USER, *said("it was")]], [(" good",)], tokenizer, chat=chat)
    assert tokenizer.decode(found.answers[0][0]) == " good</s>"


def test_a_template_that_opens_answers_in_its_own_way_is_followed() -> None:
    opened = CHAT.replace("<assistant>{% endif %}", "<assistant>[quick]{% endif %}")
    tokenizer = byte_level(chat=opened)
    found = encoded([[USER]], [("good",)], tokenizer)
    assert str(tokenizer.decode(found.prompts[0] + found.answers[0][0])).endswith("<assistant>[quick]good</s>")


def test_a_template_that_cuts_the_answer_is_refused() -> None:
    tokenizer = byte_level(chat=CHAT.replace("{{ m.content }}", "{{ m.content.split('!')[-1] }}"))
    with pytest.raises(UsageError, match="changes the answer to prompt 0"):
        encoded([[USER]], [("well! good",)], tokenizer)


def test_too_long_is_refused_or_cut_and_counted() -> None:
    tokenizer = byte_level()
    with pytest.raises(UsageError, match=r"prompt 1 and its answer have 3 \+ 6 tokens.* context is 8"):
        encoded(["a", "bb"], [("c",), ("ddddd",)], tokenizer, context=8)
    found = encoded(["a", "bb"], [("c",), ("ddddd",)], tokenizer, context=8, max_tokens=6)
    assert found.cut == 1
    assert found.ended == [[True], [False]]
    rollout = found.rollout([0, 1])
    assert rollout.truncated.tolist() == [False, True]
    assert decode(rollout, tokenizer) == ["c", "ddd"]
    with pytest.raises(UsageError, match="prompt 1 has 3 tokens, and 3 is the limit"):
        encoded(["a", "bb"], [("c",), ("d",)], tokenizer, max_tokens=3)


@pytest.mark.parametrize(
    ("prompt", "answer", "why"),
    [
        ("a", " ", "answer to prompt 0 is empty"),
        ("a", said("b"), "prompt 0 is text and its answer a message"),
        ([USER], [USER], "must be text or one message of the assistant's"),
        ([USER], [*said("a"), *said("b")], "must be text or one message"),
        ("", "a", "prompt 0 is empty"),
    ],
)
def test_what_is_no_answer_is_refused(prompt: Any, answer: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        encoded([prompt], [(answer,)], byte_level(chat=CHAT))


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="model has embeddings for 20 tokens only"):
        encoded(["<s>"], [("a",)], byte_level(), rows=20)


def test_every_end_token_of_the_model_closes_a_turn() -> None:
    tokenizer = byte_level(chat=CHAT.replace("{{ m.content }}\n", "{{ m.content }}<pad>\n</s>"))
    several = replace(ends(tokenizer), eos_ids=(EOS, PAD))
    found = encode_answers([[USER]], [("good",)], tokenizer, several, context=100)
    assert found.answers[0][0][-1] == PAD, "the first of them: the model would have stopped there"
