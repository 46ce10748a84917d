"""From TOML text and `a.b=c` overrides to a checked `Config`, with every error as a sentence that names the cure."""

import dataclasses
import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from kleash.algorithms import ALGORITHMS
from kleash.algorithms.preference import LOSSES, TEXT_LOSSES
from kleash.beta import CONTROLLERS
from kleash.beta.entropy import ENTROPY_LAWS
from kleash.errors import UsageError
from kleash.kl.penalties import PENALTIES
from kleash.models.following import FOLLOWING
from kleash.rewards.shapes import SHAPES
from kleash.training.config import Config

AnyConfig = TypeVar("AnyConfig")

#: Tables whose `kind` chooses the class, and so the keys that may stand in them.
_KINDS = {
    ("algorithm",): ALGORITHMS,
    ("loss",): LOSSES | TEXT_LOSSES,
    ("kl", "penalty"): PENALTIES,
    ("kl", "controller"): CONTROLLERS,
    ("entropy",): ENTROPY_LAWS,
    ("rewards", "shape"): SHAPES,
    ("model", "reference_update"): FOLLOWING,
}
#: Their kind where none is given.
#: The types of pydantic's errors that are about a key, not about its value.
_UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING_KEY = ("missing", "missing_argument")
_DEFAULT_KINDS = {
    "algorithm": "grpo",
    "loss": "dpo",
    "kl.penalty": "exact",
    "kl.controller": "pi",
    "entropy": "fixed",
}


@cache
def _adapter(of: type[Any]) -> Any:
    return TypeAdapter(of)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of an online run; see `load`."""
    return load(path, overrides, Config)


def load(path: str | Path, overrides: Sequence[str], of: type[AnyConfig]) -> AnyConfig:
    """Reads a TOML file, applies overrides such as "kl.target=2 nats/sequence", checks everything.

    Raises:
        UsageError: no such file, not TOML, an unknown key (the nearest name is given), or a bad value.
    """
    path = Path(path)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the config file {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    return parse(with_overrides(tree, overrides), of)


def parse_config(tree: dict[str, Any]) -> Config:
    """The config of an online run; see `parse`."""
    return parse(tree, Config)


def parse(tree: dict[str, Any], of: type[AnyConfig]) -> AnyConfig:
    """A tree of plain values → a config. Raises UsageError that lists every fault."""
    try:
        config = _adapter(of).validate_python(tree)
    except ValidationError as error:
        faults = [
            (*_without_tags(e["loc"], of, e["type"]), e["type"], e["msg"], e.get("input")) for e in error.errors()
        ]
        deepest = [f for f in faults if not any(_inside(other[0], f[0]) for other in faults)]
        raise UsageError("; ".join(dict.fromkeys(_sentence(*fault) for fault in deepest))) from None
    if taken := list(_booleans_as_numbers(tree, config, ())):
        raise UsageError("; ".join(taken))
    return config


def _booleans_as_numbers(given: Any, read: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """Where `true` was read as 1: Python's booleans are numbers, and pydantic takes them for such."""
    if isinstance(given, bool) and not isinstance(read, bool):
        yield f"{'.'.join(keys)} = {str(given).lower()}: a number belongs here, not true or false"
    elif isinstance(given, Mapping):
        for key, value in given.items():
            inside = read.get(key) if isinstance(read, Mapping) else getattr(read, key, value)
            yield from _booleans_as_numbers(value, inside, (*keys, key))
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for i, (value, inside) in enumerate(zip(given, read, strict=True)):
            yield from _booleans_as_numbers(value, inside, (*keys, str(i)))


def dump_config(config: Any) -> dict[str, Any]:
    """The resolved form: every field, as plain values; `parse` of it gives the same config."""
    return _adapter(type(config)).dump_python(config, mode="json", exclude_none=True)


def with_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The tree with "a.b=c" assignments applied in order, kinds first. A new `kind` drops the file's keys."""
    given: dict[str, Any] = {}
    for assignment in overrides:
        name, sign, text = assignment.partition("=")
        keys = tuple(name.strip().split("."))
        if not sign or not all(keys):
            raise UsageError(f"the override {assignment!r} is not of the form section.key=value, as in kl.beta=0.05")
        given[name.strip()] = _value(text.strip())
    return with_settings(tree, given)


