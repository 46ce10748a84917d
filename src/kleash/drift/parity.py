"""Whether two models' numbers can be compared at all: tokenizer, vocabulary, chat template, special tokens.

A fine-tune that added tokens, renamed reserved ones or changed the template is normal, and said; only ids that mean
different tokens stop an exact comparison.
"""

from dataclasses import dataclass
from typing import Any, Literal

from kleash.drift.records import Parity
from kleash.models.fingerprint import tokenizer_digest
from kleash.models.opened import Opened
from kleash.models.prompts import TEMPLATE_ERRORS, bare_ids

Template = Literal["base", "tuned", "each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """shared: tokens that both models have, the first so many ids. why_not: why they have no tokens in common."""

    parity: Parity
    shared: int
    why_not: str | None


def compare_tokens(base: Opened, tuned: Opened, template: Template) -> Compared:
    """What the two sides share. `template`: which side's chat template writes the prompts."""
    sides = (base.loaded.tokenizer, tuned.loaded.tokenizer)
    vocabs = (base.policy.recipe.vocab, tuned.policy.recipe.vocab)
    said, why_not = _tokens(*sides)
    notes: list[str] = []
    if vocabs[0] != vocabs[1] and why_not is None:
        more, less = ("tuned", "base") if vocabs[1] > vocabs[0] else ("base", "tuned")
        notes.append(
            f"the {more} model has {abs(vocabs[1] - vocabs[0])} tokens more than the {less} one: both are renormalised "
            f"over the {min(vocabs)} that they share"
        )
    used, template_note = _template(sides, template)
    if used == "tuned" and why_not is None and not _readable(tuned, base.policy.rows):
        used = "each"
        notes.append("the tuned model's template writes tokens that the base does not have: each reads its own")
    padded = [_rows(side) - vocab for side, vocab in zip((base, tuned), vocabs, strict=True)]
    if max(padded):
        notes.append(
            f"rows of the head beyond the tokenizer are left out: {padded[0]} of the base, {padded[1]} of tuned"
        )
    if why_not is not None:
        kinds = [side.policy.config.model_type for side in (base, tuned)]
        what = "" if kinds[0] == kinds[1] else f" (the base is of the kind {kinds[0]}, the tuned model {kinds[1]})"
        why_not = f"{why_not}{what}; they can be compared in bits per byte only"
    parity = Parity(
        tokenizer=said,
        vocabulary=vocabs,
        template=template_note,
        special_tokens=_special(*sides),
        used_template=used,
        masked_rows=max(padded),
        notes=notes,
    )
    return Compared(parity=parity, shared=min(vocabs), why_not=why_not)


def _rows(side: Opened) -> int:
    return side.policy.head().weight.shape[0]


def _tokens(base: Any, tuned: Any) -> tuple[str, str | None]:
    """What the tokenizers share, in words, and why their ids cannot be compared, if they cannot."""
    before, after = ({i: t for t, i in side.get_vocab().items()} for side in (base, tuned))
    added = len(after.keys() - before.keys())
    gone = len(before.keys() - after.keys())
    others = [i for i in before.keys() & after.keys() if before[i] != after[i]]
    special = base.added_tokens_decoder.keys() | tuned.added_tokens_decoder.keys()
    wrong = [i for i in others if i not in special]
    if wrong or len(others) > len(before) // 2 or min(added, gone):
        if not wrong:
            return "other tokens", "the two models have no tokens in common"
        i = min(wrong)
        return (
            f"other tokens under {len(wrong)} ids",
            f"the two models have different tokenizers: id {i} is {before[i]!r} in the base and {after[i]!r} in tuned",
        )
    changes = [
        f"{number} tokens {what}"
        for number, what in ((added, "added"), (gone, "gone"), (len(others), "renamed"))
        if number
    ]
    if not changes and tokenizer_digest(base) != tokenizer_digest(tuned):
        changes = ["same tokens, other rules of cutting text"]
    return ", ".join(changes) or "same", None


def _template(sides: tuple[Any, Any], asked: Template) -> tuple[str, str]:
    """Whose template writes the prompts, in words, and how the two differ."""
    base, tuned = (side.chat_template for side in sides)
    if not base and not tuned:
        return "none", "none"
    if not base or not tuned:
        owner = "base" if base else "tuned"
        return owner, f"only the {owner} model has one"
    return ("same" if base == tuned else asked), ("same" if base == tuned else "changed")


def _readable(writer: Opened, rows: int) -> bool:
    """Whether a model with embeddings for so many tokens can read what this side's chat template writes."""
    tokenizer = writer.loaded.tokenizer
    trial = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        text = tokenizer.apply_chat_template(trial, tokenize=False)
    except TEMPLATE_ERRORS:
        return True  # said of the first prompt that it refuses
    return max(bare_ids([text], tokenizer)[0], default=0) < rows


def _special(base: Any, tuned: Any) -> str:
    changes = [
        f"{name} {before} -> {after}"
        for name in ("bos", "eos", "pad")
        if (before := getattr(base, f"{name}_token_id")) != (after := getattr(tuned, f"{name}_token_id"))
    ]
    return ", ".join(changes) or "same"
