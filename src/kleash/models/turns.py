"""Completions of several turns: `generate` for a user's own loop, and what of its episodes was really drawn by it.

A completion is then a row of tokens of which some were sampled and the others, a tool's answer or a user's next
message, were written in between. Only sampled ones may count: each counted token must be one that `generate` drew
after exactly the tokens before it, or the log-prob it is trained on would be that of another question. An episode drawn
by another engine brings the log-probs of that engine, and vouches for them itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from kleash.errors import RunError
from kleash.models.draw import keyed_noise
from kleash.models.exhausted import is_out_of_memory, release, said_of
from kleash.models.policy import Policy
from kleash.models.sampling import Sampling, drawn, left_padded
from kleash.models.stopping import Ends, stopped
from kleash.tensors import Rollout


class Key(NamedTuple):
    """What the noise is a function of, beside sample and position: see `kleash.models.sampling.sample`."""

    seed: int
    step: int
    prompts: list[int]


class Episode(NamedTuple):
    """The tokens after the prompt, and which of them count.

    logprobs: of the engine that drew them, which was not `generate`. policy_step: the step whose weights it had.
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float] | None = None
    policy_step: int | None = None


class _Call(NamedTuple):
    """What one call drew for a row: tokens after `context`, their log-probs, and whether it ended by itself."""

    context: list[int]
    tokens: list[int]
    logprobs: list[float]
    ended: bool


