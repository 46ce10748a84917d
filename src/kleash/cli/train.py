"""`kleash train`: online RL."""

import shlex
import sys
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, Overrides, Seed, say, stopped


def train(
    config: Annotated[Path, typer.Argument(help="The run, as TOML.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    loosen: Annotated[bool, typer.Option("--loosen", help="Allow a looser leash on resume.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume with other prompts or another reference.")] = False,
    check_only: Annotated[bool, typer.Option("--check-only", help="Load and check everything, train nothing.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Improve a model on your reward, on a leash.

    Loading a config runs the reward code it names: treat it as code.
    """
    from rich.console import Console

    from kleash.training.api import start
    from kleash.training.interrupt import stopped_code
    from kleash.training.progress import Progress
    from kleash.training.toml import load_config

    given = [*(overrides or []), *([] if seed is None else [f"train.seed={seed}"])]
    checked = load_config(config, given)
    progress = Progress(Console(stderr=as_json))
    try:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what a reward prints is no part of the JSON
            run = start(checked, resume=resume, loosen=loosen, force=force, check_only=check_only, progress=progress)
    except KeyboardInterrupt as stop:
        with suppress(OSError):  # a terminal that was closed hears nothing more
            typer.echo(stopped(stop, checked.out, shlex.join([str(config), *given])), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
        return
    last = run.steps[-1]
    kl = None if last.kl_ref is None else last.kl_ref.value
    best = str(run.path / "best") if (run.path / "best").exists() else None
    told = {
        "run": str(run.path),
        "best": best,
        "score": last.score,
        "kl_ref": kl,
        "beta": last.beta,
        "ended": run.ended,
    }
    say(
        as_json,
        told | {"report": str(run.path / "report.html")},
        came_of(run.path, best or str(run.checkpoints[-1].path)),
    )
    if run.ended in ("budget", "finding"):
        raise typer.Exit(1)


def came_of(run_dir: Path, model: str) -> str:
    """What a person is told at the end."""
    from kleash.report.log import load
    from kleash.report.words import verdict

    return "\n".join(
        [
            f"verdict {verdict(load(run_dir))}",
            f"model   {model}",
            f"logs    {run_dir}/events.jsonl, samples.jsonl",
            f"report  {run_dir}/report.html",
        ]
    )
