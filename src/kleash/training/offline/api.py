"""`kleash.sft`, `kleash.dpo` and `kleash.reward_model`: runs on rows from Python."""

import datetime
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kleash.training.offline.dpo_config import DPOConfig
from kleash.training.offline.dpo_setup import build_dpo
from kleash.training.offline.members import RewardRuns, train_members
from kleash.training.offline.reward_config import RewardConfig
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.toml import parse, with_settings

#: What stands in a config for rows that exist only in a Python session.
IN_PYTHON = "(given in Python)"


def sft(
    policy: str | Path,
    texts: Iterable[Any] | str | Path,
    *,
    held_out: Iterable[Any] | str | Path | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool | Literal["force"] = False,
) -> OfflineRun:
    """Teaches a model to write as `texts` do.

    Args:
        policy: a directory, a hub id, "kleash:tiny" or "kleash:smollm2".
        texts: rows with prompt and completion, with messages, or texts; or a file of them (docs/sft.md).
        held_out: the same, never trained on; the best checkpoint is chosen by them.
        out: the run's directory; left out, runs/ and the time.
        settings: anything else of the config by its dotted name, {"train.epochs": 2, "model.adapter.rank": 16}.
        resume: go on with the run in `out`; "force": even if its texts or its reference have changed.

    Raises:
        UsageError: something asked for is wrong; nothing was started.
        RunError: something could not be done; what was trained is saved.
    """
    given, name = rows_of(texts)
    held, held_name = (None, None) if held_out is None else rows_of(held_out)
    tree: dict[str, Any] = {
        "out": str(out or f"runs/{datetime.datetime.now():%Y%m%d-%H%M%S}"),
        "model": {"policy": str(policy)},
        "data": {"texts": name} | ({} if held_name is None else {"held_out": held_name}),
    }
    config = parse(with_settings(tree, settings or {}), SFTConfig)
    build = partial(build_sft, texts=given, held_out=held)
    return run_offline(config, build, resume=bool(resume), force=resume == "force")


def dpo(
    policy: str | Path,
    pairs: Iterable[Any] | str | Path,
    *,
    held_out: Iterable[Any] | str | Path | None = None,
    kl_target: str | None = None,
    kl_budget: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool | Literal["force"] = False,
) -> OfflineRun:
    """Teaches a model to prefer as `pairs` do, and measures how far its own words move from where it started.

    Args:
        policy: a directory, a hub id, "kleash:tiny" or "kleash:smollm2".
        pairs: rows with prompt, chosen and rejected; or a file of them (docs/pairs.md).
        held_out: the same, never trained on; the best checkpoint is chosen by them.
        kl_target: "4 nats/sequence" or "0.02 nats/token": beta is adapted to hold it; left out, beta stays.
        kl_budget: of the same form: above it the run saves and stops.
        out: the run's directory; left out, runs/ and the time.
        settings: anything else of the config by its dotted name, {"loss.kind": "ipo", "train.epochs": 2}.
        resume: go on with the run in `out`; "force": even if its pairs or its reference have changed.

    Raises:
        UsageError: something asked for is wrong; nothing was started.
        RunError: something could not be done; what was trained is saved.
    """
    given, name = rows_of(pairs)
    held, held_name = (None, None) if held_out is None else rows_of(held_out)
    leash = {"target": kl_target, "budget": kl_budget}
    tree: dict[str, Any] = {
        "out": str(out or f"runs/{datetime.datetime.now():%Y%m%d-%H%M%S}"),
        "model": {"policy": str(policy)},
        "data": {"pairs": name} | ({} if held_name is None else {"held_out": held_name}),
        "kl": {name: value for name, value in leash.items() if value is not None},
    }
    config = parse(with_settings(tree, settings or {}), DPOConfig)
    build = partial(build_dpo, pairs=given, held_out=held)
    return run_offline(config, build, resume=bool(resume), force=resume == "force")


def reward_model(
    start: str | Path,
    pairs: Iterable[Any] | str | Path,
    *,
    held_out: Iterable[Any] | str | Path | None = None,
    members: int = 1,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool | Literal["force"] = False,
) -> RewardRuns:
    """Makes a reward model of preference pairs: the result's `use` is what `[[rewards]] use` takes.

    Args:
        start: a language model, which gets a fresh head, or a reward model, which goes on: a directory, a hub id,
            "kleash:tiny" or "kleash:smollm2".
        pairs: rows with prompt, chosen and rejected, or a file of them (docs/pairs.md).
        held_out: the same, never trained on: accuracy and calibration are measured, and the best chosen, on them.
        members: of an ensemble; each differs in its seed.
        out: the run's directory; left out, runs/ and the time.
        settings: anything else of the config by its dotted name, {"train.epochs": 2, "loss.centre": 0.0}.
        resume: go on with the run in `out`; "force": even if its pairs have changed.

    Raises:
        UsageError: something asked for is wrong; nothing was started.
        RunError: something could not be done; what was trained is saved.
    """
    given, name = rows_of(pairs)
    held, held_name = (None, None) if held_out is None else rows_of(held_out)
    tree: dict[str, Any] = {
        "out": str(out or f"runs/{datetime.datetime.now():%Y%m%d-%H%M%S}"),
        "model": {"policy": str(start)},
        "data": {"pairs": name} | ({} if held_name is None else {"held_out": held_name}),
        "members": members,
    }
    config = parse(with_settings(tree, settings or {}), RewardConfig)
    return train_members(config, given, held, resume=bool(resume), force=resume == "force")


def rows_of(rows: Iterable[Any] | str | Path) -> tuple[list[Any] | None, str]:
    """Rows, and what the config calls them; None for those that the config's own file holds."""
    return (None, str(rows)) if isinstance(rows, str | Path) else (list(rows), IN_PYTHON)
