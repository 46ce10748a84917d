"""A judge as a reward: a sample's grade, or how likely it beats a reference answer or the others of its prompt."""

import json
import math
from collections.abc import Sequence
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.records import Prompt
from kleash.rewards.judge.judge import Judge
from kleash.rewards.judge.report import Report
from kleash.rewards.judge.spec import Rivals


class JudgeReward:
    """Called like any reward. A sample without a verdict has no score."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    @classmethod
    def load(cls, name: str, args: dict[str, Any], device: str) -> "JudgeReward":
        return cls(Judge.load(name, args, device))

    def __call__(self, prompts: list[Prompt], completions: list[str], **columns: list[Any]) -> list[float | None]:
        spec = self.judge.spec
        if spec.mode == "grade":
            scores = [one.value for one in self.judge.grade(prompts, completions)]
        elif spec.reference is not None:
            scores = self._against(prompts, completions, columns)
        else:
            scores = self._among(prompts, completions)
        if completions and all(score is None for score in scores):
            raise RunError(f"judge {self.judge.name}: {self._why()}")
        return scores

    def report(self) -> Report | None:
        """What its judge did since the last report; None where it was not asked."""
        return self.judge.report() if self.judge.asked else None

    def _against(
        self, prompts: list[Prompt], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """P(sample is better than the reference answer)."""
        name = str(self.judge.spec.reference)
        if name not in columns:
            there = ", ".join(f"`{column}`" for column in sorted(columns)) or "no other column"
            raise UsageError(f"the judge's reference is the column `{name}` beside the prompts; there is {there}")
        pairs = [(i, text, answer) for i, (text, answer) in enumerate(zip(completions, columns[name], strict=True))]
        known = [(i, text, str(answer)) for i, text, answer in pairs if answer is not None]
        found = self._chances([(prompts[i], text, answer) for i, text, answer in known])
        scores: list[float | None] = [None] * len(completions)
        for (i, _, _), chance in zip(known, found, strict=True):
            scores[i] = chance
        return scores

    def _among(self, prompts: list[Prompt], completions: list[str]) -> list[float | None]:
        """Mean of P(sample is better) over the rivals that there is a verdict on."""
        groups: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            groups.setdefault(json.dumps(prompt), []).append(i)
        if all(len(group) < 2 for group in groups.values()):
            raise UsageError(
                "the judge compares samples of one prompt, and each prompt has one sample; give a larger group_size, "
                'a reference column, or mode = "grade"'
            )
        pairs = [(g[a], g[b]) for g in groups.values() for a, b in meetings(len(g), self.judge.spec.rivals)]
        chances = self._chances([(prompts[a], completions[a], completions[b]) for a, b in pairs])
        won: list[list[float]] = [[] for _ in completions]
        for (a, b), chance in zip(pairs, chances, strict=True):
            if chance is not None:
                won[a].append(chance)
                won[b].append(1 - chance)
        return [math.fsum(mine) / len(mine) if mine else None for mine in won]

    def _chances(self, rows: Sequence[tuple[Prompt, str, str]]) -> list[float | None]:
        """P(the first is better). The same text twice is not asked about: it is even by definition."""
        asked = [row for row in rows if row[1] != row[2]]
        found = iter(self.judge.compare([p for p, _, _ in asked], [a for _, a, _ in asked], [b for _, _, b in asked]))
        return [0.5 if a == b else next(found).probability for _, a, b in rows]

    def _why(self) -> str:
        report = self.judge.report()
        reasons = ", ".join(f"{count} × {reason}" for reason, count in report.failures.items())
        return f"not one verdict on {report.questions} questions: {reasons or 'no sample has a reference answer'}"


def meetings(n: int, rivals: Rivals | int) -> list[tuple[int, int]]:
    """Who of n meets whom, each pair once: all; the first and every other; or each `rivals` neighbours in a ring."""
    if rivals == "anchor":
        return [(0, i) for i in range(1, n)]
    if rivals == "all" or rivals >= n - 1:
        return [(a, b) for a in range(n) for b in range(a + 1, n)]
    return [(a, (a + step) % n) for step in range(1, rivals // 2 + 1) for a in range(n)]
