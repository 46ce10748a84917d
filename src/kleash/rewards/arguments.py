"""Which keyword arguments a reward function is given: those it names, or all of them if it takes **columns."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kleash.errors import UsageError
from kleash.records import Prompt


def chosen(function: Callable[..., Any], available: Mapping[str, Any], what: str = "reward") -> dict[str, Any]:
    """The part of `available` that `function` accepts. Arguments bound by functools.partial stay as bound.

    Raises:
        UsageError: the function needs an argument that is not available.
    """
    bound = function.keywords if isinstance(function, functools.partial) else {}
    available = {name: value for name, value in available.items() if name not in bound}
    parameters = parameters_of(function)
    if parameters is None:
        return available
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    missing = [n for n, p in named.items() if p.default is p.empty and n not in available]
    if missing:
        raise UsageError(
            f"{what} {name_of(function)!r} needs {_listed(missing)}, which the prompts have no column for; "
            f"there is {_listed(sorted(available))}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return available
    return {name: value for name, value in available.items() if name in named}


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Its parameters, or None for a compiled function that does not tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return None


def name_of(function: Callable[..., Any]) -> str:
    """The name a reward goes by when it is given none."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__name__", type(function).__name__)
    return "reward" if name == "<lambda>" else name


def conversation(prompt: Prompt, completion: str) -> list[dict[str, Any]]:
    """The whole exchange as messages; a text prompt counts as one user message."""
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return [*asked, {"role": "assistant", "content": completion}]


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
