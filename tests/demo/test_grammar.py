"""The grammar judges what it should, and the embedded model speaks it."""

import random
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kleash.demo import grammar
from kleash.demo.patterns import HINGE, read, spell
from kleash.errors import UsageError

ASSETS = Path(str(files("kleash") / "assets" / "tiny"))

GOOD = [
    "The film last night was great.",
    "The jokes were superb but the acting was silly.",  # the judge does not ask for one mood
    "My first phone was wonderful and fast. I loved every minute!",
    "We visited the bistro and the soup was superb.",
    "It was an absorbing novel with vivid poems.",
    "If you like scooters, you will love this one.",
    "Nobody told us that the battery was awful.",
    "Has anyone else read this novel? The prose was poetic.",
]
BAD = [
    "The film last night were great.",  # agreement
    "The jokes was funny.",
    "It was a absorbing novel with vivid poems.",  # article
    "It was an vivid novel with absorbing poems.",
    "the film last night was great.",  # capital
    "The film Last night was great.",
    "The film last night was great .",  # spacing
    "The film  last night was great.",
    "The film last night was great wonderful happy.",  # praise piled up
    "The film last night was great and wonderful and lovely.",
    "The film last night was great and great.",
    "The film last night was soggy.",  # another topic's word
    "We visited the bistro and the battery was superb.",
    "Great wonderful happy great love.",
    "Great.",
    "I love love love it!",
    "The film last night was.",  # ends too early
    "Film the night last great was.",
    "",
]


def test_every_note_of_the_grammar_parses():
    notes = grammar.corpus(300, seed=11)
    assert [note for note in notes if not grammar.parses(note)] == []


@pytest.mark.parametrize("text", GOOD)
def test_good_sentences_parse(text: str):
    assert grammar.parses(text)


@pytest.mark.parametrize("text", BAD)
def test_bad_sentences_do_not_parse(text: str):
    assert not grammar.parses(text)


def test_shuffled_words_do_not_parse():
    rng = random.Random(3)
    parsed = 0
    for note in grammar.corpus(200, seed=12):
        words = note.rstrip(".!?").split()
        words[0] = words[0] if words[0] == "I" else words[0].lower()
        rng.shuffle(words)
        shuffled = " ".join(words)
        parsed += grammar.parses(shuffled[:1].upper() + shuffled[1:] + note[-1])
    assert parsed / 200 < 0.05


def test_a_note_cut_off_anywhere_is_fluent_and_a_cut_off_muddle_is_not():
    for note in grammar.corpus(8, seed=13):
        assert all(grammar.parses(note[:end]) for end in range(1, len(note)) if note[end - 1] != " "), note
    assert grammar.parses("The film last night was wonder")
    assert not grammar.parses("The film last night was wonderz")
    assert not grammar.parses("The film last night great wonderful")
    assert not grammar.parses("The film last night was great wonderful")


def test_fluency_is_the_mean_share_of_sentences():
    good, bad = "The film last night was great.", "Great film great."
    assert grammar.fluency([good]) == 1.0
    assert grammar.fluency([f"{good} {bad}"]) == 0.5
    assert grammar.fluency([good, bad]) == 0.5
    assert grammar.fluency([good, ""]) == 0.5
    with pytest.raises(UsageError, match="at least one text"):
        grammar.fluency([])


def test_sentences_said_twice_or_beyond_the_third_do_not_count():
    said = ["It was great.", "It was superb.", "It was lovely.", "It was perfect."]
    assert grammar.fluency([" ".join(said[:3])]) == 1.0
    assert grammar.fluency([" ".join(said)]) == 0.75
    assert grammar.fluency(["It was great. It was great."]) == 0.5


def test_prompts_are_openings_and_no_three_words_open_too_many():
    assert len(grammar.PROMPTS) >= 64
    assert len(set(grammar.PROMPTS)) == len(grammar.PROMPTS)
    assert all(grammar.parses(prompt) and prompt[-1] not in ".!? " for prompt in grammar.PROMPTS)
    assert len({len(prompt.split()) for prompt in grammar.PROMPTS}) > 3
    common = Counter(tuple(prompt.split()[:3]) for prompt in grammar.PROMPTS).most_common(1)[0][1]
    assert common <= 0.05 * len(grammar.PROMPTS)


@pytest.mark.slow
def test_prompts_do_not_tell_the_mood():
    """What stands before a hinge can be said in a note of every mood."""
    beginnings = {mood: grammar.recogniser(mood) for mood in grammar.MOODS}
    for prompt in grammar.PROMPTS:
        words = prompt.replace(",", " ,").split()
        spelt = [[words[0], *words[1:]], [words[0][0].lower() + words[0][1:], *words[1:]]]
        for mood, recogniser in beginnings.items():
            assert any(recogniser.begins(option) for option in spelt), (prompt, mood)


def test_the_same_seed_gives_the_same_notes():
    assert grammar.corpus(20, seed=5) == grammar.corpus(20, seed=5) != grammar.corpus(20, seed=6)


def test_notation():
    phrases = {"fruit": read("apple | pear", lambda name: pytest.fail(name))}
    node = read("<a fruit> ( fell | [slowly] rolled ) ~ down", phrases.__getitem__)
    rng = random.Random(0)
    spelt = {" ".join(word for word in spell(node, rng) if word != HINGE) for _ in range(300)}
    verbs = ("fell", "rolled", "slowly rolled")
    assert spelt == {f"{fruit} {verb} down" for fruit in ("an apple", "a pear") for verb in verbs}
    for wrong in ("( a", "a )", "[ a )"):
        with pytest.raises(ValueError):
            read(wrong, phrases.__getitem__)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


def test_the_tokenizer_round_trips_text(tokenizer):
    texts = [*grammar.corpus(50, seed=14), "Any other text: naïve, 1+1=2, and\na new line.  Two spaces!"]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == tokenizer.bos_token_id and tokenizer.bos_token_id not in ids[1:]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, None}) == 4


def test_the_model_is_small_and_speaks_the_grammar(tokenizer):
    model: Any = AutoModelForCausalLM.from_pretrained(ASSETS, dtype=torch.float32).eval()
    assert 1_000_000 <= model.num_parameters() <= 2_500_000
    assert model.config.vocab_size == len(tokenizer)
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 6_000_000
    inputs = tokenizer(grammar.PROMPTS[:64], return_tensors="pt", padding=True, padding_side="left")
    out = model.generate(
        inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=True, top_k=0, max_new_tokens=32
    )
    assert grammar.fluency(tokenizer.batch_decode(out, skip_special_tokens=True)) >= 0.9
