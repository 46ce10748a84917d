"""The arrows of the house: who may import whom, held by parsing every import, lazy and type-only too."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

BASE = {"characters", "errors", "intervals", "records", "text", "whole"}
TENSORS = BASE | {"tensors", "masked"}
LIBRARY = TENSORS | {"kl", "rl", "beta", "algorithms", "models", "rewards", "runlog", "report", "assets"}

#: part → the parts (or single modules) it may import besides itself. The longest dotted prefix decides; an unlisted
#: part fails.
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"training", "drift", "report"},  # the facade, lazily
    "errors": set(),
    "text": set(),
    "intervals": set(),
    "characters": set(),
    "whole": set(),
    "records": {"errors"},
    "tensors": BASE,
    "masked": BASE | {"tensors"},
    "kl": TENSORS,
    "rl": TENSORS,
    "beta": BASE,
    "algorithms": TENSORS | {"kl", "rl"},
    "models": TENSORS | {"kl", "assets"},
    "rewards": BASE,
    "rewards.reward_model": TENSORS | {"models"},
    "rewards.judge": TENSORS | {"models"},
    "runlog": BASE,
    "monitor": BASE | {"runlog"},
    "check": BASE,
    "report": BASE | {"runlog", "monitor", "drift.records", "drift.standings"},
    "training": LIBRARY | {"monitor"},
    "training.audited": BASE | {"runlog", "drift"},
    "training.progress": BASE | {"runlog"},
    "drift": LIBRARY | {"training.prompt_files"},
    "drift.records": BASE,
    "drift.standings": BASE,
    "drift.predicting": BASE,
    "drift.builtin": BASE,
    "drift.table": BASE,
    "drift.style": BASE,
    "drift.hint": BASE | {"runlog"},
    "drift.statistics": BASE,
    "drift.resampling": BASE,
    "drift.thresholds": BASE,
    "drift.verdict": BASE,
    "drift.gates": BASE,
    "drift.store": BASE,
    "drift.scores": BASE | {"rewards"},
    "drift.scores.yours": BASE | {"rewards", "training.prompt_files"},
    "drift.distribution": BASE,
    "drift.passages": BASE,
    "plug": LIBRARY | {"monitor", "drift"},
    "assets": set(),
    "demo": LIBRARY | {"training", "drift"},
    "cli": LIBRARY | {"training", "demo", "monitor", "drift", "check"},
    "__main__": {"cli"},
}

#: Parts that must start fast and run where no deep-learning stack is installed.
LIGHT = {
    "characters",
    "errors",
    "intervals",
    "text",
    "whole",
    "records",
    "beta",
    "runlog",
    "monitor",
    "check",
    "report",
    "training.progress",
    "drift.records",
    "drift.standings",
    "drift.predicting",
    "drift.builtin",
    "drift.table",
    "drift.style",
    "drift.hint",
    "drift.statistics",
    "drift.resampling",
    "drift.thresholds",
    "drift.verdict",
    "drift.gates",
    "drift.store",
    "drift.scores",
    "drift.scores.yours",
    "drift.distribution",
    "drift.passages",
}
HEAVY = {"torch", "transformers", "peft", "safetensors", "datasets", "tokenizers", "gguf"}


@cache
def modules() -> list[Path]:
    return sorted((SRC / "kleash").rglob("*.py"))


def dotted(path: Path) -> str:
    """src/kleash/kl/fused.py → "kl.fused"; a package's __init__ → the package; kleash itself → "__init__"."""
    parts = path.relative_to(SRC / "kleash").with_suffix("").parts
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


@cache
def imported(path: Path) -> set[str]:
    """Every absolute module name that the file imports anywhere, `from a import b` as both "a" and "a.b"."""
    package = ("kleash." + dotted(path)).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return names


def rule_for(module: str) -> str:
    prefixes = [module.rsplit(".", n)[0] for n in range(module.count(".") + 1)]
    return next((prefix for prefix in prefixes if prefix in MAY_IMPORT), "")


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_arrows_point_one_way(path: Path) -> None:
    module = dotted(path)
    rule = rule_for(module)
    assert rule, f"{module} has no entry in MAY_IMPORT: say which parts it may import"
    known = {dotted(other) for other in modules()} | {name.split(".")[0] for name in map(dotted, modules())}
    own = module.split(".")[0]
    for name in imported(path):
        target = name.removeprefix("kleash.")
        if not name.startswith("kleash.") or target not in known:
            continue  # another package, or a name inside a module whose own import is also in the set
        parts = {target.rsplit(".", n)[0] for n in range(target.count(".") + 1)}
        allowed = bool(parts & MAY_IMPORT[rule]) or (own in parts and rule != "training.progress")
        assert allowed, f"{module} imports {target}, but {rule} may only import {sorted(MAY_IMPORT[rule])}"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_light_parts_name_no_heavy_package(path: Path) -> None:
    if rule_for(dotted(path)) in LIGHT:
        assert not {name.split(".")[0] for name in imported(path)} & HEAVY


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_only_models_knows_transformers_and_peft(path: Path) -> None:
    if rule_for(dotted(path)).split(".")[0] not in ("models", "plug"):  # a guest lives in transformers' own trainer
        assert not {name.split(".")[0] for name in imported(path)} & {"transformers", "peft"}


@pytest.mark.parametrize("name", ["records", "errors", "text"])
def test_the_records_need_the_standard_library_only(name: str) -> None:
    roots = {origin.split(".")[0] for origin in imported(SRC / "kleash" / f"{name}.py")}
    assert roots <= sys.stdlib_module_names | {"kleash"}


@pytest.mark.parametrize(
    "name",
    [
        "kleash",
        "kleash.records",
        "kleash.beta",
        "kleash.runlog",
        "kleash.report",
        "kleash.check",
        "kleash.drift.records",
        "kleash.drift.builtin",
        "kleash.drift.table",
        "kleash.drift.distribution",
        "kleash.drift.gates",
        "kleash.drift.scores",
        "kleash.training.run",
        "kleash.training.offline.run",
    ],
)
def test_importing_loads_no_torch(name: str) -> None:
    """In a fresh interpreter, the whole package at once: submodules too."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module({name!r})\n"
        f"if {name!r} != 'kleash':\n"
        "    for info in pkgutil.walk_packages(getattr(package, '__path__', []), package.__name__ + '.'):\n"
        "        importlib.import_module(info.name)\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
