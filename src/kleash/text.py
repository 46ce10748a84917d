"""Statistics of sampled text that show repetition and collapse. Standard library only.

A word is a run of letters, digits and inner apostrophes, or a single other mark ("it's fine!!" has four words); case
does not count. In scripts without spaces between words a whole run is one word.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def distinct_n(texts: Iterable[str], n: int) -> float | None:
    """Distinct word n-grams / all word n-grams over the texts together; None if there is no n-gram.

    Source: Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", arXiv 1510.03055.
    """
    grams = list(chain.from_iterable(_ngrams(text, n) for text in texts))
    return len(set(grams)) / len(grams) if grams else None


def seq_rep_n(texts: Iterable[str], n: int) -> float | None:
    """1 − distinct / all word n-grams within a text, averaged over the texts that have one; None if none has.

    Source: Welleck et al. 2019, "Neural Text Generation with Unlikelihood Training", arXiv 1908.04319, §6 (seq-rep-n).
    """
    shares = [1 - len(set(grams)) / len(grams) for grams in (_ngrams(text, n) for text in texts) if grams]
    return sum(shares) / len(shares) if shares else None


def compression_ratio(texts: Sequence[str]) -> float | None:
    """Bytes of the texts (UTF-8, one a line) / bytes after zlib; None if the texts are empty."""
    if not any(texts):
        return None
    raw = "\n".join(texts).encode("utf-8", errors="surrogatepass")
    return len(raw) / len(zlib.compress(raw))


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    found = words(text)
    return [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]
