"""Tables of samples: the same prompts at the start, in the middle and at the end of a run, or across runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kleash.report.log import prompt_text
from kleash.runlog import Sample

MOST_PROMPTS = 8
MOST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    meta: str


@dataclass(frozen=True, slots=True)
class Row:
    prompt: str
    cells: Sequence[Cell | None]


@dataclass(frozen=True, slots=True)
class Table:
    intro: str
    headings: Sequence[str]
    rows: Sequence[Row]


def over_time(samples: Sequence[Sample]) -> Table:
    """First, middle and last step at which each prompt was sampled; prompts seen over the longest time first."""
    seen: dict[str, dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        seen[prompt_text(sample.prompt)].setdefault(sample.step, sample)
    order = sorted(seen, key=lambda prompt: (min(seen[prompt]) - max(seen[prompt]), min(seen[prompt])))
    rows = [Row(clip(prompt), first_middle_last(seen[prompt])) for prompt in order[:MOST_PROMPTS]]
    intro = "The same prompts over the run. Each is the first sample of its group, not a chosen one."
    return Table(intro, ["First", "Middle", "Last"], rows)


def first_middle_last(by_step: Mapping[int, Sample]) -> list[Cell | None]:
    steps = sorted(by_step)
    first, last = steps[0], steps[-1]
    middle = min(steps, key=lambda step: abs(step - (first + last) / 2))
    return [
        cell(by_step[first]),
        cell(by_step[middle]) if middle not in (first, last) else None,
        cell(by_step[last]) if last != first else None,
    ]


def across(runs: Mapping[str, Sequence[Sample]]) -> Table:
    """The last sample of each prompt in every run; prompts that most runs share first."""
    last: dict[str, dict[str, Sample]] = defaultdict(dict)
    for label, samples in runs.items():
        for sample in samples:
            known = last[prompt_text(sample.prompt)].get(label)
            if known is None or sample.step > known.step:
                last[prompt_text(sample.prompt)][label] = sample
    order = sorted(last, key=lambda prompt: (-len(last[prompt]), -min(s.step for s in last[prompt].values())))
    rows = [Row(clip(prompt), [cell(last[prompt].get(label)) for label in runs]) for prompt in order[:MOST_PROMPTS]]
    return Table("The same prompts at the end of each run; the first sample of its group.", list(runs), rows)


def cell(sample: Sample | None) -> Cell | None:
    if sample is None:
        return None
    parts = [f"step {sample.step}", f"score {number(sample.score)}", f"KL {number(sample.kl_ref)} nats"]
    if sample.truncated:
        parts.append("cut at the limit")
    return Cell(clip(sample.completion), " · ".join(parts))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def clip(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + " …"
