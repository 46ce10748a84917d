"""Tables of tokens made up for the tests: what two models might have said, with planted numbers."""

import numpy as np

from kleash.drift.table import Document, TokenTable, index_rows


def documents(count: int, tokens: int = 20, domains: int = 3) -> tuple[Document, ...]:
    """Texts of `tokens` one-letter tokens; one token in ten ends a line, the last ends the text."""
    classes = tuple(3 if i == tokens - 1 else 1 if i % 10 == 9 else 0 for i in range(tokens))
    return tuple(
        Document(
            id=f"text-{number}",
            domain=f"domain {number % domains}" if domains else None,
            prompt_text=f"prompt {number}",
            text="x" * tokens,
            ids=tuple(range(tokens)),
            pieces=tuple(chr(97 + i % 26) for i in range(tokens)),
            classes=classes,
            prompt_base=(0,),
            prompt_tuned=(0,),
        )
        for number in range(count)
    )


def table(kl: np.ndarray, owners: tuple[Document, ...], **changes: object) -> TokenTable:
    """A table with these forward KLs; the other columns follow from them in simple ways."""
    document, position, token, token_class = index_rows(owners)
    fields = {
        "kind": "exact",
        "documents": owners,
        "document": document,
        "position": position,
        "token": token,
        "token_class": token_class,
        "forward": kl,
        "reverse": 2 * kl,
        "jensen_shannon": kl / 4,
        "logp_base": np.full(len(document), -1.0),
        "logp_tuned": np.full(len(document), -1.5),
        "same_top1": position % 5 != 0,
        "sure_flip": position % 10 == 0,
        "rank": position + 1,
        "entropy_base": np.full(len(document), 2.0),
        "entropy_tuned": np.full(len(document), 1.0),
        "confidence": np.linspace(0, 1, len(document)),
        "new_mass": np.full(len(document), 0.25),
    }
    return TokenTable(**(fields | changes))  # type: ignore[arg-type]


def spread(owners: tuple[Document, ...], seed: int = 0, scale: float = 0.05) -> np.ndarray:
    """Log-normal KLs with a level of each text's own."""
    random = np.random.default_rng(seed)
    lengths = [len(owner.ids) for owner in owners]
    level = np.repeat(random.normal(0, 0.5, len(owners)), lengths)
    return scale * np.exp(level + random.normal(0, 1, len(level)))
