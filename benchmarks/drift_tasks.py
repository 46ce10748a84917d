"""Tasks of the pairs in docs/examples: to go on cheerfully, and to answer with one word of two; with siblings.

Made by rule, no two rows alike. What is taught is in the part "train", what is judged in "test"; no row of one is in
the other. Tasks that were never taught have the part "test" alone.
"""

from itertools import product
from typing import Any, Literal

Task = Literal["feeling", "kind", "living", "cheerful", "told to be cheerful"]

ASKED: dict[str, str] = {
    "feeling": "Is this review POSITIVE or NEGATIVE? Answer with that one word only.\n\n{}",
    "kind": "Is this a QUESTION or a STATEMENT? Answer with that one word only.\n\n{}",
    "living": "Is this a PLANT or an ANIMAL? Answer with that one word only.\n\n{}",
}

THINGS = {
    "train": (
        "The soup",
        "This jacket",
        "Our guide",
        "The hotel",
        "That film",
        "My new phone",
        "The concert",
        "The bus",
    ),
    "test": ("The museum", "This kettle", "Our waiter", "The garden tour", "That podcast", "My new bicycle"),
}
FEELINGS = {
    "train": {
        "POSITIVE": (
            "was better than we had hoped",
            "made our whole week",
            "deserves every star it gets",
            "was worth the long wait",
            "has not let me down once",
            "left us smiling",
            "is a joy from the first minute",
            "was kind, quick and cheap",
            "could hardly be improved",
            "is the best I have had in years",
        ),
        "NEGATIVE": (
            "was a waste of money",
            "fell apart within a week",
            "made us regret the trip",
            "is not worth the trouble",
            "was late, loud and dirty",
            "left me with a headache",
            "gets worse each time",
            "was the low point of our holiday",
            "promised much and gave nothing",
            "is the last one I shall ever try",
        ),
    },
    "test": {
        "POSITIVE": (
            "was a delight for all of us",
            "is something I would recommend to anyone",
            "turned out splendidly",
            "brightened a rainy day",
            "works like a charm",
        ),
        "NEGATIVE": (
            "bored us to tears",
            "is something I would warn anyone about",
            "turned out to be a scam",
            "ruined an otherwise fine day",
            "broke when it was needed most",
        ),
    },
}
KINDS = {
    "QUESTION": ("does the museum open", "did she leave the keys", "will the train arrive", "can we buy the tickets"),
    "STATEMENT": ("the museum opens", "she left the keys", "the train arrives", "we can buy the tickets"),
}
WHERE = ("at noon", "by the old bridge", "behind the station", "on Friday", "near the harbour", "without a ticket")
LIVING = {
    "PLANT": [
        "oak",
        "tulip",
        "fern",
        "cactus",
        "moss",
        "daisy",
        "willow",
        "bamboo",
        "clover",
        "ivy",
        "rose",
        "maple",
        "pine",
        "nettle",
        "lavender",
        "poppy",
    ],
    "ANIMAL": [
        "otter",
        "heron",
        "salmon",
        "beetle",
        "camel",
        "wolf",
        "owl",
        "lizard",
        "whale",
        "moth",
        "goat",
        "crab",
        "fox",
        "eagle",
        "toad",
        "spider",
    ],
}


OPENERS = (
    "The bakery round the corner",
    "My cousin's wedding",
    "The second half of the trip",
    "Our old radio",
    "The view from the tower",
    "The letter from the bank",
    "This winter",
    "The stranger next to us",
)
GOING_ON = ("was", "turned out to be", "made me feel", "is, as everybody says,", "reminds me of", "can only be called")
SUBJECTS = (
    "a walk in the rain",
    "an old bicycle",
    "the night shift",
    "a long queue",
    "cold soup",
    "a new neighbour",
    "a broken lift",
    "a Monday morning",
    "an empty fridge",
    "a borrowed book",
    "a late bus",
    "the last day of a holiday",
)
TELLING = ("Say something cheerful about {}.", "Write one happy sentence about {}.", "What is good about {}?")


def rows(task: Task, part: Literal["train", "test"] = "test") -> list[dict[str, Any]]:
    """Rows with prompt, and answer where there is one right word (as completion too, for `kleash sft`)."""
    match task:
        case "cheerful":
            return [{"prompt": f"{opener} {verb}"} for opener, verb in product(OPENERS, GOING_ON)]
        case "told to be cheerful":
            return [asked(form.format(subject)) for subject, form in product(SUBJECTS, TELLING)]
        case "feeling":
            texts = [
                (f"{thing} {said}.", label)
                for label, sayings in FEELINGS[part].items()
                for said, thing in product(sayings, THINGS[part])
            ]
        case "kind":
            texts = [
                (f"{sentence} {where}{'?' if label == 'QUESTION' else '.'}".capitalize(), label)
                for label, sentences in KINDS.items()
                for sentence, where in product(sentences, WHERE)
            ]
        case "living":
            texts = [(name.capitalize(), label) for label, names in LIVING.items() for name in names]
    return [asked(ASKED[task].format(text)) | {"completion": label, "answer": label} for text, label in texts]


def asked(text: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}]}


def one_word(prompts: list[Any], completions: list[str], *, answer: list[str], **columns: Any) -> list[float]:
    """1 where the completion is the word and nothing else (a full stop is forgiven), else 0."""
    return [float(text.strip().rstrip(".") == word) for text, word in zip(completions, answer, strict=True)]
