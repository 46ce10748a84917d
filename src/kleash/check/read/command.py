"""Command lines in shell scripts: `trl grpo …`, `python -m verl.trainer.main_ppo a.b=c`, OpenRLHF's, ms-swift's."""

import re
import shlex
from pathlib import Path
from typing import Any

from kleash.check.read.tables import TRL_METHODS, from_table
from kleash.check.read.values import value
from kleash.check.records import Unread

_OPENRLHF = re.compile(r"openrlhf\.cli\.train_(\w+)")


def from_command(path: Path, text: str) -> list[tuple[Any, str, str, dict[str, Any]]]:
    """Each training command of the file."""
    found = []
    for number, line in _logical_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # not one command: a here-document, an unclosed quote
        one = _command(path, words)
        if one is not None:
            library, method, settings = one
            found.append((library, method, f"{path}:{number}", settings))
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their continuations joined, with the number of the first."""
    joined, begun, held = [], 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not held:
            begun = number
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        joined.append((begun, held + line))
        held = ""
    return [*joined, (begun, held)] if held else joined


def _command(path: Path, words: list[str]) -> tuple[str, str, dict[str, Any]] | None:
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        tool = Path(word).name
        if named := _OPENRLHF.search(word):
            return "OpenRLHF", named[1].removesuffix("_ray"), options(rest)
        if word.startswith("verl.trainer.main"):
            settings = {key.lstrip("+~"): value(given) for key, given in _pairs(rest)}
            return "verl", str(settings.get("algorithm.adv_estimator", "gae")), settings
        if tool == "trl" and rest and rest[0] in TRL_METHODS:
            return "TRL", rest[0], _with_config(path, options(rest[1:]), rest[0])
        if tool == "swift" and rest[:1] == ["rlhf"]:
            settings = options(rest[1:])
            return "ms-swift", str(settings.get("rlhf_type", "dpo")), settings
        if tool == "llamafactory-cli" and rest[:1] == ["train"] and len(rest) > 1:
            named_file = path.parent / rest[1]
            if named_file.suffix.lower() in (".yaml", ".yml", ".json") and named_file.is_file():
                return _of_file(named_file, [w for w in rest[2:] if "=" in w])
            settings = options(rest[1:])
            return "LLaMA-Factory", str(settings.get("stage", "sft")), settings
    return None


def _of_file(path: Path, overrides: list[str]) -> tuple[str, str, dict[str, Any]]:
    library, method, _, settings = from_table(path, path.read_text(encoding="utf-8"), overrides, None)
    return library, method, settings


def _with_config(path: Path, settings: dict[str, Any], method: str) -> dict[str, Any]:
    """What `--config file.yaml` sets, under what the command line says."""
    named = path.parent / str(settings.get("config", ""))
    if "config" not in settings or not named.is_file():
        return settings
    return from_table(named, named.read_text(encoding="utf-8"), [], method)[3] | settings


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return [(key, given) for key, equals, given in (word.partition("=") for word in words) if equals]


def options(words: list[str]) -> dict[str, Any]:
    """--a 1 --b.c --d=x y → {"a": 1, "b.c": True, "d": "x"}; dashes within a name become underscores."""
    settings: dict[str, Any] = {}
    name: str | None = None
    for word in words:
        if word in ("&&", "||", ";", "|", "&"):
            break
        if word.startswith("--"):
            key, equals, given = word[2:].partition("=")
            name = key.replace("-", "_")
            settings[name] = value(given) if equals else True
        elif name is not None and settings[name] is True:
            settings[name] = Unread(word) if word.startswith("$") else value(word)
    return settings
