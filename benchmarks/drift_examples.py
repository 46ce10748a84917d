"""Four real pairs of SmolLM2-135M: trains what is missing, audits each, and writes docs/examples/drift-*/.

python -m benchmarks.drift_examples              (one to two hours on one idle core; finished runs are not done again)
python -m benchmarks.drift_examples hacked       (one of the four)

The thresholds of the verdict were frozen before any of them was measured.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drift_tasks import Task, rows

OUT, PAGES = Path("runs/bench-drift-smollm2"), Path("docs/examples")
BASE = "kleash:smollm2"
SCORER = "./benchmarks/drift_tasks.py:one_word"
RECIPE = "recipes/smollm2_sentiment.toml"
#: About 8,000 tokens off the task, and a few samples.
EFFORT = "--tokens 8000 --samples 32 --max-new-tokens 24"
SFT = """\
[model]
policy = "kleash:smollm2"
device = "cpu"
[kl]
measure = false
[train]
epochs = 1
batch_size = 8
learning_rate = 5e-5
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A tuned model and how it came about: train is a command of kleash's, "" where there is nothing to train.

    more: of the command line; the built-in tasks take most of the time.
    """

    name: str
    tuned: str
    train: str = ""
    narrow: bool = False
    more: str = "--items 26"

    def command(self) -> list[str]:
        own, scorer, siblings = (
            ("feeling", SCORER, ["kind", "living"]) if self.narrow else ("cheerful", "vader", ["told to be cheerful"])
        )
        command = [
            "drift",
            BASE,
            self.tuned,
            *EFFORT.split(),
            *self.more.split(),
            "--task",
            str(file(own)),
            "--score",
            scorer,
        ]
        for sibling in siblings:
            command += ["--sibling", f"{file(sibling)}={scorer}"]
        return [*command, "--out", str(OUT / "audits" / self.name)]


PAIRS = (
    Pair(
        name="light",
        tuned=f"{OUT}/light@step-60",
        train=f"train {RECIPE} out={OUT}/light train.steps=60 train.checkpoint_every=12",
        more="--no-tasks",
    ),
    Pair(
        name="hacked",
        tuned=f"{OUT}/hacked@step-60",
        train=f"train {RECIPE} kl={{beta=0}} out={OUT}/hacked train.steps=60 train.checkpoint_every=12",
    ),
    Pair(name="narrow", tuned=f"{OUT}/narrow@step-20", train=f"sft {OUT}/sft.toml out={OUT}/narrow", narrow=True),
    Pair(name="requantised", tuned=f"{BASE}@8bit", more="--no-tasks"),
)


def file(task: Task) -> Path:
    """The task's prompts for the command line."""
    return OUT / f"{task.replace(' ', '-')}.jsonl"


def write_tasks() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for task in ("cheerful", "told to be cheerful", "feeling", "kind", "living"):
        kept = [{name: row[name] for name in ("prompt", "answer") if name in row} for row in rows(task)]
        file(task).write_text("".join(json.dumps(row) + "\n" for row in kept))
    taught = [{name: row[name] for name in ("prompt", "completion")} for row in rows("feeling", "train")]
    (OUT / "taught.jsonl").write_text("".join(json.dumps(row) + "\n" for row in taught))
    (OUT / "sft.toml").write_text(f'out = "{OUT}/narrow"\n[data]\ntexts = "{OUT}/taught.jsonl"\n{SFT}')


def kleash(*arguments: str) -> str:
    """Standard output of the command, which is shown as it comes on standard error."""
    print("kleash", *arguments, file=sys.stderr, flush=True)
    program = "from kleash.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def audit(pair: Pair) -> None:
    """Trains it if it is not there, audits it, and keeps the small files."""
    run = OUT / pair.name
    if pair.train and not (run / "report.html").exists():
        kleash(*pair.train.split())
    block = kleash(*pair.command())
    kept = PAGES / f"drift-{pair.name}"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "drift.txt").write_text(block)
    for name in ("drift.html", "badge.svg"):
        shutil.copy(OUT / "audits" / pair.name / name, kept / name)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("pairs", nargs="*", help="of " + ", ".join(pair.name for pair in PAIRS))
    names = asked.parse_args().pairs
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    write_tasks()
    for pair in PAIRS:
        if not names or pair.name in names:
            audit(pair)


if __name__ == "__main__":
    main()
