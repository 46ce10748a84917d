"""Measures of a step's samples. Each is a pure function of the samples; None where it cannot be taken."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kleash.runlog.series import SampleText
from kleash.text import compression_ratio, distinct_n, seq_rep_n, words

Samples = Sequence[SampleText]

#: Words of an opening.
_OPENING = 3
_MARKUP = re.compile(r"^\s*(?:#{1,6} |[-*+] |\d+[.)] |>|\|)|\*\*|`|</?[a-z]\w*>|\\(?:boxed|frac|begin)", re.M)
_TAG = re.compile(r"</?\w+>|\[/?[A-Z]+\]")
#: A run of one character, or of one short piece, this long is no text.
_STUCK = re.compile(r"(\S)\1{7,}|(\S{1,4})\2{7,}")


def _texts(samples: Samples) -> list[str]:
    return [sample.completion for sample in samples]


def distinct_2(samples: Samples) -> float | None:
    return distinct_n(_texts(samples), 2)


def seq_rep_4(samples: Samples) -> float | None:
    return seq_rep_n(_texts(samples), 4)


def compression(samples: Samples) -> float | None:
    return compression_ratio(_texts(samples))


def opening(samples: Samples) -> float | None:
    """Share of samples that begin with the commonest three words, among at least four prompts' answers.

    One prompt's answers may well begin alike; what counts is an opening that whatever was asked is given.
    """
    by_prompt = {sample.prompt: _opening(sample.completion) for sample in samples}
    if len(by_prompt) < 4:
        return None
    return Counter(by_prompt.values()).most_common(1)[0][1] / len(by_prompt)


def _opening(text: str) -> tuple[str, ...]:
    """Its first words; a tag that a format asks for, and marks, are none."""
    return tuple([word for word in words(_TAG.sub(" ", text[:400])) if word[0].isalnum()][:_OPENING])


def markup(samples: Samples) -> float | None:
    """Marks of markdown, HTML or LaTeX per word."""
    number = sum(len(words(text)) for text in _texts(samples))
    return sum(len(_MARKUP.findall(text)) for text in _texts(samples)) / number if number else None


def foreign(samples: Samples) -> float | None:
    """Share of the completions' letters that are of another script than most of the prompts'."""
    asked, answered = _scripts(sample.prompt for sample in samples), _scripts(_texts(samples))
    total = sum(answered.values())
    if not asked or not total:
        return None
    return 1 - answered[asked.most_common(1)[0][0]] / total


def _scripts(texts: Iterable[str]) -> Counter[str]:
    """Letters by script."""
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    found: Counter[str] = Counter()
    for character, number in characters.items():
        if character.isalpha():
            found[_script(character)] += number
    return found


def _script(character: str) -> str:
    return unicodedata.name(character, "?").split(" ")[0]


def degenerate(samples: Samples) -> float | None:
    """Share of samples that are no text: empty, without a letter or digit, or stuck on one character or piece."""
    if not samples:
        return None
    return sum(_is_degenerate(text) for text in _texts(samples)) / len(samples)


def _is_degenerate(text: str) -> bool:
    stuck = _STUCK.search(text)
    return not any(c.isalnum() for c in text) or (stuck is not None and len(stuck[0]) > len(text) / 4)


def copied(samples: Samples) -> float | None:
    """Share of a completion's word 4-grams that stand in its prompt, mean over the samples that have one."""
    shares = []
    for sample in samples:
        own, asked = _grams(sample.completion), set(_grams(sample.prompt))
        if own:
            shares.append(sum(gram in asked for gram in own) / len(own))
    return sum(shares) / len(shares) if shares else None


def _grams(text: str) -> list[tuple[str, ...]]:
    found = words(text)
    return [tuple(found[i : i + 4]) for i in range(len(found) - 3)]


def alike(samples: Samples) -> float | None:
    """Share of samples whose text another prompt's answer has too, word for word."""
    prompts: dict[str, set[str]] = {}
    for sample in samples:
        prompts.setdefault(" ".join(words(sample.completion)), set()).add(sample.prompt)
    if len({sample.prompt for sample in samples}) < 2:
        return None
    return sum(len(prompts[" ".join(words(text))]) > 1 for text in _texts(samples)) / len(samples)


MEASURES: dict[str, Callable[[Samples], float | None]] = {
    "distinct_2": distinct_2,
    "seq_rep_4": seq_rep_4,
    "compression_ratio": compression,
    "opening": opening,
    "markup": markup,
    "foreign": foreign,
    "degenerate": degenerate,
    "copied": copied,
    "alike": alike,
}
