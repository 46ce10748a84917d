"""`kleash sft`, `dpo` and `reward`: training on rows."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from kleash.cli.options import AsJson, Overrides, Seed, say, stopped


def sft(
    config: Annotated[Path, typer.Argument(help="The run, as TOML.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume with other texts or another reference.")] = False,
    check_only: Annotated[bool, typer.Option("--check-only", help="Load and check everything, train nothing.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Teach a model to write as your texts do: the reference of what comes after."""
    from kleash.training.offline.sft_config import SFTConfig
    from kleash.training.offline.sft_setup import build_sft
    from kleash.training.toml import load

    given = [*(overrides or []), *([] if seed is None else [f"train.seed={seed}"])]
    checked = load(config, given, SFTConfig)
    options = {"resume": resume, "force": force, "check_only": check_only}
    run_offline_verb("sft", config, given, checked, build_sft, as_json=as_json, **options)


def dpo(
    config: Annotated[Path, typer.Argument(help="The run, as TOML.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume with other pairs or another reference.")] = False,
    check_only: Annotated[bool, typer.Option("--check-only", help="Load and check everything, train nothing.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Teach a model to prefer as your pairs do, with its KL on its own words in sight."""
    from kleash.training.offline.dpo_config import DPOConfig
    from kleash.training.offline.dpo_setup import build_dpo
    from kleash.training.toml import load

    given = [*(overrides or []), *([] if seed is None else [f"train.seed={seed}"])]
    checked = load(config, given, DPOConfig)
    options = {"resume": resume, "force": force, "check_only": check_only}
    run_offline_verb("dpo", config, given, checked, build_dpo, as_json=as_json, **options)


def reward(
    config: Annotated[Path, typer.Argument(help="The run, as TOML.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume with other pairs.")] = False,
    check_only: Annotated[bool, typer.Option("--check-only", help="Load and check everything, train nothing.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Make a reward model, or an ensemble of them, of preference pairs."""
    from rich.console import Console

    from kleash.training.interrupt import stopped_code
    from kleash.training.offline.members import told, train_members
    from kleash.training.offline.progress import OfflineProgress
    from kleash.training.offline.reward_config import RewardConfig
    from kleash.training.toml import load

    given = [*(overrides or []), *([] if seed is None else [f"train.seed={seed}"])]
    checked, progress = load(config, given, RewardConfig), OfflineProgress(Console(stderr=as_json))
    try:
        made = train_members(checked, progress=progress, resume=resume, force=force, check_only=check_only)
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            typer.echo(stopped(stop, checked.out, shlex.join([str(config), *given]), "reward"), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
        return
    say(as_json, *told(made))


def run_offline_verb(
    verb: str, path: Path, given: list[str], checked: Any, build: Any, *, check_only: bool, as_json: bool, **how: bool
) -> None:
    """A verb that trains on rows: runs it, and says where its model is."""
    from rich.console import Console

    from kleash.training.interrupt import stopped_code
    from kleash.training.offline.progress import OfflineProgress
    from kleash.training.offline.start import run_offline

    progress = OfflineProgress(Console(stderr=as_json))
    try:
        run = run_offline(checked, build, check_only=check_only, progress=progress, **how)
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            typer.echo(stopped(stop, checked.out, shlex.join([str(path), *given]), verb), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
        return
    model, page = run.model.path, run.path / "report.html"
    told = {"run": str(run.path), "model": str(model), "loss": run.steps[-1].loss, "ended": run.ended}
    say(as_json, told | {"report": str(page)}, f"model   {model}\nlogs    {run.path}/events.jsonl\nreport  {page}")
    if run.ended == "budget":
        raise typer.Exit(1)
