"""What each model says itself: samples of one side, made into documents that both are then read on."""

from collections.abc import Callable, Sequence

import torch

from kleash.drift.scored import document_of
from kleash.drift.sources import Model, Pair
from kleash.drift.table import Document
from kleash.drift.texts import Text, prompt_ids
from kleash.errors import RunError, UsageError
from kleash.models.exhausted import is_out_of_memory, release, said_of
from kleash.models.sampling import Sampling, sample

#: Prompts that are answered together.
TOGETHER = 32

Prompts = tuple[tuple[int, ...], tuple[int, ...]]


def samples(
    pair: Pair,
    texts: Sequence[Text],
    side: str,
    *,
    max_new_tokens: int = 128,
    seed: int = 0,
    greedy: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Document]:
    """One completion of each prompt by the base or the tuned model, drawn at temperature 1, or the likeliest.

    The same seed draws the same, however prompts are batched, and for both sides from the same noise: where the models
    agree, so do their words. A text without a prompt is left out, and so is a prompt that leaves no room.

    Args:
        side: "base" or "tuned".
        greedy: the likeliest token each time. Such texts are scored, and no KL is a mean over them.
        progress: told how many prompts are answered, and of how many.

    Raises:
        UsageError: no prompt is left.
        RunError: memory does not suffice for one prompt; logits that are not finite.
    """
    asked = [text for text in texts if text.prompt]
    if not asked:
        raise UsageError("there is no prompt to answer: these are texts to be read only")
    model = pair.base if side == "base" else pair.tuned
    known = dict(enumerate(prompt_ids(asked, pair.reading)))
    chosen = {n: ids for n, ids in known.items() if max(map(len, ids)) + max_new_tokens <= pair.reading.context}
    if not chosen:
        raise UsageError(
            f"no prompt leaves room for {max_new_tokens} new tokens in a context of {pair.reading.context}; "
            "ask for fewer, or shorten the prompts"
        )
    how = Sampling(max_new_tokens=max_new_tokens)
    order = sorted(chosen, key=lambda n: len(chosen[n][0]))
    found: dict[int, tuple[list[int], bool]] = {}
    together = TOGETHER
    while order:
        some = order[:together]
        try:
            found |= _drawn(model, {n: chosen[n][side == "tuned"] for n in some}, how.greedy if greedy else how, seed)
        except (RuntimeError, MemoryError) as error:
            together = _fewer(error, len(some), model)
            continue
        order = order[together:]
        if progress is not None:
            progress(len(found), len(chosen))
    made = [_document(asked[n], chosen[n], *found[n], pair) for n in sorted(found)]
    return [document for document in made if document.ids]


def _document(text: Text, prompts: Prompts, ids: list[int], ended: bool, pair: Pair) -> Document:
    return document_of(text, prompts, tuple(ids), pair.reading, ended=ended)


def _drawn(
    model: Model, prompts: dict[int, tuple[int, ...]], how: Sampling, seed: int
) -> dict[int, tuple[list[int], bool]]:
    """Each prompt's completion, and whether it ended by itself."""
    with model.running() as policy, torch.no_grad():
        rollout = sample(
            policy,
            [list(ids) for ids in prompts.values()],
            how,
            model.opened.loaded.ends,
            group_size=1,
            seed=seed,
            step=0,
            prompt_index=list(prompts),
        )
    rows = zip(prompts, rollout.completion_ids, rollout.mask, rollout.truncated, strict=True)
    return {n: (ids[mask].tolist(), not bool(cut)) for n, ids, mask, cut in rows}


def _fewer(error: Exception, were: int, model: Model) -> int:
    """How many prompts go through together after memory ran out."""
    if not is_out_of_memory(error):
        raise error
    release()
    if were == 1:
        raise RunError(
            f"memory ran out ({said_of(error)}) while {model.record.name} answered one prompt; ask for fewer new tokens"
        ) from None
    return were // 2
