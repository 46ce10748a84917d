"""How texts become the tokens that two models are read on: each side's tokenizer, and what both of them can read."""

from dataclasses import dataclass
from typing import Any

from kleash.models.stopping import Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One side's tokenizer, its end tokens, the tokens that the model has embeddings for, and its context."""

    tokenizer: Any
    ends: Ends
    rows: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Both sides. shared: tokens that both have, the first so many ids; used_template: as in records.Parity."""

    base: Reader
    tuned: Reader
    shared: int
    used_template: str
    base_is_smaller: bool

    @property
    def context(self) -> int:
        return min(self.base.context, self.tuned.context)

    @property
    def rows(self) -> int:
        """Tokens that both can read."""
        return min(self.base.rows, self.tuned.rows)

    @property
    def smaller(self) -> Reader:
        """The side with fewer tokens, all of which the other has too."""
        return self.base if self.base_is_smaller else self.tuned

    @property
    def readers(self) -> tuple[Reader, Reader]:
        """Whose template and tokens each side reads."""
        if self.used_template == "each":
            return self.base, self.tuned
        reader = {"base": self.base, "tuned": self.tuned}.get(self.used_template, self.smaller)
        return reader, reader
