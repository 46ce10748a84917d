"""From what the config or a caller names to a function that can be called. Loading runs the reward's code."""

import difflib
import functools
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kleash.errors import KleashError, UsageError
from kleash.rewards.adapters import ADAPTERS
from kleash.rewards.arguments import name_of, parameters_of
from kleash.rewards.ensembles import UWO_LAMBDA, mean, uncertainty_weighted, worst_case
from kleash.rewards.shapes import Shape
from kleash.rewards.spec import TIMEOUT_S, RewardSpec
from kleash.rewards.vader import Vader
from kleash.rewards.verifiable import Exact, Numeric, Regex
from kleash.rewards.where import where

#: Built-in rewards: classes, built with the spec's `args`.
BUILTIN: dict[str, Callable[..., Any]] = {"vader": Vader, "exact": Exact, "numeric": Numeric, "regex": Regex}


@dataclass(frozen=True, slots=True)
class Rewarder:
    """A reward ready to be called: fn(prompts, completions, **columns), plain or async.

    With `members` it is an ensemble, and fn makes one number of their scores of a sample.
    """

    name: str
    weight: float
    fn: Callable[..., Any]
    timeout_s: float
    shape: tuple[Shape, ...] = ()
    members: tuple["Rewarder", ...] = ()


def load_rewards(
    specs: Sequence[RewardSpec | str | Callable[..., Any] | Rewarder], *, device: str = "cpu"
) -> list[Rewarder]:
    """Every reward of a run, in order. `device` is where reward models run.

    Raises:
        UsageError: none is given, two share a name, all have weight 0, or one cannot be loaded.
    """
    rewarders = [spec if isinstance(spec, Rewarder) else load_reward(spec, device=device) for spec in specs]
    names = [rewarder.name for rewarder in rewarders]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f'two rewards are called {twice!r}; tell them apart with name = "…" in their [[rewards]]')
    if not any(rewarder.weight for rewarder in rewarders):
        raise UsageError("no reward has any weight, so there is nothing to train on; give one a weight other than 0")
    return rewarders


def load_reward(spec: RewardSpec | str | Callable[..., Any], *, device: str = "cpu") -> Rewarder:
    """One reward from its spec, from its `use` alone, or from a Python callable.

    Raises:
        UsageError: it does not exist, its code fails to load, or it cannot take kleash's arguments.
    """
    if not isinstance(spec, RewardSpec | str):
        return Rewarder(name_of(spec), 1.0, _checked(spec, name_of(spec)), TIMEOUT_S)
    spec = RewardSpec(spec) if isinstance(spec, str) else spec
    if isinstance(spec.use, str):
        name, fn = _function(spec.use, spec, device)
        return Rewarder(spec.name or name, spec.weight, fn, spec.timeout_s, spec.shape)
    name = spec.name or "ensemble"
    members = [Rewarder(f"{name}: {u}", 1.0, _function(u, spec, device)[1], spec.timeout_s) for u in spec.use]
    return Rewarder(name, spec.weight, _combined(spec), spec.timeout_s, spec.shape, tuple(members))


def _combined(spec: RewardSpec) -> Callable[[Sequence[float]], float]:
    match spec.combine:
        case "min":
            return worst_case
        case "uwo":
            weight = UWO_LAMBDA if spec.uwo_lambda is None else spec.uwo_lambda
            return functools.partial(uncertainty_weighted, weight=weight)
        case _:
            return mean


