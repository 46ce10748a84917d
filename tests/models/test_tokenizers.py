"""Tokenizers as they are: fast and slow, bytes and words, no pad, ends and added tokens where the model has no rows."""

from pathlib import Path
from typing import Any

import pytest
from tests.models import build
from tests.models.small_tokenizers import CHAT, TEXT, byte_fallback, byte_level, slow
from tests.models.test_prompts import ROOM, rollout_of

from kleash.errors import UsageError
from kleash.models.fingerprint import tokenizer_digest
from kleash.models.load import load
from kleash.models.prompts import decode, encode, unended_turn
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import Chat, ModelSpec
from kleash.models.stopping import Ends
from kleash.training.api import start
from kleash.training.toml import parse_config

USER = [{"role": "user", "content": "hello"}]
KINDS = {"byte_level": byte_level, "byte_fallback": byte_fallback, "slow": slow}


def saved(directory: Path, tokenizer: Any, rows: int | None = None) -> Path:
    """A model with an embedding for each token (or `rows`), and this tokenizer."""
    build.model(vocab_size=rows or len(tokenizer)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_read_and_completions_go_on(kind: str, tmp_path: Path) -> None:
    """Through load and the sampler: no end token in a prompt, and prompt + completion is one text."""
    loaded = load(ModelSpec(str(saved(tmp_path / "m", KINDS[kind]()))))
    tokenizer = loaded.tokenizer
    prompts = encode([TEXT, "café ☃"], tokenizer, context=10_000, max_new_tokens=10)
    assert not any(i in loaded.ends.eos_ids for ids in prompts for i in ids)
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in prompts] == [TEXT, "café ☃"]
    short = encode(["a d"], tokenizer, **ROOM)
    rollout = sample(
        loaded.policy, short, Sampling(max_new_tokens=6), loaded.ends, group_size=4, seed=0, step=0, prompt_index=[0]
    )
    for row, text in enumerate(decode(rollout, tokenizer)):
        whole = short[0] + rollout.completion_ids[row][rollout.mask[row]].tolist()
        assert "a d" + text == tokenizer.decode(whole, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("cut", [3, 9, 20, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_cut_anywhere_goes_on_where_it_stopped(kind: str, cut: int) -> None:
    """At any character: spaces, accents and letters without a token of their own included."""
    tokenizer, text = KINDS[kind](), f"{TEXT} ☃ é"
    before, after = text[:cut], text[cut:]
    head = encode([before], tokenizer, **ROOM)[0]
    tail = [i for letter in after for i in pieces(tokenizer, letter)]
    assert decode(rollout_of([head], [tail], [0]), tokenizer) == [after]


def pieces(tokenizer: Any, letter: str) -> list[int]:
    """Tokens of one letter inside a text: what it adds behind another one."""
    return tokenizer(f"x{letter}", add_special_tokens=False)["input_ids"][
        len(tokenizer("x", add_special_tokens=False)["input_ids"]) :
    ]


def test_the_fingerprint_of_a_slow_tokenizer_is_its_vocabulary() -> None:
    assert tokenizer_digest(slow()) == tokenizer_digest(slow())
    assert tokenizer_digest(slow()) != tokenizer_digest(slow(extra=3))


def test_what_a_tokenizer_puts_after_a_text_is_cut_off_whatever_it_is() -> None:
    """A separator that is not the end token, as BERT's kind adds."""
    from tokenizers import processors

    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <pad> </s>", special_tokens=[("<s>", 0), ("</s>", 1), ("<pad>", 2)]
    )
    bare = tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert tokenizer("ab")["input_ids"] == [0, *bare, 2, 1]
    assert encode(["ab"], tokenizer, **ROOM) == [[0, *bare]]


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_pad_token_and_pad_is_end_are_the_same(tmp_path: Path) -> None:
    without, same = byte_level(pad=None), byte_level(pad="</s>")
    assert Ends.of(without).pad_id == Ends.of(same).pad_id == 1
    assert load(ModelSpec(str(saved(tmp_path / "m", without)))).ends.pad_id == 1


def test_end_tokens_that_the_model_has_no_rows_for(tmp_path: Path) -> None:
    tokenizer = byte_level()
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    directory = saved(tmp_path / "m", tokenizer, rows)
    assert load(ModelSpec(str(directory))).ends.eos_ids == (rows, 2), "the config's own can still be sampled"
    import json

    for name in ("config.json", "generation_config.json"):
        file = directory / name
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": None}))
    with pytest.raises(UsageError, match=rf"end token '<\|end\|>' .*number {rows} .*{rows} rows"):
        load(ModelSpec(str(directory)))


def test_tokens_beyond_the_model_do_not_disturb_a_run(tmp_path: Path) -> None:
    """An added pad token and an added word without embeddings: never drawn, never fed, and the run goes through."""
    from tests.training.small import settings

    tree = settings(tmp_path, train__steps=2)
    tokenizer = build.tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(tmp_path / "model")
    loaded = load(ModelSpec(str(tmp_path / "model")))
    assert loaded.ends.pad_id == build.VOCAB
    assert loaded.policy.recipe.vocab == loaded.policy.rows == build.VOCAB
    run = start(parse_config(tree))
    assert run.finished
    assert run.steps[0].kl_ref is not None
    assert run.steps[0].kl_ref.value == 0.0
    (tmp_path / "prompts.txt").write_text("t4 t5\nt6 new\nt7\n")
    with pytest.raises(UsageError, match=rf"prompt 1 has the token 'new', number {build.VOCAB + 1} "):
        start(parse_config(tree | {"out": str(tmp_path / "other")}))


# ── turns and thoughts ──────────────────────────────────────────────────────────────────────────────────

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def turning(special: bool = True) -> Any:
    tokenizer = byte_level(chat=TURNS)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=special)
    return tokenizer


@pytest.mark.parametrize("special", [True, False])
def test_a_turn_that_ends_no_completion_is_noticed(special: bool) -> None:
    tokenizer = turning(special)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert unended_turn(tokenizer, Ends.of(tokenizer), Chat()) == "<|im_end|>"
    assert unended_turn(tokenizer, Ends((1, end), 1), Chat()) is None


@pytest.mark.parametrize(
    "template",
    [CHAT, CHAT.replace("\n", "</s>"), "{{ raise_exception('no') }}", "<s>{{ messages[0].content }}"],
    ids=["text", "end token", "refuses", "drops the answer"],
)
def test_a_turn_of_which_nothing_can_be_told(template: str) -> None:
    tokenizer = byte_level(chat=template)
    assert unended_turn(tokenizer, Ends.of(tokenizer), Chat()) is None


def test_the_notice_and_its_cure(tmp_path: Path) -> None:
    from tests.training.small import settings

    said: list[str] = []
    from kleash.training.progress import Progress

    progress = Progress()
    progress.notice = said.append  # type: ignore[method-assign]
    tree = settings(tmp_path, data__chat=True)
    tokenizer = build.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} t36 {% endfor %}t22"
    tokenizer.add_tokens(["t36"])
    tokenizer.save_pretrained(tmp_path / "model")
    start(parse_config(tree), check_only=True, progress=progress)
    (line,) = [line for line in said if "closes a turn" in line]
    assert "'t36'" in line and 'train.stop = ["t36"]' in line
    said.clear()
    tree["train"]["stop"] = ["t36"]
    start(parse_config(tree), check_only=True, progress=progress)
    assert not any("closes a turn" in line for line in said)


def test_thinking_tags_stay_in_the_text_unless_they_are_special() -> None:
    for special, text in ((False, "<think>a</think>b"), (True, "ab")):
        tokenizer = byte_level()
        tokenizer.add_tokens(["<think>", "</think>"], special_tokens=special)
        prompt, answer = encode(["x"], tokenizer, **ROOM)[0], tokenizer("<think>a</think>b", add_special_tokens=False)
        assert decode(rollout_of([prompt], [answer["input_ids"]], [0]), tokenizer) == [text]
