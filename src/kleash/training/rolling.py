"""One step's samples: from the sampler alone, or from a user's own loop over it ([data] rollout)."""

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kleash.errors import KleashError, NotFiniteError, RunError
from kleash.models.exhausted import is_out_of_memory
from kleash.models.policy import Policy
from kleash.models.prompts import decode
from kleash.models.sampling import sample
from kleash.models.turns import Episode, Key, Turns
from kleash.records import Prompt
from kleash.rewards.arguments import chosen, name_of
from kleash.rewards.where import where
from kleash.tensors import Rollout, merged
from kleash.training.job import Job
from kleash.training.passes import spans

#: What an episode may say; every other key is a column for the rewards.
KEYS = ("ids", "mask", "text", "logprobs", "policy_step")
#: Log-probs may be so far above 0, by the rounding of an engine that computes in half precision.
ROUNDING = 1e-3


class Asked(NamedTuple):
    """What is sampled: prompts and columns, an entry for each completion; numbers: of the N prompts in the data.

    of_policy: of the policy in training, and not of its reference, which an engine of the user's own knows nothing of.
    """

    prompts: list[Prompt]
    columns: dict[str, list[Any]]
    numbers: list[int]
    group_size: int
    of_policy: bool = True


class Rolled(NamedTuple):
    """completions: what the policy wrote. texts: what is scored and shown, a tool's words included.

    together: episodes at a time that a loop's `generate` came down to where memory ran out; None: it did not.
    """

    rollout: Rollout
    completions: list[str]
    texts: list[str]
    columns: dict[str, list[Any]]
    together: int | None = None


def roll(job: Job, policy: Policy, asked: Asked, step: int, sampled: int | None = None) -> Rolled:
    """Samples of `policy` with the job's sampling and ends; `step` is part of the noise's key.

    sampled: prompts at a time, and in a user's loop as many episodes; a token's noise is its own however it is cut.

    Raises:
        NotFiniteError: the policy's logits are not finite.
        RunError: the user's loop raised, or what it returned is no list of episodes (the message names the episode).
        UsageError: it needs a column that is not there.
    """
    loaded, seed, G = job.loaded, job.config.train.seed, asked.group_size
    prompts = job.encode(asked.prompts[::G])
    if job.rollout is None:
        parts = [
            sample(
                policy,
                prompts[first:last],
                job.sampling,
                loaded.ends,
                group_size=G,
                seed=seed,
                step=step,
                prompt_index=asked.numbers[first:last],
            )
            for first, last in spans(len(prompts), sampled or len(prompts))
        ]
        rollout = merged(parts, loaded.ends.pad_id)
        completions = decode(rollout, loaded.tokenizer)
        return Rolled(rollout, completions, completions, asked.columns)
    generate = Turns(policy, prompts, job.sampling, loaded.ends, group_size=G, key=Key(seed, step, asked.numbers))
    most = None if sampled is None else sampled * G
    generate.together = most
    name = name_of(job.rollout)
    try:
        returned = _called(job.rollout, asked, generate, loaded.tokenizer)
        episodes = _checked(returned, len(asked.prompts))
        _check_own_engine(episodes, asked)
        rollout = generate.rollout(
            [Episode(e["ids"], e["mask"], e.get("logprobs"), e.get("policy_step")) for e in episodes]
        )
        columns = asked.columns | _columns(episodes, {*asked.columns, "prompts", "completions"})
    except NotFiniteError:  # the policy's, not the loop's: the run goes back to where it was whole
        raise
    except RunError as error:
        raise RunError(f"data.rollout: {name}: {error}") from (error.__cause__ or error)
    whole = _whole(rollout, [len(e["ids"]) for e in episodes], loaded.tokenizer)
    texts = [e.get("text", text) for e, text in zip(episodes, whole, strict=True)]
    together = None if generate.together == most else generate.together
    return Rolled(rollout, decode(rollout, loaded.tokenizer), texts, columns, together)


def _called(fn: Callable[..., Any], asked: Asked, generate: Turns, tokenizer: Any) -> Any:
    given = asked.columns | {"prompts": list(asked.prompts), "generate": generate, "tokenizer": tokenizer}
    arguments = chosen(fn, given, what="rollout")
    try:
        return fn(**arguments)
    except KleashError:
        raise
    except Exception as error:
        place = where(traceback.extract_tb(error.__traceback__))
        # What the loop itself holds is not kleash's to cut, and what it has done in the world is not to be done twice.
        advice = "; let it hold less, or set train.prompts_per_step lower" if is_out_of_memory(error) else ""
        raise RunError(f"it raised {type(error).__name__}: {error}{place}{advice}") from error


