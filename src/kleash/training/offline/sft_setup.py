"""From a config of `kleash sft` to its job: texts read and tokenised, the model loaded, everything checked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kleash.errors import UsageError
from kleash.models.frozen import Reference
from kleash.models.load import Loaded, load
from kleash.models.plan import Plan, Work
from kleash.models.reference import build_reference
from kleash.models.rows import Reader, Row, answered_rows, conversation_rows, plain_rows
from kleash.training.data import Prompts, conversations, digest
from kleash.training.describe import base_words, trained_words
from kleash.training.offline.job import OfflineJob
from kleash.training.offline.own_words import OwnWords
from kleash.training.offline.sft import Held, Supervised, fitting
from kleash.training.offline.sft_config import SFTConfig, SFTData
from kleash.training.planning import planned
from kleash.training.prompt_files import read_rows

#: Learning rates when none is given: of all weights, and of an adapter.
FULL_RATE, ADAPTER_RATE = 2e-5, 2e-4


def build_sft(
    config: SFTConfig, texts: Sequence[Any] | None = None, held_out: Sequence[Any] | None = None
) -> OfflineJob:
    """Loads model and texts. Moves nothing.

    Raises:
        UsageError, RunError: with what is wrong in the config, the model or a row.
    """
    train, model = config.train, config.model
    loaded = load(model, seed=train.seed)
    rows = _read("data.texts", config.data.texts, texts, config.data, loaded)
    held = None
    if held_out is not None or config.data.held_out is not None:
        held = _read("data.held_out", config.data.held_out, held_out, config.data, loaded)
    reference = build_reference(model, loaded) if held and config.kl.measure else None
    longest = max(len(row.ids) for row in [*rows.rows, *(held.rows if held else [])])
    n = train.batch_size
    work = Work(prompts=n, groups=n, group_size=1, prompt=1, length=longest, asked=train.groups_per_pass)
    rate = train.learning_rate or (FULL_RATE if loaded.adapter is None else ADAPTER_RATE)
    steps, plan = train.updates(len(rows.rows)), planned(loaded, reference, work)
    return OfflineJob(
        verb="sft",
        config=config,
        model=model,
        train=train,
        run_dir=Path(config.out),
        loaded=loaded,
        trained=loaded.policy,
        reload=lambda directory: load(replace(model, policy=str(directory))).policy,
        first=lambda: load(model, seed=train.seed).policy,
        objective=Supervised(
            policy=loaded.policy,
            rows=rows.rows,
            batch_size=n,
            seed=train.seed,
            pad_id=loaded.ends.pad_id,
            held_out=None if held is None else Held(held.rows, held.fingerprint["content"]),
            reference=reference,
            words=_own_words(config, loaded, reference, held),
        ),
        optimizer=train.optimizer(loaded.policy.trainable(), rate),
        learning_rate=rate,
        steps=steps,
        work=work,
        plan=plan,
        fingerprints={"texts": rows.fingerprint}
        | ({} if held is None else {"held_out": held.fingerprint})
        | ({} if reference is None else {"reference": reference.fingerprint}),
        described=_described(config, loaded, rows, held, (steps, rate, plan)),
    )


def _own_words(config: SFTConfig, loaded: Loaded, reference: Reference | None, held: "Read | None") -> OwnWords | None:
    """After the first held-out prompts that leave room for them: all of a row before its first counted token.

    Raises:
        UsageError: none of them does.
    """
    if reference is None or held is None or config.kl.prompts == 0:
        return None
    length = config.kl.max_new_tokens
    prompts = [row.ids[: row.counts.index(True)] for row in held.rows[: config.kl.prompts]]
    prompts = [ids for ids in prompts if len(ids) + length <= loaded.context]
    if not prompts:
        raise UsageError(
            f"kl.max_new_tokens = {length}: no held-out prompt leaves the model's context of {loaded.context} so much "
            "room; lower it, or set kl.prompts = 0"
        )
    return OwnWords(
        policy=loaded.policy,
        reference=reference,
        tokenizer=loaded.tokenizer,
        ends=loaded.ends,
        prompts=[loaded.tokenizer.decode(ids) for ids in prompts],
        ids=prompts,
        samples=1,
        length=length,
        seed=config.train.seed,
        rows=config.train.batch_size,
        group_size=1,
    )


def _described(
    config: SFTConfig, loaded: Loaded, rows: "Read", held: "Read | None", work: tuple[int, float, Plan]
) -> tuple[str, ...]:
    steps, rate, plan = work
    return (
        trained_words(loaded, config.model),
        *base_words(loaded),
        f"texts      {rows}",
        f"held out   {held or 'nothing, so that what comes out is the last checkpoint'}",
        f"steps      {steps} × {config.train.batch_size} rows, learning rate {rate:g} ({config.train.decay})",
        f"memory     {plan}",
    )


class Read(NamedTuple):
    """Rows as they were read. cut: how many were, at data.max_tokens."""

    fingerprint: dict[str, Any]
    rows: list[Row]
    cut: int

    def __str__(self) -> str:
        cut = f", {self.cut} of them cut" if self.cut else ""
        counted, longest = sum(sum(row.counts) for row in self.rows), max(len(row.ids) for row in self.rows)
        return f"{len(self.rows)} rows{cut}, {counted:,} tokens to learn, the longest row {longest} tokens"


def _read(what: str, source: str | None, given: Sequence[Any] | None, data: SFTData, loaded: Loaded) -> Read:
    try:
        found = list(given) if given is not None else read_rows(str(source))
        reader = Reader(loaded.tokenizer, loaded.ends, loaded.context, loaded.policy.rows, data.asked)
        rows, cut = fitting(tokenised(found, data, reader), loaded.context, data.max_tokens)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    return Read(digest(Prompts(found, {})), rows, cut)


def tokenised(rows: Sequence[Any], data: SFTData, reader: Reader) -> list[Row]:
    """Rows of one of three forms: prompt and completion; messages; text (or a string).

    Raises:
        UsageError: no rows, a row of another form than the first, or one that cannot be learned from.
    """
    if not rows:
        raise UsageError("there are no rows")
    forms = [_form(number, row) for number, row in enumerate(rows)]
    odd = next((number for number, form in enumerate(forms) if form != forms[0]), None)
    if odd is not None:
        raise UsageError(f"row {odd} has {forms[odd]}, and row 0 has {forms[0]}; give all rows in one form")
    match forms[0]:
        case "text":
            if data.chat or data.system is not None:
                raise UsageError("data.chat and data.system are for questions, and these rows are text alone")
            return plain_rows([row if isinstance(row, str) else row["text"] for row in rows], reader)
        case "messages":
            asked = conversations(Prompts([row["messages"] for row in rows], {}), system=data.system)
            return conversation_rows(asked.prompts, reader)  # pyright: ignore[reportArgumentType]
        case _:
            asked = conversations(Prompts([row["prompt"] for row in rows], {}), system=data.system, chat=data.chat)
            return answered_rows(asked.prompts, [row["completion"] for row in rows], reader)


def _form(number: int, row: Any) -> str:
    """What a row is made of, by its columns; others are left alone."""
    if isinstance(row, str):
        return "text"
    if isinstance(row, dict):
        for form, columns in (
            ("prompt and completion", ("prompt", "completion")),
            ("messages", ("messages",)),
            ("text", ("text",)),
        ):
            if all(column in row for column in columns):
                return form
    raise UsageError(
        f"row {number} must have prompt and completion, messages, or text; "
        + (f"it has {', '.join(sorted(map(str, row)))}" if isinstance(row, dict) else f"it is {row!r:.80}")
    )