def _function(use: str, spec: RewardSpec, device: str) -> tuple[str, Callable[..., Any]]:
    """What one `use` stands for: the name it goes by, and the function, with the spec's args."""
    adapter, _, rest = use.partition(":")
    if adapter == "model":
        from kleash.rewards.reward_model import RewardModel  # brings torch and transformers

        return rest, RewardModel.load(rest, spec.args, device)
    if adapter == "judge":
        from kleash.rewards.judge.reward import JudgeReward  # and an HTTP client

        return "judge", JudgeReward.load(rest, spec.args, device)
    target = _find(rest if adapter in ADAPTERS else use)
    if not callable(target):
        raise UsageError(f"reward {use!r} is a {type(target).__name__}, not a function")
    name = use if use in BUILTIN else name_of(target)
    fn = _with_arguments(target, use, spec.args)
    # TRL calls with the same names as kleash; verl's names are checked at the first call, against the columns.
    if adapter != "verl":
        _checked(fn, spec.name or name)
    return name, ADAPTERS[adapter](fn) if adapter in ADAPTERS else fn


def _find(use: str) -> Any:
    """The object that "name", "package.module:name" or "path/to/file.py:name" stands for."""
    if ":" not in use:
        if use in BUILTIN:
            return BUILTIN[use]
        raise UsageError(
            f"there is no built-in reward {use!r}{_nearest(use, list(BUILTIN))}; built in are {', '.join(BUILTIN)}, "
            "your own is written ./reward.py:function or package.module:function"
        )
    return find(use)


def find(use: str, what: str = "reward") -> Any:
    """The object that "package.module:name" or "path/to/file.py:name" stands for. Runs the code that is there.

    Raises:
        UsageError: there is none, or its code fails to load; the message says `what` was asked for.
    """
    place, _, name = use.rpartition(":")
    if not place or not name:
        raise UsageError(f"{what} {use!r} is written ./file.py:function or package.module:function")
    said = f"{what} {use!r}"
    module = _from_file(Path(place).expanduser(), said) if place.endswith(".py") else _from_package(place, said)
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        there = f"it has {', '.join(own)}" if own else "it defines no function"
        raise UsageError(f"there is no {name!r} in {place}{_nearest(name, own)}; {there}")
    return getattr(module, name)


def _from_file(path: Path, said: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{said}: there is no file {path} (looked in {Path.cwd()})")
    path = path.resolve()
    spec = importlib.util.spec_from_file_location("kleash_reward_" + re.sub(r"\W", "_", str(path)), path)
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up here
    with _loading(said, path.parent):
        spec.loader.exec_module(module)
    return module


def _from_package(name: str, said: str) -> ModuleType:
    with _loading(said, Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _loading(said: str, folder: Path) -> Iterator[None]:
    """Runs the reward's code with its neighbours importable, and says what is wrong if it fails."""
    sys.path.insert(0, str(folder))
    try:
        yield
    except (Exception, SystemExit) as error:
        place = where(traceback.extract_tb(error.__traceback__))
        raise UsageError(f"{said} could not be loaded: {type(error).__name__}: {error}{place}") from error
    finally:
        sys.path.remove(str(folder))


def _with_arguments(target: Callable[..., Any], use: str, args: dict[str, Any]) -> Callable[..., Any]:
    """The target with its args: a class is built with them, a function gets them at each call."""
    parameters = parameters_of(target)
    known = [p.name for p in parameters or [] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters)
    for argument in args:
        if not takes_any and argument not in known:
            there = f"its arguments are {', '.join(known)}" if known else "it takes none"
            raise UsageError(f"reward {use!r} has no argument {argument!r}{_nearest(argument, known)}; {there}")
    if not isinstance(target, type):
        return functools.partial(target, **args) if args else target
    try:
        return target(**args)
    except KleashError:
        raise
    except Exception as error:
        raise UsageError(
            f"reward {use!r} cannot be built with args = {args}: {type(error).__name__}: {error}"
        ) from error


def _checked(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    if not callable(fn):
        raise UsageError(f"a reward is a function or names one, and this is a {type(fn).__name__}: {fn!r:.60}")
    parameters = parameters_of(fn)
    enough = ("completions", "messages")
    if parameters is not None and not any(p.kind is p.VAR_KEYWORD or p.name in enough for p in parameters):
        raise UsageError(
            f"reward {name!r} does not take `completions`; write it as def {name}(prompts, completions, **columns), "
            "or leave out what it does not need"
        )
    return fn


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
