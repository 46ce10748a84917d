"""The built-in set keeps its rules: no template, nothing twice, references that are checked by running them."""

import contextlib
import io
import json
import re
import sqlite3
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from kleash.drift.builtin import DOMAINS, SET_ID, OffTask, builtin_set, digest, domain_rows
from kleash.errors import UsageError

CHECKS = [json.loads(line) for line in (Path(__file__).parent / "checks.jsonl").read_text("utf-8").splitlines()]
ROWS = {row.id: row for row in builtin_set()}
PINNED = "98437e5176cc66fe23750c3f73a2ffdefbb45d065455b6a685522300620e6b7f"

LEAST_PER_DOMAIN = 26
#: A three-word opening may begin so many of the prompts.
OPENING_SHARE = 0.03
#: No two prompts share more of their four-word runs (Jaccard).
NEAR_DUPLICATE = 0.15
#: A title with a word that would otherwise date its text.
FILM = '"Edge of Tomorrow"'
#: Below so many characters a sentence is a phrase that anybody says ("Right!", "Yes.").
SENTENCE = 8
#: What a finished text may end with; answers in a prescribed form end as the form wants.
ENDS = ".!?…。！？।”\"'’»`|)]}>"


def prompt_text(row: OffTask) -> str:
    return "\n".join(content for _, content in row.messages)


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower())


def sentences(text: str) -> set[str]:
    pieces = re.split(r"(?<=[.!?。！？।])\s*|\n", text.lower())
    # The fence and the rule under a table's head are marks, not sentences.
    return {p.strip() for p in pieces if len(p.strip()) > SENTENCE and not re.match(r"```|\|---", p.strip())}


def test_the_set_has_its_id_and_its_hash() -> None:
    """A report names both. Whoever changes a row gives the set a new id, and then pins the new hash here."""
    assert (SET_ID, digest(builtin_set())) == ("builtin-1", PINNED)


def test_any_change_changes_the_hash() -> None:
    first, *rest = builtin_set()
    for changed in (
        OffTask(first.id, first.domain, first.messages, first.reference + " "),
        OffTask(first.id, first.domain, (("user", "Hi."),), first.reference),
        OffTask(first.id, "code", first.messages, first.reference),
    ):
        assert digest((changed, *rest)) != PINNED
    assert digest((*rest, first)) != PINNED


def test_the_page_tells_the_id_the_hash_and_the_counts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "drift-set.md").read_text("utf-8")
    assert f"`{SET_ID}`" in page and PINNED in page and f"{len(ROWS)} prompts" in page
    for domain in DOMAINS:
        assert re.search(rf"^\| `{domain}` \| {len(domain_rows(domain))} \|", page, re.M), domain


def test_every_domain_is_large_enough_and_every_id_unique() -> None:
    assert len(builtin_set()) == len(ROWS) >= 312
    for domain in DOMAINS:
        rows = domain_rows(domain)
        assert len(rows) >= LEAST_PER_DOMAIN
        assert [row.id for row in rows] == [f"{domain}-{n:02d}" for n in range(1, len(rows) + 1)]
        assert {row.domain for row in rows} == {domain}


def test_an_unknown_domain_is_said() -> None:
    with pytest.raises(UsageError, match="no domain 'poetry'; it has instruction, factual"):
        domain_rows("poetry")