def _whole(rollout: Rollout, lengths: list[int], tokenizer: Any) -> list[str]:
    """The text of all that came after the prompts."""
    steps = torch.arange(rollout.completion_ids.shape[1], device=rollout.mask.device)
    everything = steps < torch.tensor(lengths, device=rollout.mask.device)[:, None]
    return decode(replace(rollout, mask=everything), tokenizer)


def _checked(returned: Any, n: int) -> list[dict[str, Any]]:
    if not isinstance(returned, list | tuple) or len(returned) != n:
        what = f"{len(returned)} episodes" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
        raise RunError(f"it returned {what} for {n} prompts; return a list with one episode for each, in their order")
    return [_episode(row, episode) for row, episode in enumerate(returned)]


def _episode(row: int, given: Any) -> dict[str, Any]:
    """With plain lists, checked."""
    if not isinstance(given, Mapping) or not {"ids", "mask"} <= given.keys():
        raise RunError(f'episode {row} must be {{"ids": […], "mask": […]}} and is {given!r:.60}')
    ids, mask = (x.tolist() if hasattr(x, "tolist") else x for x in (given["ids"], given["mask"]))
    if not isinstance(ids, list | tuple) or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise RunError(f"the ids of episode {row} must be a list of token ids, and they are {ids!r:.60}")
    if not isinstance(mask, list | tuple) or not all(isinstance(m, bool) for m in mask):
        raise RunError(f"the mask of episode {row} must be a list of True and False, and it is {mask!r:.60}")
    if len(ids) != len(mask):
        raise RunError(f"episode {row} has {len(ids)} ids and {len(mask)} entries in its mask; they belong together")
    if not isinstance(given.get("text", ""), str):
        raise RunError(f"the text of episode {row} must be a string, and it is {given['text']!r:.60}")
    found = {**given, "ids": list(ids), "mask": list(mask)}
    if given.get("logprobs") is not None:
        found["logprobs"] = _logprobs(row, given["logprobs"], found["mask"])
    step = given.get("policy_step")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise RunError(f"the policy_step of episode {row} must be the number of a step, and it is {step!r:.60}")
    return found


def _logprobs(row: int, given: Any, mask: list[bool]) -> list[float]:
    """One for each token, 0 where it does not count."""
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, list | tuple) or len(values) != len(mask):
        raise RunError(
            f"the logprobs of episode {row} must be a list with one number for each of its {len(mask)} ids, and they "
            f"are {values!r:.60}"
        )
    for place, (value, counts) in enumerate(zip(values, mask, strict=True)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if counts and not (number and math.isfinite(value) and value <= ROUNDING):
            raise RunError(
                f"episode {row} counts token {place} with the log-prob {value!r:.60}; it must be a finite number of "
                "nats of at most 0"
            )
    return [float(value) if counts else 0.0 for value, counts in zip(values, mask, strict=True)]


def _check_own_engine(episodes: list[dict[str, Any]], asked: Asked) -> None:
    """What episodes that an engine of the user's own drew must have in common."""
    if len({e.get("policy_step") is None for e in episodes}) > 1:
        raise RunError("some episodes have a policy_step and others have none; give it with every one, or with none")
    if not asked.of_policy and any(e.get("logprobs") is not None for e in episodes):
        raise RunError(
            "it returned logprobs where the reference's own completions were asked for, by the shape of a reward; an "
            "engine of one's own draws from the policy: take what generate draws, or leave that shape out"
        )


def _columns(episodes: list[dict[str, Any]], taken: set[str]) -> dict[str, list[Any]]:
    """What the episodes say besides, as columns for the rewards."""
    names = episodes[0].keys() - KEYS
    for row, episode in enumerate(episodes):
        if episode.keys() - KEYS != names:
            raise RunError(f"episode {row} has the keys {sorted(episode)}, and episode 0 {sorted(episodes[0])}")
    if twice := sorted(names & taken):
        raise RunError(f"an episode has the key {twice[0]!r}, and the rewards have a column of that name already")
    return {name: [episode[name] for episode in episodes] for name in sorted(names)}
