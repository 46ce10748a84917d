"""Writes tests/runlog/fixtures again: logs that the trainers' and loggers' own code writes, each in its environment.

    python tools/make_fixtures.py                    all, in throw-away environments
    python tools/make_fixtures.py trl-1.16 --python trl-1.16=PYTHON    one, in an environment that is there
    python tools/make_fixtures.py --check trl-1.16   makes it anew and compares what the importer sees; exit 1: others

Every fixture's line of MANIFEST.json says which versions wrote it and whose numbers it holds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "runlog" / "fixtures"
MANIFEST = FIXTURES / "MANIFEST.json"
LARGEST = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a folder of fixtures comes about.

    module: run as `python -m MODULE OUT ARGUMENTS`; its last line is the versions.
    needs: for pip; alone: those that are installed without what they depend on. pinned: with constraints.txt.
    """

    module: str
    needs: tuple[str, ...]
    alone: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    pinned: bool = True


OLD = {"module": "tools.fixtures.trl", "pinned": False}
LOGGERS = "tools.fixtures.loggers"
RECIPES = {
    "trl-1.16": Recipe(module="tools.fixtures.trl", needs=("trl==1.16.*", "pandas")),
    "trl-0.24": Recipe(**OLD, needs=("trl==0.24.0", "transformers==4.57.1", "torch"), arguments=("grpo", "ppo")),
    "trl-0.19": Recipe(**OLD, needs=("trl==0.19.1", "transformers==4.52.4", "torch"), arguments=("grpo", "ppo")),
    "trl-0.14": Recipe(
        **OLD,
        needs=("trl==0.14.0", "transformers==4.48.3", "accelerate==1.10.1", "torch", "rich"),
        arguments=("grpo-no-eval", "ppo"),
    ),
    "verl": Recipe(module="tools.fixtures.verl", needs=("torch", "orjson", "numpy"), alone=("verl==0.9.1",)),
    "openrlhf": Recipe(module="tools.fixtures.openrlhf", needs=("torch", "tensorboard"), alone=("openrlhf==0.11.2",)),
    "ms-swift": Recipe(module="tools.fixtures.ms_swift", needs=(), alone=("ms-swift==4.6.0",)),
    "published": Recipe(module="tools.fixtures.published", needs=("transformers", "torch"), alone=("verl==0.9.1",)),
    "tensorboard": Recipe(module=LOGGERS, needs=("torch", "tensorboard==2.21.*"), arguments=("tensorboard",)),
    "wandb": Recipe(module=LOGGERS, needs=("wandb==0.31.0",), arguments=("wandb",)),
    "trackio": Recipe(module=LOGGERS, needs=("trackio==0.43.0",), arguments=("trackio",)),
    "prime-rl": Recipe(module=LOGGERS, needs=(), arguments=("prime-rl",)),
}


def environment(recipe: Recipe, home: Path) -> Path:
    """A throw-away environment with what the recipe needs; its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    python = home / "bin" / "python"
    pins = ["-c", str(ROOT / "constraints.txt")] if recipe.pinned else []
    for extra, packages in ((["--no-deps"], recipe.alone), (pins, recipe.needs)):
        if packages:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *extra, *packages], check=True)
    return python


def make(name: str, python: str | None, out: Path) -> dict[str, str]:
    """Runs a recipe into `out` and returns the versions that wrote it."""
    recipe = RECIPES[name]
    with tempfile.TemporaryDirectory() as scratch:
        program = python or str(environment(recipe, Path(scratch)))
        command = [program, "-m", recipe.module, str(out), *recipe.arguments]
        variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def too_large(folder: Path) -> list[str]:
    return [f"{name} has {size} bytes" for name, size in files(folder).items() if size > LARGEST]


def write(name: str, python: str | None) -> None:
    target = FIXTURES / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    versions = make(name, python, target)
    large = too_large(target)
    if large:
        sys.exit(f"too large for the repository: {'; '.join(large)}")
    manifest = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    manifest[name] = {"module": RECIPES[name].module, "versions": versions, "files": list(files(target))}
    MANIFEST.write_text(json.dumps(dict(sorted(manifest.items())), indent=1, ensure_ascii=False) + "\n")


def differences(name: str, python: str | None) -> list[str]:
    """What today's trainer writes otherwise than the committed fixture: the importer's view, numbers aside."""
    sys.path.insert(0, str(ROOT / "src"))
    from kleash.runlog.importers import read_log

    found = []
    with tempfile.TemporaryDirectory() as scratch:
        make(name, python, Path(scratch))
        for folder in sorted(path for path in (FIXTURES / name).iterdir() if path.is_dir()):
            old, new = read_log(folder), read_log(Path(scratch) / folder.name)
            for what in ("label", "columns", "kl"):
                before, after = getattr(old, what), getattr(new, what)
                if (before != after) if what == "label" else (set(before) != set(after)):
                    found.append(f"{name}/{folder.name}: {what} was {list(before)}, is {list(after)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    pythons = dict(entry.split("=", 1) for entry in given.python)
    if unknown := set(given.names) - RECIPES.keys():
        parser.error(f"no fixtures {sorted(unknown)}; there are {sorted(RECIPES)}")
    wrong = []
    for name in given.names or RECIPES:
        if given.check:
            wrong += differences(name, pythons.get(name))
        else:
            write(name, pythons.get(name))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
