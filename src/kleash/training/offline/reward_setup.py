"""From a config of `kleash reward` to its job: pairs read and tokenised, the model loaded, everything checked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kleash.errors import UsageError
from kleash.models.free import free_bytes
from kleash.models.load import Loaded
from kleash.models.memory import size_of
from kleash.models.plan import Plan, Work, choose
from kleash.models.quantised import weights_in
from kleash.models.scorer import Scorer, as_rollout
from kleash.models.scorer_load import load_scorer
from kleash.models.spec import ModelSpec
from kleash.rewards.reward_model import read_ids
from kleash.training.data import Prompts, conversations
from kleash.training.describe import base_words
from kleash.training.offline.job import OfflineJob
from kleash.training.offline.reward import Pair, Preferring, digest
from kleash.training.offline.reward_config import RewardConfig, RewardData
from kleash.training.pair_files import Pairs, as_pairs, read_pairs

#: Learning rates when none is given: of all weights, and of an adapter.
FULL_RATE, ADAPTER_RATE = 1e-5, 1e-4


def build_reward(
    config: RewardConfig, pairs: Sequence[Any] | None = None, held_out: Sequence[Any] | None = None
) -> OfflineJob:
    """Loads model and pairs. Moves nothing.

    Raises:
        UsageError, RunError: with what is wrong in the config, the model or a pair.
    """
    train, model = config.train, config.model
    made = load_scorer(model, seed=train.seed)
    loaded, scorer = made.loaded, made.scorer
    read = _read("data.pairs", config.data.pairs, pairs, config, loaded)
    held = None
    if held_out is not None or config.data.held_out is not None:
        held = _read("data.held_out", config.data.held_out, held_out, config, loaded)
    work = _largest([*read.pairs, *(held.pairs if held else [])], config, loaded)
    plan = _planned(loaded, scorer, work)
    rate = train.learning_rate or (FULL_RATE if loaded.adapter is None else ADAPTER_RATE)
    steps = train.updates(len(read.pairs))
    return OfflineJob(
        verb="reward",
        config=config,
        model=model,
        train=train,
        run_dir=Path(config.out),
        loaded=loaded,
        trained=scorer,
        reload=lambda directory: _reload(model, train.seed, directory),
        first=lambda: load_scorer(model, seed=train.seed).scorer,
        objective=Preferring(
            scorer=scorer,
            pairs=read.pairs,
            batch_size=train.batch_size,
            seed=train.seed,
            pad_id=loaded.ends.pad_id,
            loss=config.loss,
            held_out=None if held is None else held.pairs,
        ),
        optimizer=train.optimizer(scorer.trainable(), rate),
        learning_rate=rate,
        steps=steps,
        work=work,
        plan=plan,
        fingerprints={"pairs": read.fingerprint} | ({} if held is None else {"held_out": held.fingerprint}),
        described=(
            _model_words(loaded, scorer, made.head, train.seed),
            *base_words(loaded),
            f"pairs      {read}",
            *read.said,
            f"held out   {held or 'nothing, so that what comes out is the last checkpoint'}",
            *(held.said if held else ()),
            f"steps      {steps} × {train.batch_size} pairs, learning rate {rate:g} ({train.decay})",
            f"memory     {plan}",
        ),
    )


def _reload(model: ModelSpec, seed: int, directory: Path) -> Scorer:
    """The scorer of a checkpoint. One with an adapter is that adapter's weights on the model it began with."""
    if model.adapter is None:
        return load_scorer(replace(model, policy=str(directory)), seed=seed).scorer
    scorer = load_scorer(model, seed=seed).scorer
    scorer.take(directory)
    return scorer


def _largest(pairs: Sequence[Pair], config: RewardConfig, loaded: Loaded) -> Work:
    """An update at its largest: every pair with the longest beginning and the longest rest there is."""
    rollout = as_rollout([(pair.chosen, pair.rejected) for pair in pairs], loaded.ends.pad_id, "cpu")
    n = config.train.batch_size
    return Work(
        prompts=n,
        groups=n,
        group_size=2,
        prompt=rollout.prompt_ids.shape[1],
        length=rollout.mask.shape[1],
        asked=config.train.groups_per_pass,
    )


