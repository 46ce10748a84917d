"""YAML, JSON and TOML: whose they are is told by their keys."""

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml

from kleash.check.read.values import flat, value
from kleash.errors import UsageError

_VERL = ("algorithm.", "actor_rollout_ref.", "critic.", "reward_model.")
_OPENRLHF = ("algo.", "rollout.", "train.", "ds.")
TRL_METHODS = ("grpo", "rloo", "dpo", "kto", "ppo", "orpo", "cpo", "online_dpo", "async_grpo")


def from_table(path: Path, text: str, overrides: list[str], method: str | None) -> tuple[Any, str, str, dict[str, Any]]:
    """The settings, flattened, with the overrides on top."""
    settings = flat(_parsed(path, text))
    for override in overrides:
        key, equals, given = override.lstrip("+~").partition("=")
        if not equals:
            raise UsageError(f"{override!r} is no override; write key=value, as kl.beta=0.05")
        settings[key] = value(given)
    library, said = _whose(path, settings, method)
    return library, said, str(path), settings


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        match path.suffix.lower():
            case ".toml":
                table = tomllib.loads(text)
            case ".json":
                table = json.loads(text)
            case _:
                table = yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path} holds no table of settings")
    return {str(key): inner for key, inner in table.items()}


def _whose(path: Path, settings: dict[str, Any], method: str | None) -> tuple[str, str]:
    keys = settings.keys()
    if path.suffix.lower() == ".toml":
        return "kleash", str(settings.get("algorithm.kind", "grpo"))
    if any(key.startswith(("algo.kl.", "algo.advantage.")) for key in keys):
        return "OpenRLHF", "ppo"
    if any(key.startswith(_VERL) for key in keys):
        return "verl", str(settings.get("algorithm.adv_estimator", "gae"))
    if "rlhf_type" in keys:
        return "ms-swift", str(settings["rlhf_type"])
    if "stage" in keys:
        return "LLaMA-Factory", str(settings["stage"])
    if method is not None and method.lower() in TRL_METHODS:
        return "TRL", method.lower()
    if "beta" in keys or "num_generations" in keys:
        raise UsageError(
            f"{path} looks like TRL's arguments, which do not name the trainer; say --method grpo (or rloo, dpo, …)"
        )
    raise UsageError(
        f"{path} has no key that tells whose config it is: algorithm.…, actor_rollout_ref.… (verl), algo.… (OpenRLHF), "
        "stage (LLaMA-Factory), rlhf_type (ms-swift); for TRL's arguments say --method grpo (or rloo, dpo, …)"
    )
