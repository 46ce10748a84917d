"""The built-in off-task set: prompts with fixed reference answers, on which every report of drift can be compared."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kleash.errors import UsageError

#: Changes with any change of the rows: two reports with one id have read the same texts.
SET_ID = "builtin-1"

#: One file each under builtin/, in the order of reports.
DOMAINS = (
    "instruction",
    "factual",
    "reasoning",
    "arithmetic",
    "code",
    "creative",
    "summarising",
    "dialogue",
    "refusal",
    "overrefusal",
    "languages",
    "format",
)


@dataclass(frozen=True)
class OffTask:
    """One prompt of the set.

    Attributes:
        id: domain and number, such as "code-07".
        domain: one of `DOMAINS`.
        messages: (role, content) of each turn; user and assistant take turns, the last is the user's.
        reference: the answer that both models are scored on; the same text whatever the base.
    """

    id: str
    domain: str
    messages: tuple[tuple[str, str], ...]
    reference: str

    @property
    def chat(self) -> list[dict[str, str]]:
        """The messages as chat templates take them."""
        return [{"role": role, "content": content} for role, content in self.messages]


@cache
def builtin_set() -> tuple[OffTask, ...]:
    """All rows, domain after domain."""
    return tuple(row for domain in DOMAINS for row in domain_rows(domain))


def domain_rows(domain: str) -> list[OffTask]:
    """The rows of one domain. Raises UsageError for a domain that the set does not have."""
    if domain not in DOMAINS:
        raise UsageError(f"the built-in set has no domain {domain!r}; it has {', '.join(DOMAINS)}")
    text = files("kleash.drift").joinpath("builtin", f"{domain}.jsonl").read_text(encoding="utf-8")
    return [
        OffTask(row["id"], row["domain"], tuple((m["role"], m["content"]) for m in row["messages"]), row["reference"])
        for row in map(json.loads, text.splitlines())
    ]


def digest(rows: tuple[OffTask, ...]) -> str:
    """SHA-256 (hex) of the rows' content, whatever the spacing and the order of keys in the files."""
    content = [[row.id, row.domain, row.messages, row.reference] for row in rows]
    canonical = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