def _planned(loaded: Loaded, scorer: Scorer, work: Work) -> Plan:
    """The plan for the memory that gradients and the optimizer's two moments will leave."""
    free = free_bytes(scorer.device)
    if free is not None:
        free -= sum(3 * p.numel() * p.element_size() for p in scorer.trainable())
    return choose(size_of(loaded.policy, loaded.paths), work, loaded.paths, free)


def _model_words(loaded: Loaded, scorer: Scorer, head: str, seed: int) -> str:
    trained, total = sum(p.numel() for p in scorer.trainable()), weights_in(scorer)
    what = "all weights" if loaded.adapter is None else "a fresh adapter and the head"
    told = f"a fresh head drawn with seed {seed}" if head == "fresh" else "its own head"
    return f"model      {loaded.name} with {told}, {what}: {trained:,} of {total:,} parameters on {scorer.device}"


class Read(NamedTuple):
    """Pairs as they were read. said: what a person should know of them."""

    pairs: list[Pair]
    said: tuple[str, ...]

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"number": len(self.pairs), "content": digest(self.pairs)}

    def __str__(self) -> str:
        longest = max(len(ids) for pair in self.pairs for ids in (pair.chosen, pair.rejected))
        return f"{len(self.pairs)} pairs, the longest text {longest} tokens"


def _read(what: str, source: str | None, given: Sequence[Any] | None, config: RewardConfig, loaded: Loaded) -> Read:
    data = config.data
    try:
        found = as_pairs(given, data.bad_rows) if given is not None else read_pairs(str(source), data.bad_rows)
        asked = conversations(Prompts(found.prompts, {}), system=data.system, chat=data.chat)
        return tokenised(found._replace(prompts=asked.prompts), config, loaded)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None


def tokenised(found: Pairs, config: RewardConfig, loaded: Loaded) -> Read:
    """Pairs as the reward model will read their texts when it is used.

    Raises:
        UsageError: a text is too long, both are the same tokens, or a token that the model does not have; its pair is
            named. Where bad rows are dropped: none is left.
    """
    kept: list[Pair] = []
    bad: list[tuple[int, str]] = []
    for i, number in enumerate(found.rows):
        margin = config.loss.margin * found.margins[i] if found.margins else 0.0
        texts = [_ids(found.prompts[i], answer, loaded) for answer in (found.chosen[i], found.rejected[i])]
        pair = Pair(texts[0], texts[1], margin)
        fault = _fault(pair, config.data, loaded)
        if fault is None:
            kept.append(pair)
        else:
            bad.append((number, fault))
    if bad and (config.data.bad_rows == "refuse" or not kept):
        raise UsageError(
            f"pair {bad[0][0]}: {bad[0][1]} ({len(bad)} of {len(found.rows)} pairs are bad); mend the data"
            + ("" if config.data.bad_rows == "drop" else ', or set data.bad_rows = "drop" to leave such pairs out')
        )
    said = (f"{len(bad)} more pairs were left out, the first of them pair {bad[0][0]}: {bad[0][1]}",) if bad else ()
    return Read(kept, (*found.said, *said))


def _ids(prompt: Any, answer: Any, loaded: Loaded) -> list[int]:
    """Up to the last token that is not padding: where the classifier's own forward reads its score."""
    text = answer if isinstance(answer, str) else answer[0]["content"]
    ids = read_ids(loaded.tokenizer, prompt, text, f"the reward model {loaded.name}")
    while ids and ids[-1] == loaded.ends.pad_id:
        ids = ids[:-1]
    return ids


def _fault(pair: Pair, data: RewardData, loaded: Loaded) -> str | None:
    limit = min(loaded.context, data.max_tokens or loaded.context)
    for name, ids in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if not ids:
            return f"{name} has no tokens"
        if len(ids) > limit:
            asked = f"data.max_tokens = {limit}" if limit < loaded.context else f"the model takes {limit}"
            return f"{name} has {len(ids)} tokens with its prompt, and {asked}"
        if max(ids) >= loaded.policy.rows:
            return f"{name} has a token that the model has no embedding for"
    return "chosen and rejected are the same tokens" if pair.chosen == pair.rejected else None
