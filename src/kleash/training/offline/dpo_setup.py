"""From a config of `kleash dpo` to its job: pairs read and tokenised, the models loaded, everything checked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kleash.algorithms.preference import TextsLoss
from kleash.beta import PI, Constant
from kleash.errors import UsageError
from kleash.models.answers import Encoded, encode_answers
from kleash.models.load import Loaded, load
from kleash.models.plan import Work
from kleash.models.reference import build_reference
from kleash.records import Prompt
from kleash.training.data import Prompts, conversations, digest
from kleash.training.describe import base_words, trained_words
from kleash.training.offline.displacement import WATCHED
from kleash.training.offline.dpo import Leash, Preferring, Watched
from kleash.training.offline.dpo_config import DPOConfig, resolved_dpo
from kleash.training.offline.job import OfflineJob
from kleash.training.offline.own_words import OwnWords
from kleash.training.offline.reference_cache import ReferenceCache
from kleash.training.pair_files import BadRows, Judged, Pairs, as_judged, as_pairs
from kleash.training.planning import planned
from kleash.training.prompt_files import read_rows

#: Learning rates when none is given: of all weights, and of an adapter. TRL's.
FULL_RATE, ADAPTER_RATE = 1e-6, 1e-5
#: Losses whose optimum is finite for labels that are given once and for all: raising beta then brings the policy back.
ENDS_SOMEWHERE = ("ipo", "cdpo", "exo")


class Read(NamedTuple):
    """Preferences as they were read, and as tokens. labels: of judged texts, whether they are wanted; None of pairs."""

    prompts: list[Prompt]
    rows: Encoded
    labels: torch.Tensor | None
    said: tuple[str, ...]
    fingerprint: dict[str, Any]

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest prompt, and of the longest answer."""
        return max(map(len, self.rows.prompts)), max(len(ids) for both in self.rows.answers for ids in both)

    def __str__(self) -> str:
        cut = f", {self.rows.cut} answers cut" if self.rows.cut else ""
        prompt, answer = self.longest
        what = "pairs" if self.labels is None else f"texts, {int(self.labels.sum())} of them wanted"
        return f"{len(self.rows)} {what}{cut}; the longest prompt has {prompt} tokens, the longest answer {answer}"


def build_dpo(
    config: DPOConfig, pairs: Sequence[Any] | None = None, held_out: Sequence[Any] | None = None
) -> OfflineJob:
    """Loads models and pairs. Moves nothing.

    Raises:
        UsageError, RunError: with what is wrong in the config, the model or a pair.
    """
    train, model = config.train, config.model
    loaded = load(model, seed=train.seed)
    read = _read("data.pairs", config.data.pairs, pairs, config, loaded)
    held = None
    if held_out is not None or config.data.held_out is not None:
        held = _read("data.held_out", config.data.held_out, held_out, config, loaded)
    reference = build_reference(model, loaded)
    n, G, (prompt, answer) = train.batch_size, read.rows.group_size, read.longest
    if held is not None:
        prompt, answer = (max(pair) for pair in zip((prompt, answer), held.longest, strict=True))
    work = Work(prompts=n, groups=n, group_size=G, prompt=prompt, length=answer, asked=train.groups_per_pass)
    steps, plan = train.updates(len(read.rows)), planned(loaded, reference, work)
    rate = train.learning_rate or (FULL_RATE if loaded.adapter is None else ADAPTER_RATE)
    words = _words(config, loaded, reference, held or read)
    config = resolved_dpo(config, learning_rate=rate, max_new_tokens=words.length)
    return OfflineJob(
        verb="dpo",
        config=config,
        model=model,
        train=train,
        run_dir=Path(config.out),
        loaded=loaded,
        trained=loaded.policy,
        reload=lambda directory: load(replace(model, policy=str(directory))).policy,
        first=lambda: load(model, seed=train.seed).policy,
        objective=_objective(config, read, held, words, loaded.context),
        optimizer=train.optimizer(loaded.policy.trainable(), rate),
        learning_rate=rate,
        steps=steps,
        work=work,
        plan=plan,
        fingerprints={"pairs": read.fingerprint, "reference": reference.fingerprint}
        | ({} if held is None else {"held_out": held.fingerprint}),
        described=(
            trained_words(loaded, model),
            *base_words(loaded),
            *_described(config, read, held, words),
            f"steps      {steps} × {n} pairs, learning rate {rate:g} ({train.decay})",
            f"memory     {plan}",
        ),
    )


def _objective(config: DPOConfig, read: Read, held: Read | None, words: OwnWords, context: int) -> Preferring:
    kl, n, policy = config.kl, config.train.batch_size, words.policy
    law = kl.controller or (PI() if kl.target else Constant())
    return Preferring(
        policy=policy,
        reference=words.reference,
        pairs=read.rows,
        loss=config.loss,
        batch_size=n,
        seed=config.train.seed,
        leash=Leash(law=law, target=kl.held, budget=kl.ceiling),
        watched=_watched(read, held),
        words=words,
        following=config.model.reference_update,
        cache=ReferenceCache(words.reference, read.rows, n, policy.device) if kl.cache else None,
        labels=read.labels,
        context=context,
    )


