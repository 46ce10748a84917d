"""Judges the embedded tiny model: 2,000 samples at temperature 1, one table, exit code 1 if a criterion is missed.

Run `python tools/tiny_report.py` (half a minute). The criteria are judged on whole notes sampled from the BOS token
alone, fluency and sentiment also on completions of the grammar's prompts, which is how training meets the model.
"""

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from build_tiny import NOTES, OUT, SEED
from kleash.demo import grammar

SAMPLES = 2_000
BATCH = 250
NOTE_TOKENS = 64
COMPLETION_TOKENS = 32


@dataclass(frozen=True)
class Sample:
    """What was sampled behind a prompt ("" for the BOS alone), and how long it is in tokens, EOS included."""

    prompt: str
    completion: str
    tokens: int
    ended: bool

    @property
    def text(self) -> str:
        return self.prompt + self.completion


def sample(model, tokenizer, prompts: list[str], max_new_tokens: int) -> list[Sample]:
    """One sample a prompt, at temperature 1 from the whole distribution."""
    found: list[Sample] = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        inputs = tokenizer(batch, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
        out = model.generate(**inputs, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=max_new_tokens)
        for prompt, row in zip(batch, out[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            ended = tokenizer.eos_token_id in row
            length = row.index(tokenizer.eos_token_id) + 1 if ended else len(row)
            found.append(Sample(prompt, tokenizer.decode(row[:length], skip_special_tokens=True), length, ended))
    return found


def shuffled(text: str, rng: random.Random) -> str:
    """The text with the words of every sentence shuffled; capitals and punctuation are put right again."""
    out = []
    for sentence in grammar.sentences(text):
        words = sentence.strip(".!?").replace(",", " ,").split()
        words = [word if word == "I" or i else word[0].lower() + word[1:] for i, word in enumerate(words)]
        rng.shuffle(words)
        out.append(grammar.joined([*words, *sentence[-1:].strip("abcdefghijklmnopqrstuvwxyz")]))
    return " ".join(out)


def openings(texts: list[str]) -> float:
    """The share of the commonest opening of three words."""
    return Counter(" ".join(text.split()[:3]) for text in texts).most_common(1)[0][1] / len(texts)


def criteria(notes: list[str], corpus: list[str]) -> list[tuple[str, float, str, bool]]:
    """Name, value, bound, whether it holds."""
    rng = random.Random(SEED)
    known = {sentence for note in corpus for sentence in grammar.sentences(note)}
    said = [sentence for note in notes for sentence in grammar.sentences(note)]
    at_least: Callable[[float, float], bool] = lambda value, bound: value >= bound  # noqa: E731
    below: Callable[[float, float], bool] = lambda value, bound: value < bound  # noqa: E731
    at_most: Callable[[float, float], bool] = lambda value, bound: value <= bound  # noqa: E731
    rows = [
        ("distinct samples", len(set(notes)) / len(notes), "≥", 0.95, at_least),
        ("sentences not in the training corpus", sum(s not in known for s in said) / len(said), "≥", 0.5, at_least),
        ("samples that parse", sum(map(grammar.parses, notes)) / len(notes), "≥", 0.9, at_least),
        (
            "word-shuffled samples that parse",
            sum(grammar.parses(shuffled(n, rng)) for n in notes) / len(notes),
            "<",
            0.05,
            below,
        ),
        ("commonest three-word opening, samples", openings(notes), "≤", 0.05, at_most),
        ("commonest three-word opening, prompts", openings(grammar.PROMPTS), "≤", 0.05, at_most),
    ]
    return [(name, value, f"{sign} {bound:.0%}", holds(value, bound)) for name, value, sign, bound, holds in rows]


def describe(completions: list[Sample], groups: int) -> list[tuple[str, str]]:
    """What a training run meets: fluency, sentiment and its spread, lengths."""
    score = SentimentIntensityAnalyzer().polarity_scores
    sentiment = [score(s.completion)["compound"] for s in completions]
    spread = [statistics.stdev(sentiment[i::groups]) for i in range(groups)]
    return [
        ("fluency of prompt + completion", f"{grammar.fluency([s.text for s in completions]):.3f}"),
        ("VADER compound, mean", f"{statistics.mean(sentiment):.3f}"),
        ("VADER compound, std within a prompt", f"{statistics.mean(spread):.3f}"),
        ("completion length, tokens", f"{statistics.mean(s.tokens for s in completions):.1f}"),
        (
            f"completions cut off at {COMPLETION_TOKENS} tokens",
            f"{sum(not s.ended for s in completions) / len(completions):.1%}",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=OUT, help="folder of the model (default: the package's assets)")
    arguments = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()

    notes = sample(model, tokenizer, [""] * SAMPLES, NOTE_TOKENS)
    prompts = (grammar.PROMPTS * (SAMPLES // len(grammar.PROMPTS) + 1))[:SAMPLES]
    completions = sample(model, tokenizer, prompts, COMPLETION_TOKENS)
    corpus = grammar.corpus(NOTES, SEED)
    size = sum(path.stat().st_size for path in arguments.model.iterdir())
    words = len(grammar.recogniser().vocabulary)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens, {size / 1e6:.2f} MB, {words} words")

    print(f"\n| {SAMPLES:,} notes from BOS, temperature 1 | value | bound | |\n|---|---|---|---|")
    judged = criteria([s.text for s in notes], corpus)
    for name, value, bound, holds in judged:
        print(f"| {name} | {value:.1%} | {bound} | {'holds' if holds else 'MISSED'} |")
    print(f"\n| {SAMPLES:,} completions of {len(grammar.PROMPTS)} prompts, temperature 1 | |\n|---|---|")
    for name, value in describe(completions, len(grammar.PROMPTS)):
        print(f"| {name} | {value} |")
    print("\nNotes:\n")
    for note in notes[:8]:
        print(f"- {note.text}")
    print("\nCompletions:\n")
    for completion in completions[:8]:
        print(f"- **{completion.prompt}**{completion.completion}")
    print(f"\n{time.perf_counter() - started:.0f} s")
    sys.exit(not all(holds for *_, holds in judged))


if __name__ == "__main__":
    main()
