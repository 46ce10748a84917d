"""The zoo: `python -m tools.zoo > docs/runs/zoo.md` (`make zoo`), or `python -m tools.zoo Llama Bamba` for a few.

Exits with 1 if an animal misses a bound, and with the table all the same.
"""

import platform
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tools.zoo import measure
from tools.zoo.families import FAMILIES, RECURRENT, REFUSED, Family

from kleash.errors import KleashError
from kleash.models.load import load
from kleash.models.spec import ModelSpec

#: Largest errors that are rounding: of a log-prob in nats, of a gradient and of a logit, relative.
LOGPROB, GRADIENT, HEAD = 1e-4, 1e-4, 1e-5
PATHS = ("packed", "cached", "two_stage", "plain")


@dataclass(frozen=True, slots=True)
class Row:
    cells: list[str]
    wrong: list[str]


def examine(name: str, family: Family, directory: Path) -> Row:
    """Everything that is asked of one family, as a row of the table."""
    model = measure.write(family, directory / "model")
    loaded = load(ModelSpec(str(model), device="cpu"))
    plainly = measure.paths(model)
    checkpointed = measure.paths(model, checkpointing=True)
    adapted = measure.paths(model, adapter=True)
    recipe = measure.head(loaded)
    done, resumed = measure.runs(model, directory / "runs")
    again = measure.exported(loaded, directory / "exported")
    wrong = [
        f"{name}: {what}"
        for what, right in {
            "a path": all(fine(e) for found in (plainly, checkpointed, adapted) for e in found.values()),
            "the head": recipe <= HEAD,
            "the loop": done == 2,
            "resume": resumed,
            "export": again,
        }.items()
        if not right
    ]
    errors = [shown(plainly.get(path)) for path in PATHS]
    said = [shown(worst(found)) for found in (checkpointed, adapted)]
    size = sum(p.numel() for p in loaded.policy.parameters())
    cells = [name, f"{size:,}", *errors, *said, f"{recipe:.0e}", str(done), yes(resumed), yes(again)]
    return Row(cells, wrong)


def refuse(name: str, family: Family, directory: Path) -> Row:
    """A family that must be refused at load, with the sentence."""
    model = measure.write(family, directory / "model")
    try:
        load(ModelSpec(str(model), device="cpu"))
    except KleashError as error:
        right = family.refused is not None and family.refused in str(error)
        return Row([name, str(error)], [] if right else [f"{name}: refused with another sentence"])
    return Row([name, "loaded"], [f"{name}: loaded, although it is listed as refused"])


def fine(error: measure.Error) -> bool:
    return error.logprob <= LOGPROB and (error.gradient is None or error.gradient <= GRADIENT)


def worst(found: dict[measure.PathName, measure.Error]) -> measure.Error:
    gradients = [e.gradient for e in found.values() if e.gradient is not None]
    return measure.Error(max(e.logprob for e in found.values()), max(gradients))


def shown(error: measure.Error | None) -> str:
    if error is None:
        return "–"
    return f"{error.logprob:.0e} / " + ("–" if error.gradient is None else f"{error.gradient:.0e}")


def yes(value: bool) -> str:
    return "yes" if value else "**no**"


HEADER = """# The zoo

Made by `python -m tools.zoo > docs/runs/zoo.md` (`make zoo`); it fails if a bound is missed. {machine}

Each row is a random tiny model of one architecture, built from its transformers config, written to a directory and
loaded from it in fp32. Windows of attention are 3 tokens, shorter than most prompts.

- **packed, cached, two_stage, plain**: the largest error of a log-prob in nats / of the gradient for all weights,
  relative to its length, on prompts of 5, 2 and 7 tokens with groups of unequal size. The truth is the model's own
  logits on single rows: no batch, no padding, no mask, no head recipe. "–" for the whole: the model did not pass this
  path at load, so it is not taken. "–" for the gradient: the path is taken for the reference only.
- **checkpointing**, **LoRA**: the worst of the same errors under activation checkpointing, and with a LoRA adapter that
  does something.
- **head**: the head recipe against the model's own logits, relative to the largest.
- **GRPO**: steps done by the real loop. **resume**: a run that dies in its second step and resumes gives the same
  records and weights, bit for bit. **export**: transformers alone loads what was saved and gives the same logits, bit
  for bit.

Bounds: {LOGPROB:g} nats, {GRADIENT:g}, head {HEAD:g}.
"""

COLUMNS = ["family", "weights", *PATHS, "checkpointing", "LoRA", "head", "GRPO", "resume", "export"]


def table(columns: list[str], rows: list[Row]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(row.cells) + " |")


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    machine = (
        f"{torch.get_num_threads()} thread(s) of a CPU; Python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}."
    )
    chosen = {name: FAMILIES[name] for name in names or FAMILIES}
    began, rows, refused = time.perf_counter(), [], []
    for name, family in chosen.items():
        print(f"  {name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as directory:
            try:
                one = (refuse if name in REFUSED else examine)(name, family, Path(directory))
            except KleashError as error:
                one = Row([name, *[""] * (len(COLUMNS) - 2), str(error)], [f"{name}: {error}"])
        (refused if name in REFUSED else rows).append(one)
    print(HEADER.format(machine=machine, LOGPROB=LOGPROB, GRADIENT=GRADIENT, HEAD=HEAD))
    table(COLUMNS, rows)
    if refused:
        print("\nThese are refused at load, before anything is trained:\n")
        table(["family", "what is said"], refused)
    recurrent = sum(name in RECURRENT for name in chosen)
    wrong = [line for row in rows + refused for line in row.wrong]
    print(f"\n{len(rows)} families, {recurrent} of them recurrent or hybrid; {len(wrong)} bounds missed.")
    print(f"{time.perf_counter() - began:.0f} s", *wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
