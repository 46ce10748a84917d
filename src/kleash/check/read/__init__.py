"""From a file to what it sets: Python scripts, command lines, YAML, JSON, TOML."""

from pathlib import Path
from typing import Any

from kleash.check.read.command import from_command
from kleash.check.read.python import from_python
from kleash.check.read.tables import from_table
from kleash.check.records import Given
from kleash.errors import UsageError

#: The versions whose defaults are assumed where none is said.
VERSIONS: dict[str, tuple[int, int]] = {
    "TRL": (1, 16),
    "verl": (0, 9),
    "OpenRLHF": (0, 11),
    "LLaMA-Factory": (0, 9),
    "ms-swift": (4, 6),
    "kleash": (0, 1),
}
KINDS = "a Python script, a YAML, JSON or TOML config, or a shell script with the command line"


def read_config(path: Path, overrides: list[str], version: str | None, method: str | None) -> list[Given]:
    """Every run that the file sets up, in its order. method: for files that do not tell theirs, as "grpo"."""
    if not path.is_file():
        raise UsageError(f"{path} is no file; give {KINDS}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text; give {KINDS}") from None
    match path.suffix.lower():
        case ".py":
            found = from_python(path, text)
        case ".yaml" | ".yml" | ".json" | ".toml":
            found = [from_table(path, text, overrides, method)]
        case _:
            found = from_command(path, text)
    if not found:
        raise UsageError(
            f"{path} sets up no training that this knows: TRL, verl, OpenRLHF, LLaMA-Factory, ms-swift, kleash"
        )
    said = None if version is None else _version(version)
    return [
        Given(library=library, method=m, place=place, settings=settings, version=said or VERSIONS[library])
        for library, m, place, settings in found
    ]


def _version(text: str) -> tuple[int, int]:
    parts = text.strip().lstrip("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise UsageError(f'--version {text!r} is no version; write it as "1.16" or "0.18.2"')
    return int(parts[0]), int(parts[1])


#: library, method, place, settings.
Found = tuple[Any, str, str, dict[str, Any]]
