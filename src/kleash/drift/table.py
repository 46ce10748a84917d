"""What two models said of the same tokens, one row a token: all that the statistics of an audit read. No torch.

"forward" is KL(base‖tuned), "reverse" KL(tuned‖base), nats. A value that is infinite or undefined (a NaN or a −inf
among the logits) is NaN here: it is counted (`non_finite`) and left out of every mean of its column, never turned into
0. A column that was not measured at all is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kleash.drift.records import Kind

#: In the order of their numbers. template: tokens added to the vocabulary (turn marks, tags) that end nothing; eos:
#: what ends an answer; format: neither letter nor digit in it; content: all others.
CLASSES = ("content", "format", "template", "eos")

#: Columns that may hold NaN.
DIVERGENCES = ("forward", "reverse", "jensen_shannon")

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text that both models read: a prompt, which is not scored, and tokens, which are.

    Attributes:
        id: of its prompt or row, unique in its set: intervals are clustered by document.
        domain: None where the texts have none.
        prompt_text: as shown; "" for plain text.
        text: the scored tokens as text; the pieces put together.
        ids: the scored tokens, the same for both models.
        pieces: the text of each scored token.
        classes: of each scored token, its number in CLASSES.
        prompt_base: the tokens before them as the base reads them, one at least. prompt_tuned: as the tuned model does;
            other ones where each has a chat template of its own.
        cut: scored tokens that were left out, for the text is longer than the context.
        ended: it ends as its author wanted; False for a sample that ran into the limit and for a text that was cut.
    """

    id: str
    domain: str | None
    prompt_text: str
    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    classes: tuple[int, ...]
    prompt_base: tuple[int, ...]
    prompt_tuned: tuple[int, ...]
    cut: int = 0
    ended: bool = True

    @property
    def n_bytes(self) -> int:
        """Of the scored text in UTF-8."""
        return len(self.text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """Columns of equal length n, document after document, each document's tokens in their order.

    Attributes:
        kind: "exact", "lower bound" (a server's top-k) or "sampled"; tables of two kinds are never put together.
        documents: those that were measured, in the order of `document`.
        document: index into `documents`. position: 0 for a document's first scored token. token: its id.
        token_class: its number in CLASSES.
        forward, reverse: KL over the whole vocabulary that both have. jensen_shannon: below log 2.
        logp_base, logp_tuned: log-prob of the token of the text.
        same_top1: both have the same likeliest token. sure_flip: they have not, and the base's own rounding (`reach`)
            could not have done it, for its likeliest token led by more.
        rank: of the token of the text in the tuned model, 1 for the likeliest.
        entropy_base, entropy_tuned: of the whole next-token distribution. confidence: the base's largest probability.
        new_mass: the tuned model's probability of tokens that the base does not have; both distributions are then
            renormalised over the others.
        reach: the largest KL that rounding alone made of one token of the base, when the floor was measured.
        halved: how often memory ran out and a batch was split.
        partial: why not all documents were measured; None if they were.
    """

    kind: Kind
    documents: tuple[Document, ...]
    document: Whole
    position: Whole
    token: Whole
    token_class: Whole
    forward: Floats | None
    reverse: Floats | None
    jensen_shannon: Floats | None
    logp_base: Floats
    logp_tuned: Floats
    same_top1: Flags | None
    sure_flip: Flags | None
    rank: Whole | None
    entropy_base: Floats | None
    entropy_tuned: Floats | None
    confidence: Floats | None
    new_mass: Floats | None
    reach: float = 0.0
    halved: int = 0
    partial: str | None = None

    def __len__(self) -> int:
        return len(self.document)

    @property
    def non_finite(self) -> int:
        """Tokens with a divergence that is infinite or undefined."""
        bad = np.zeros(len(self), bool)
        for name in DIVERGENCES:
            column = getattr(self, name)
            if column is not None:
                bad |= ~np.isfinite(column)
        return int(bad.sum())

    @property
    def whole(self) -> Flags:
        """Tokens of which both have a distribution: without one (a NaN among the logits) none is the likeliest."""
        return np.ones(len(self), bool) if self.confidence is None else np.isfinite(self.confidence)

    @property
    def cut(self) -> int:
        """Documents that were longer than the context."""
        return sum(document.cut > 0 for document in self.documents)

    @property
    def delta(self) -> Floats:
        """log-prob of the text's token, tuned − base."""
        return self.logp_tuned - self.logp_base

    def only(self, rows: Flags) -> "TokenTable":
        """The rows where `rows` is True; the documents stay as they are."""
        return replace(self, **{name: None if (c := getattr(self, name)) is None else c[rows] for name in COLUMNS})


#: Names of the columns.
COLUMNS = (
    "document",
    "position",
    "token",
    "token_class",
    *DIVERGENCES,
    "logp_base",
    "logp_tuned",
    "same_top1",
    "sure_flip",
    "rank",
    "entropy_base",
    "entropy_tuned",
    "confidence",
    "new_mass",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTable:
    """Two models with different tokenizers on the same texts: bits a byte, and nothing finer.

    bits_base, bits_tuned: −log2 of each document's probability under each model; NaN where it is not finite.
    left_out: documents that do not fit into a context.
    """

    ids: tuple[str, ...]
    domains: tuple[str | None, ...]
    n_bytes: Whole
    bits_base: Floats
    bits_tuned: Floats
    left_out: int = 0

    @property
    def bits_per_byte(self) -> tuple[float, float]:
        """Of base and tuned model, over the documents that both give a finite probability."""
        both = np.isfinite(self.bits_base) & np.isfinite(self.bits_tuned)
        total = self.n_bytes[both].sum()
        return float(self.bits_base[both].sum() / total), float(self.bits_tuned[both].sum() / total)


def index_rows(documents: Sequence[Document]) -> tuple[Whole, Whole, Whole, Whole]:
    """The columns document, position, token and token_class of these documents."""
    lengths = [len(document.ids) for document in documents]
    number = np.repeat(np.arange(len(documents)), lengths)
    position = np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0)]).astype(np.int64)
    token = np.array([i for document in documents for i in document.ids], np.int64)
    classes = np.array([c for document in documents for c in document.classes], np.int64)
    return number.astype(np.int64), position, token, classes
