"""Dynamic sampling: a group without spread has no gradient, so fresh prompts take its place until the batch is full.

The prompts of a run are one stream, cut into batches; what a step draws beyond its own batch moves the stream on for
all later steps. Prompt and noise are functions of the place in the stream, so a resumed run needs that place alone.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from kleash.rewards.score import Scored
from kleash.tensors import Rollout, merged


@dataclass(frozen=True, slots=True)
class Sampled:
    """Whole groups with texts and raw scores. numbers: of the prompts in the data; the lists have an entry per row."""

    numbers: list[int]
    prompts: list[Any]
    rollout: Rollout
    completions: list[str]
    texts: list[str]
    scored: Scored

    def group(self, i: int) -> "Sampled":
        """Group i as groups of their own."""
        rows = self.rollout.rows(i, i + 1)
        scored = self.scored
        return Sampled(
            self.numbers[i : i + 1],
            self.prompts[rows],
            self.rollout.groups(i, i + 1),
            self.completions[rows],
            self.texts[rows],
            Scored(
                scored.total[rows],
                {name: scores[rows] for name, scores in scored.by_name.items()},
                {name: [member[rows] for member in members] for name, members in scored.members.items()},
            ),
        )

    @property
    def has_spread(self) -> bool:
        return len({total for total in self.scored.total if total is not None}) > 1


class Draws(NamedTuple):
    """Groups drawn in a step; those without spread that stayed, for the cap was met; the mean raw score of all."""

    groups: int
    unreplaced: int
    score: float | None


def mean_score(parts: list[Sampled]) -> float | None:
    """Over every scored sample of the parts."""
    totals = [total for part in parts for total in part.scored.total if total is not None]
    return sum(totals) / len(totals) if totals else None


def together(parts: list[Sampled], pad_id: int) -> Sampled:
    """Parts as one, prompts padded on the left and completions on the right to the longest."""
    if len(parts) == 1:
        return parts[0]
    scored = [part.scored for part in parts]
    return Sampled(
        [n for part in parts for n in part.numbers],
        [p for part in parts for p in part.prompts],
        merged([part.rollout for part in parts], pad_id),
        [c for part in parts for c in part.completions],
        [t for part in parts for t in part.texts],
        Scored(
            [t for s in scored for t in s.total],
            {name: [x for s in scored for x in s.by_name[name]] for name in scored[0].by_name},
            {
                name: [[x for s in scored for x in s.members[name][m]] for m in range(len(members))]
                for name, members in scored[0].members.items()
            },
        ),
    )