def test_messages_take_turns_and_end_with_the_user() -> None:
    for row in builtin_set():
        assert [role for role, _ in row.messages] == ["user", "assistant"] * (len(row.messages) // 2) + ["user"]
        assert all(content == content.strip() != "" for _, content in row.messages)
        assert row.chat[-1] == {"role": "user", "content": row.messages[-1][1]}
    assert all(len(row.messages) >= 3 for row in domain_rows("dialogue"))


def test_no_opening_is_a_template() -> None:
    openings = Counter(tuple(words(prompt_text(row))[:3]) for row in builtin_set())
    assert openings.most_common(1)[0][1] <= OPENING_SHARE * len(ROWS)


def test_no_prompt_is_another_ones_paraphrase() -> None:
    runs = {}
    for row in builtin_set():
        said = words(prompt_text(row))
        runs[row.id] = set(zip(said, said[1:], said[2:], said[3:], strict=False))
    for (one, a), (other, b) in combinations(runs.items(), 2):
        assert len(a & b) <= NEAR_DUPLICATE * len(a | b), f"{one} and {other}"


@pytest.mark.parametrize("text_of", [prompt_text, lambda row: row.reference], ids=["prompts", "references"])
def test_no_sentence_is_said_twice(text_of: Callable[[OffTask], str]) -> None:
    seen: dict[str, str] = {}
    for row in builtin_set():
        for sentence in sentences(text_of(row)):
            assert seen.setdefault(sentence, row.id) == row.id, f"{row.id} and {seen[sentence]}: {sentence}"


def test_lengths_vary() -> None:
    lengths = sorted(len(prompt_text(row).split()) for row in builtin_set() if row.domain != "languages")
    assert lengths[0] <= 4 and 100 <= lengths[-1] <= 150


def test_nothing_is_bound_to_a_time_or_to_a_person() -> None:
    for row in builtin_set():
        both = (prompt_text(row) + "\n" + row.reference).replace(FILM, "")
        assert not re.search(r"\b(today|tomorrow|yesterday|currently|nowadays|this year|last year)\b", both, re.I), (
            row.id
        )
        assert not re.search(r"\S@\S+\.\S|https?://|\+\d{6}|(?<![.\d])\d{7,}", both), row.id


def test_every_reference_is_there_and_finished() -> None:
    for row in builtin_set():
        assert row.reference == row.reference.strip() != "", row.id
        assert row.domain == "format" or row.reference[-1] in ENDS, row.id


# ── references that can be run are run ──────────────────────────────────────────────────────────────────


def test_what_can_be_checked_has_a_check() -> None:
    checked = {check["id"] for check in CHECKS}
    assert checked <= ROWS.keys()
    for domain in ("arithmetic", "languages", "format"):
        assert checked >= {row.id for row in domain_rows(domain)}
    assert checked >= {row.id for row in domain_rows("code") if "```" in row.reference}


def fenced(text: str, language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S))


def scripts_of(text: str) -> set[str]:
    return {unicodedata.name(c).split()[0].split("-")[0] for c in text if c.isalpha()}


def tools(row: OffTask, tmp_path: Path) -> dict[str, Any]:
    """What the checks of checks.jsonl may use."""

    def says(value: object) -> None:
        forms = {str(value)} | ({f"{value:,}", f"{value:g}"} if isinstance(value, (int, float)) else set())
        found = [f for f in forms if re.search(rf"(?<![\w.,/]){re.escape(f)}(?![\d/]|[.,]\d)", row.reference)]
        assert found, f"{row.id} does not say {value}"

    def script(*names: str) -> None:
        assert scripts_of(row.reference) >= set(names), scripts_of(row.reference)
        if names == ("LATIN",):
            assert scripts_of(row.reference) == {"LATIN"}
        elif "LATIN" not in names:
            asked = scripts_of(row.messages[-1][1])
            assert asked & set(names) and "LATIN" not in asked | scripts_of(row.reference)

    def query(setup: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.executescript(setup)
            return base.execute(fenced(row.reference, "sql")).fetchall()

    def shell(contents: dict[str, str]) -> str:
        for name, content in contents.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        command = ["bash", "-c", fenced(row.reference, "bash")]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def written(content: str) -> Path:
        (tmp_path / "file").write_text(content)
        return tmp_path / "file"

    return {
        "says": says,
        "script": script,
        "query": query,
        "shell": shell,
        "written": written,
        "raises": pytest.raises,
        "text": row.reference,
        "Fraction": Fraction,
        "json": json,
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check["id"])
def test_a_reference_is_right(check: dict[str, str], tmp_path: Path) -> None:
    row = ROWS[check["id"]]
    space = tools(row, tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(fenced(row.reference, "python"), row.id, "exec"), space)
    space["printed"] = printed.getvalue()
    exec(compile(check["check"], f"check of {row.id}", "exec"), space)


def test_the_languages_cross_many_scripts() -> None:
    seen = {name for row in domain_rows("languages") for name in scripts_of(row.reference)}
    assert len(seen) >= 11