class Turns:
    """`generate`, as a user's own loop is given it, over `group_size` rows of each prompt.

    generate(so_far, stop=None, max_new_tokens=None): `so_far[i]` are the tokens of episode i after its prompt, None for
    an episode that is over. Returns what was drawn after them, [] for None and where there is no room left. It ends at
    an end token, which is among what is returned, at a string of `stop` (left out: the run's own), or at the limit.

    The token at (prompt, sample, position) is drawn with noise keyed by them and by the step: how episodes are batched
    changes nothing, and the same tokens so far give the same tokens again. Where memory runs out, half as many episodes
    go through at a time from there on: `together` says how many (None: all).
    """

    def __init__(
        self, policy: Policy, prompts: list[list[int]], settings: Sampling, ends: Ends, *, group_size: int, key: Key
    ) -> None:
        self._policy, self._prompts, self._settings, self._ends = policy, prompts, settings, ends
        self._group = [n for n in range(len(prompts)) for _ in range(group_size)]
        self._noise = keyed_noise(key.seed, key.step, key.prompts, group_size, settings.max_new_tokens)
        self._calls: list[list[_Call]] = [[] for _ in self._group]
        self.together: int | None = None

    def __call__(
        self,
        so_far: Sequence[Sequence[int] | None],
        *,
        stop: Sequence[str] | None = None,
        max_new_tokens: int | None = None,
    ) -> list[list[int]]:
        if len(so_far) != len(self._group):
            raise RunError(
                f"generate was given {len(so_far)} episodes and there are {len(self._group)}: give the tokens so far "
                "of each one, None for one that is over"
            )
        contexts = {row: _ids(f"episode {row}", ids) for row, ids in enumerate(so_far) if ids is not None}
        for row, ids in contexts.items():
            self._check(row, ids)
        limits = {row: self._settings.max_new_tokens - len(ids) for row, ids in contexts.items()}
        if max_new_tokens is not None:
            limits = {row: min(room, max_new_tokens) for row, room in limits.items()}
        rows = [row for row, limit in limits.items() if limit > 0]
        found: list[list[int]] = [[] for _ in self._group]
        if not rows:
            return found
        longest = max(limits[row] for row in rows)
        settings = replace(
            self._settings, max_new_tokens=longest, min_new_tokens=min(self._settings.min_new_tokens, longest)
        )
        if stop is not None:
            settings = replace(settings, stop=tuple(stop))
        for row, call in zip(rows, self._drawn(rows, contexts, settings), strict=True):
            kept = slice(limits[row])
            ended = call.ended and len(call.tokens) <= limits[row]
            self._calls[row].append(_Call(call.context, call.tokens[kept], call.logprobs[kept], ended))
            found[row] = list(call.tokens[kept])
        return found

    def rollout(self, episodes: Sequence[Episode]) -> Rollout:
        """The episodes as a rollout whose mask has holes where tokens were not sampled.

        Raises:
            RunError: an episode counts a token that was not drawn there, counts none, or is too long.
        """
        width = max(len(episode.ids) for episode in episodes)
        ids = torch.full((len(episodes), max(width, 1)), self._ends.pad_id)
        mask, sampler = torch.zeros_like(ids, dtype=torch.bool), torch.zeros(ids.shape)
        truncated = torch.zeros(len(episodes), dtype=torch.bool)
        for row, episode in enumerate(episodes):
            self._check(row, episode.ids)
            if not any(episode.mask):
                raise RunError(f"episode {row} counts no token, so nothing of it could be learned from")
            n, known = len(episode.ids), episode.logprobs or self._known(row, episode)
            ids[row, :n], mask[row, :n] = torch.tensor(episode.ids), torch.tensor(episode.mask)
            sampler[row, :n] = torch.tensor(known)
            truncated[row] = n == self._settings.max_new_tokens and not self._ended(row, episode)
        steps = [episode.policy_step for episode in episodes if episode.policy_step is not None]
        device = self._policy.device
        prompt_ids, prompt_mask = left_padded(self._prompts, self._ends.pad_id, device)
        return Rollout(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            completion_ids=ids.to(device),
            mask=mask.to(device),
            group=torch.tensor(self._group, device=device),
            sampler=sampler.to(device, torch.promote_types(self._policy.head().weight.dtype, torch.float32)),
            truncated=truncated.to(device),
            policy_step=torch.tensor(steps, device=device) if len(steps) == len(episodes) else None,
        )

    def _drawn(self, rows: list[int], contexts: dict[int, list[int]], settings: Sampling) -> list[_Call]:
        """What is drawn for these rows, `together` of them at a time.

        Raises:
            RunError: there is no room for one row.
        """
        while True:
            size = min(self.together or len(rows), len(rows))
            try:
                parts = [rows[first : first + size] for first in range(0, len(rows), size)]
                return [call for part in parts for call in self._drawn_at_once(part, contexts, settings)]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                said = said_of(error)
            release()
            if size == 1:
                raise RunError(
                    f"memory ran out ({said}) in generate with one episode at a time; set train.max_new_tokens or the "
                    "length of the prompts lower"
                )
            self.together = -(-size // 2)

    def _drawn_at_once(self, rows: list[int], contexts: dict[int, list[int]], settings: Sampling) -> list[_Call]:
        """One call of the sampler: with the prompts shared by their groups where nothing has been said yet."""
        first = len(rows) == len(self._group) and not any(contexts.values())
        asked = self._prompts if first else [self._prompts[self._group[row]] + contexts[row] for row in rows]
        noise = torch.zeros(len(rows), settings.max_new_tokens, dtype=torch.int64)
        for i, row in enumerate(rows):
            own = self._noise[row, len(contexts[row]) :][: settings.max_new_tokens]
            noise[i, : len(own)] = own  # what is drawn past its own room is cut off
        rollout = drawn(self._policy, asked, settings, self._ends, noise)
        ids, sampler, ended = rollout.completion_ids.tolist(), rollout.sampler.tolist(), (~rollout.truncated).tolist()
        lengths = rollout.mask.sum(1).tolist()
        return [
            _Call(contexts[row], ids[i][:n], sampler[i][:n], ended[i])
            for i, (row, n) in enumerate(zip(rows, lengths, strict=True))
        ]

    def _ended(self, row: int, episode: Episode) -> bool:
        """Whether it ends by itself, and not by the limit."""
        if episode.logprobs is None:
            return any(call.ended and call.context + call.tokens == episode.ids for call in self._calls[row])
        stop, last = self._settings.stop, torch.tensor([episode.ids])
        return episode.ids[-1] in self._ends.eos_ids or bool(stop and stopped(last, stop, self._ends.tokenizer))

    def _known(self, row: int, episode: Episode) -> list[float]:
        """The sampler's log-prob of each counted token, 0 of the others."""
        known: list[float | None] = [None] * len(episode.ids)
        for call in self._calls[row]:
            start = len(call.context)
            if episode.ids[:start] != call.context:
                continue
            for place, (token, logprob) in enumerate(zip(call.tokens, call.logprobs, strict=True), start):
                if place >= len(episode.ids) or episode.ids[place] != token:
                    break
                known[place] = logprob
        for place, (counts, logprob) in enumerate(zip(episode.mask, known, strict=True)):
            if counts and logprob is None:
                raise RunError(
                    f"episode {row} counts token {place} (id {episode.ids[place]}), which generate did not draw after "
                    "the tokens before it; True belongs to what generate returned, in the place it was drawn for"
                )
        return [
            logprob if counts and logprob is not None else 0.0
            for counts, logprob in zip(episode.mask, known, strict=True)
        ]

    def _check(self, row: int, ids: list[int]) -> None:
        vocab, most = self._policy.recipe.vocab, self._settings.max_new_tokens
        wrong = next((i for i in ids if not 0 <= i < vocab), None)
        if wrong is not None:
            raise RunError(f"episode {row} has the token id {wrong}; the model's ids go from 0 to {vocab - 1}")
        if len(ids) > most:
            raise RunError(
                f"episode {row} has {len(ids)} tokens after the prompt, observations included, and max_new_tokens is "
                f"{most}; end it sooner, shorten what is put in, or raise train.max_new_tokens"
            )


def _ids(whose: str, values: Sequence[int]) -> list[int]:
    """A list of whole numbers of one's own.

    Raises:
        RunError: it is something else.
    """
    found = values.tolist() if hasattr(values, "tolist") else values  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(found, list | tuple) or not all(isinstance(i, int) and not isinstance(i, bool) for i in found):
        raise RunError(f"the tokens of {whose} must be a list of token ids, and they are {values!r:.60}")
    return list(found)
