"""The command line. Thin: every verb imports what it needs when it is called, so `--help` is quick.

Exit codes: 0 good, 1 a gate or finding failed, 2 it could not be done, 64 the command line or config is wrong and
nothing was started, 130 Ctrl-C, 128 + the signal's number after SIGTERM (143) and SIGHUP (129).
"""

import json
import os
import shlex
import sys
import warnings
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import kleash
from kleash.errors import KleashError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fine-tune language models with reinforcement learning, on a leash: an exact, controlled and watched KL.",
)

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings by name: kl.target='2 nats/sequence' train.steps=100")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Seed = Annotated[int | None, typer.Option(help="Short for train.seed=N.")]


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")] = False,
) -> None:
    if version:
        typer.echo(f"kleash {kleash.__version__}")
        raise typer.Exit


@app.command()
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
            typer.echo(_stopped(stop, checked.out, shlex.join([str(config), *given])), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        _say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
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
    _say(
        as_json,
        told | {"report": str(run.path / "report.html")},
        f"model   {best or run.checkpoints[-1].path}\nlogs    {run.path}/events.jsonl, samples.jsonl\n"
        f"report  {run.path}/report.html",
    )
    if run.ended == "budget":
        raise typer.Exit(1)


@app.command()
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
    _run_offline("sft", config, given, checked, build_sft, as_json=as_json, **options)


@app.command()
def label(
    pairs: Annotated[Path, typer.Argument(help="Rows with prompt, a and b, or with chosen and rejected.")],
    judge: Annotated[str, typer.Option(help="A model, the address of a server, or ./judge.py:function.")],
    rubric: Annotated[str, typer.Option(help="What is better: text, or the .md or .txt file that says it.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file for the labelled pairs.")],
    settings: Annotated[list[str] | None, typer.Argument(help="The judge's settings: model=NAME ties=true")] = None,
    tie: Annotated[float, typer.Option(help="How near to 1/2 a probability is a tie.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Have a judge say which of two answers is better: pairs for a reward model or DPO, with probabilities.

    Every verdict is kept as it comes; the same command again goes on where it stopped.
    """
    from kleash.models.load import pick_device
    from kleash.rewards.judge import Judge
    from kleash.training import label as labelling
    from kleash.training.interrupt import ended_by_signals, stopped_code
    from kleash.training.toml import with_overrides

    args = with_overrides({}, settings or []) | {"rubric": rubric}
    try:
        with ended_by_signals(), redirect_stdout(sys.stderr) if as_json else nullcontext():
            who = Judge.load(judge, args, str(pick_device("auto")))
            found = labelling.label(
                pairs, who, out, tie=tie, progress=labelling.now_and_then(lambda said: typer.echo(said, err=True))
            )
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            typer.echo("stopped; the verdicts so far are kept, and the same command goes on from them", err=True)
        raise typer.Exit(stopped_code(stop)) from None
    _say(as_json, found.plain(), "\n".join(found.lines()))


@app.command()
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
    _run_offline("dpo", config, given, checked, build_dpo, as_json=as_json, **options)


@app.command()
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
            typer.echo(_stopped(stop, checked.out, shlex.join([str(config), *given]), "reward"), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        _say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
        return
    _say(as_json, *told(made))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run's directory.")], as_json: AsJson = False) -> None:
    """Write a run's report again, from its log."""
    from kleash.report.which import write

    path = write(run)
    _say(as_json, {"report": str(path)}, f"wrote {path}")


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out, runs/demo.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also beta 0.01 and 0.5.")] = False,
    road: Annotated[bool, typer.Option("--rlhf", help="Texts, preferences, reward model, RL: in runs/rlhf.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The leash seen: the embedded tiny model trained without it, with it, and holding a KL target."""
    from kleash.demo.rlhf import run_rlhf
    from kleash.demo.run import run_demo
    from kleash.training.interrupt import stopped_code

    try:
        if road:
            told = run_rlhf(out or Path("runs/rlhf"), steps=steps, seed=seed, quiet=as_json)
        else:
            told = run_demo(out or Path("runs/demo"), everything=everything, steps=steps, seed=seed, quiet=as_json)
    except KeyboardInterrupt as stop:
        raise typer.Exit(stopped_code(stop)) from None
    if as_json:
        typer.echo(json.dumps(told))


def _run_offline(
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
            typer.echo(_stopped(stop, checked.out, shlex.join([str(path), *given]), verb), err=True)
        raise typer.Exit(stopped_code(stop)) from None
    if check_only:
        _say(as_json, {"checked": checked.out}, "all checks passed; nothing was trained")
        return
    model, page = run.model.path, run.path / "report.html"
    told = {"run": str(run.path), "model": str(model), "loss": run.steps[-1].loss, "ended": run.ended}
    _say(as_json, told | {"report": str(page)}, f"model   {model}\nlogs    {run.path}/events.jsonl\nreport  {page}")
    if run.ended == "budget":
        raise typer.Exit(1)


def _stopped(stop: KeyboardInterrupt, out: str, again: str, verb: str = "train") -> str:
    by = str(stop) or "Ctrl-C"
    if not any(Path(out).glob("**/events.jsonl")):
        return f"stopped by {by} before the first step. Start again: kleash {verb} {again}"
    return f"stopped by {by}; what was done is in {out}. Go on: kleash {verb} {again} --resume"


def _say(as_json: bool, told: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(told) if as_json else text)


def main() -> None:
    """Entry point: errors become one sentence and an exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Deprecations inside the libraries are for kleash's authors, whose tests show them.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
    debug = "--debug" in sys.argv[1:]
    try:
        app(args=[a for a in sys.argv[1:] if a != "--debug"])
    except KleashError as error:
        if debug:
            raise
        typer.echo(f"kleash: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as done:  # 2 is how the parser says that the command line is wrong; the verbs never use it
        sys.exit(64 if done.code == 2 else done.code)


if __name__ == "__main__":
    main()