def _read(what: str, source: str | None, given: Sequence[Any] | None, config: DPOConfig, loaded: Loaded) -> Read:
    data = config.data
    try:
        given = given if given is not None else read_rows(str(source))
        found = (as_judged if isinstance(config.loss, TextsLoss) else as_pairs)(given, data.bad_rows)
        asked = conversations(Prompts(found.prompts, {}), system=data.system, chat=data.chat).prompts
        rows = encode_answers(
            asked,
            found.answers,
            loaded.tokenizer,
            loaded.ends,
            context=loaded.context,
            chat=data.asked,
            rows=loaded.policy.rows,
            max_tokens=data.max_tokens,
        )
        kept, dropped = _different(found, rows, data.bad_rows)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    labels = torch.tensor(found.labels) if isinstance(found, Judged) else None
    asked, answers, rows = [asked[i] for i in kept], [found.answers[i] for i in kept], rows.only(kept)
    return Read(asked, rows, labels, (*_said(found, rows), *dropped), digest(Prompts(asked, {"answers": answers})))


def _different(found: Pairs | Judged, rows: Encoded, bad_rows: BadRows) -> tuple[list[int], list[str]]:
    """The rows whose sides are different tokens, and a word on the others: a cut can make two sides one."""
    same = [i for i, sides in enumerate(rows.answers) if len(sides) == 2 and sides[0] == sides[1]]
    if not same:
        return list(range(len(rows))), []
    cut = not all(rows.ended[same[0]])
    first = f"pair {found.rows[same[0]]}: chosen and rejected are the same tokens"
    first += ", once they are cut at data.max_tokens" if cut else ""
    if bad_rows == "refuse" or len(same) == len(rows):
        raise UsageError(
            f"{first} ({len(same)} of {len(rows)} pairs); {'raise data.max_tokens, or ' if cut else ''}mend the data"
            + ("" if bad_rows == "drop" else ', or set data.bad_rows = "drop" to leave such pairs out')
        )
    kept = [i for i in range(len(rows)) if i not in set(same)]
    return kept, [f"{len(same)} more pairs were left out, the first of them {first}"]


def _said(found: Pairs | Judged, rows: Encoded) -> tuple[str, ...]:
    apart = f"{rows.apart} answers are tokenised apart from their prompts, for the tokens of both flow together"
    return (*found.said, *([apart] if rows.apart else []))


def _watched(read: Read, held: Read | None) -> Watched:
    """The held-out pairs; without any, the first of those trained on."""
    source = read if held is None else held
    index = range(min(len(source.rows), WATCHED)) if held is None else range(len(source.rows))
    rows, labels = source.rows.only(index), None if source.labels is None else source.labels[: len(index)]
    numbers: dict[tuple[int, ...], int] = {}
    prompt = [numbers.setdefault(tuple(ids), len(numbers)) for ids in rows.prompts]
    return Watched(pairs=rows, prompt=torch.tensor(prompt), held_out=held is not None, labels=labels)


def _words(config: DPOConfig, loaded: Loaded, reference: Any, source: Read) -> OwnWords:
    """Different prompts of the held-out pairs, or of those trained on, and how long an answer to them may be.

    Raises:
        UsageError: kl.max_new_tokens leaves no room for a prompt.
    """
    kl, different = config.kl, {}
    for prompt, ids in zip(source.prompts, source.rows.prompts, strict=True):
        different.setdefault(tuple(ids), prompt)
    chosen = list(different.items())[: kl.prompts]
    room = loaded.context - max(len(ids) for ids, _ in chosen)
    length = min(source.longest[1], room) if kl.max_new_tokens is None else kl.max_new_tokens
    if length > room:
        raise UsageError(
            f"kl.max_new_tokens = {length}: after the longest prompt the model's context of {loaded.context} has room "
            f"for {room}; lower it"
        )
    return OwnWords(
        policy=loaded.policy,
        reference=reference,
        tokenizer=loaded.tokenizer,
        ends=loaded.ends,
        prompts=[prompt for _, prompt in chosen],
        ids=[list(ids) for ids, _ in chosen],
        samples=kl.samples,
        length=length,
        seed=config.train.seed,
        rows=source.rows.group_size * config.train.batch_size,
        group_size=source.rows.group_size,
    )


def _described(config: DPOConfig, read: Read, held: Read | None, words: OwnWords) -> list[str]:
    kl, loss = config.kl, config.loss
    of = "held-out" if held else "training"
    leash = f"{len(words.ids)} {of} prompts × {words.samples} samples of at most {words.length} tokens"
    lines = [
        f"pairs      {read}",
        *(f"           {text}" for text in read.said),
        f"held out   {held or 'nothing, so that what comes out is the last checkpoint'}",
        *(f"           {text}" for text in (held.said if held else ())),
        f"loss       {loss.kind}, beta {loss.beta:g}: {loss.label}",
        f"own words  {leash}, at every evaluation",
    ]
    if kl.target:
        lines.append(f"           target {kl.held}, held by {(kl.controller or PI()).kind} from beta {loss.beta:g}")
        if loss.kind not in ENDS_SOMEWHERE:
            lines.append(
                f'note       on pairs gone through again "{loss.kind}" has no finite end: beta slows the KL and '
                'may not bring it back. "ipo" holds a target better (docs/dpo.md)'
            )
    if kl.ceiling:
        lines.append(f"budget     {kl.ceiling}: with a reading above it the run saves and stops")
    if held is not None:
        trained = {tuple(ids) for ids in read.rows.prompts}
        both = sum(tuple(ids) in trained for ids in held.rows.prompts)
        lines += [f"note       {both} of the held-out pairs have prompts that are trained on as well"] if both else []
    return lines