def with_settings(tree: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same for values that are Python objects already: {"train.steps": 100}."""
    for name, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".kind")):
        tree = _assign(tree, tuple(name.split(".")), value, name)
    return tree


def _assign(node: Any, keys: tuple[str, ...], value: Any, name: str) -> Any:
    key, rest = keys[0], keys[1:]
    if isinstance(node, list):
        if not key.isdigit() or int(key) >= len(node):
            raise UsageError(f"the override {name}: there is no entry {key!r}; the list has {len(node)}, from 0")
        return [_assign(x, rest, value, name) if i == int(key) else x for i, x in enumerate(node)]
    if isinstance(node, str):  # a kind given by its bare name
        node = {"kind": node}
    if node is not None and not isinstance(node, dict):
        raise UsageError(f"the override {name}: {node!r} has no keys below it")
    node = dict(node or {})
    if not rest:
        was = node.get("kind", _DEFAULT_KINDS.get(name.rpartition(".")[0]))
        return {key: value} if key == "kind" and was != value else {**node, key: value}
    return {**node, key: _assign(node.get(key), rest, value, name)}


def _value(text: str) -> Any:
    """As TOML reads it; what is not TOML is a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _kinds(keys: Sequence[Any]) -> Mapping[str, Any]:
    """The classes that a `kind` at this place chooses from; numbers of list entries do not count."""
    return _KINDS.get(tuple(key for key in keys if not isinstance(key, int)), {})


def _inside(keys: tuple[Any, ...], table: tuple[Any, ...]) -> bool:
    """A value that may be of several types fails once for each; what is wrong inside it says more than its type."""
    return len(keys) > len(table) and keys[: len(table)] == table


def _sentence(keys: tuple[Any, ...], names: list[str], kind: str, message: str, given: Any) -> str:
    where = ".".join(str(k) for k in keys)
    if kind in _UNKNOWN_KEY:
        return f"unknown key {where!r}; {_nearest(keys[-1], names)}"
    if kind in _MISSING_KEY:
        return f"{where!r} is missing"
    if kind == "union_tag_invalid":
        return f"{where} has no kind {_tag(given)!r}; {_nearest(_tag(given), list(_kinds(keys)))}"
    text = message.removeprefix("Value error, ").replace("a valid tuple", "a list")
    return text if kind == "value_error" else f"{where} = {given!r}: {text[:1].lower()}{text[1:]}"


def _nearest(name: Any, names: list[str]) -> str:
    ratios = {known: difflib.SequenceMatcher(None, known, str(name)).ratio() for known in sorted(names)}
    best = max(ratios.values(), default=0.0)
    if best < 0.5:
        return f"known here: {', '.join(sorted(names))}"
    return f"did you mean {' or '.join(repr(known) for known, ratio in ratios.items() if ratio == best)}?"


def _tag(given: Any) -> Any:
    return given.get("kind") if isinstance(given, dict) else given


def _without_tags(loc: tuple[Any, ...], of: type[Any], kind: str) -> tuple[tuple[Any, ...], list[str]]:
    """The location as the user wrote it, and the key names valid in its table.

    A fault about a key ends in that key, whatever its name: only what stands before it can be pydantic's own.
    """
    cls: Any = of
    keys: list[Any] = []
    names: list[str] = []
    its_key = len(loc) - 1 if kind in (*_UNKNOWN_KEY, *_MISSING_KEY) else None
    for i, part in enumerate(loc):
        table = {} if i == its_key else _kinds(keys)
        if part in table:
            cls = table[part]
            continue
        types = ("str", "int", "float", getattr(cls, "__name__", ""))
        if isinstance(part, str) and i != its_key and (part in types or "[" in part):
            continue  # pydantic's name for one of several types that a value may have
        names = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
        keys.append(part)
        cls = _field_type(cls, part)
    return tuple(keys), names


def _field_type(cls: Any, name: Any) -> Any:
    """The dataclass behind a field, looking through tuples and unions; a list index keeps the class."""
    if isinstance(name, int) or not dataclasses.is_dataclass(cls):
        return cls
    annotation = next((f.type for f in dataclasses.fields(cls) if f.name == name), None)
    found: list[Any] = [annotation]
    while found:
        candidate = found.pop()
        if dataclasses.is_dataclass(candidate):
            return candidate
        found.extend(getattr(candidate, "__args__", ()))
    return None
