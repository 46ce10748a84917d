"""Samples for the page's browser: few enough to carry along, spread over the run, the same prompts where they recur."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kleash.errors import RunError
from kleash.report.samples import clip
from kleash.report.watch.case import Case
from kleash.runlog.series import SampleText

#: Steps of a run, samples of a step, characters of all texts together: a page stays under 1.5 MB.
MOST_STEPS, MOST_SAMPLES, MOST_CHARACTERS = 24, 4, 600_000


def browser(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each run that has samples: {"name", "since", "steps": [{"step", "samples": [{prompt, text, score}]}]}."""
    room = MOST_CHARACTERS // max(1, len(cases))
    found = [
        {"name": case.name, "since": case.said.since, "steps": within(steps_of(case), room)}
        for case in cases
        if case.log.sample_steps
    ]
    return [run for run in found if run["steps"]]


def steps_of(case: Case) -> list[dict[str, Any]]:
    chosen = spread(case.log.sample_steps, case.said.since)
    try:
        read = case.log.samples(tuple(chosen))
    except RunError:
        return []  # gone since the log was read: what is left of it is on the page
    by_step: dict[int, list[SampleText]] = defaultdict(list)
    for sample in read:
        by_step[sample.step].append(sample)
    known = recurring(by_step)
    return [
        {"step": step, "samples": [shown(sample) for sample in first(by_step[step], known)]} for step in sorted(by_step)
    ]


def spread(steps: Sequence[int], since: int | None) -> list[int]:
    """Evenly over the run, the ends and both sides of the change among them."""
    last = len(steps) - 1
    places = {round(n * last / (MOST_STEPS - 3)) for n in range(MOST_STEPS - 2)} if last else {0}
    if since is not None:
        after = next((place for place, step in enumerate(steps) if step >= since), last)
        places |= {max(after - 1, 0), after}
    return [steps[place] for place in sorted(places)]


def recurring(by_step: dict[int, list[SampleText]]) -> dict[str, int]:
    """Prompt → at how many steps it was asked."""
    counts: dict[str, int] = defaultdict(int)
    for samples in by_step.values():
        for prompt in {sample.prompt for sample in samples}:
            counts[prompt] += 1
    return counts


def first(samples: Sequence[SampleText], known: dict[str, int]) -> list[SampleText]:
    """One of a prompt; those asked at most steps first, in one order at every step."""
    by_prompt: dict[str, SampleText] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, sample)
    return sorted(by_prompt.values(), key=lambda sample: (-known[sample.prompt], sample.prompt))[:MOST_SAMPLES]


def shown(sample: SampleText) -> dict[str, Any]:
    score = sample.score
    return {
        "prompt": clip(sample.prompt),
        "text": clip(sample.completion),
        "score": None if score is None or score != score else round(score, 4),
    }


def within(steps: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """Every second step is left out until the texts fit; the last one stays."""
    while len(steps) > 2 and size(steps) > room:
        steps = [*steps[:-1:2], steps[-1]]
    return steps


def size(steps: list[dict[str, Any]]) -> int:
    return sum(len(one["prompt"]) + len(one["text"]) for step in steps for one in step["samples"])
