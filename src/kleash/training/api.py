"""`kleash.train`: a run from Python or from a config, new or resumed."""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kleash.errors import UsageError
from kleash.models.load import pick_device
from kleash.records import Target
from kleash.rewards.load import Rewarder, load_reward
from kleash.rewards.spec import RewardSpec
from kleash.runlog.boards import opened, require
from kleash.runlog.jsonl import Writer, read
from kleash.runlog.schema import Resume
from kleash.training.beginning import begun, resumed, started, versions, written_out
from kleash.training.budget import check_resumed
from kleash.training.config import Config
from kleash.training.data import Prompts, as_prompts, asked, digest, held_out_prompts, read_prompts
from kleash.training.describe import describe
from kleash.training.footprint import table
from kleash.training.job import Sinks
from kleash.training.loosening import follows_otherwise, loosened
from kleash.training.online import train as loop
from kleash.training.preflight import preflighted
from kleash.training.progress import Progress
from kleash.training.run import Run
from kleash.training.setup import build_job
from kleash.training.toml import parse_config, with_settings
from kleash.training.trial import tried


def train(
    policy: str | Path,
    prompts: Iterable[Any] | str | Path,
    reward: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
    *,
    kl_target: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool | Literal["force"] = False,
    loosen: bool = False,
) -> Run:
    """Improves a model on a reward, on a leash.

    Seeds the global generators of Python, numpy and torch with train.seed, so that a reward that uses them repeats.

    Args:
        policy: a directory, a hub id, "kleash:tiny" or "kleash:smollm2".
        prompts: strings, message lists, table rows with a column "prompt" (a list of dicts, a datasets.Dataset), or
            a file, a directory or a hub data set (docs/data.md). Other columns go to the rewards.
        reward: one or several of: a function (prompts, completions, **columns) → list of float or None, or a name
            as in [[rewards]] use.
        kl_target: "4 nats/sequence" or "0.02 nats/token"; left out, a conservative default is held.
        out: the run's directory; left out, runs/ and the time.
        settings: anything else of the config by its dotted name, {"train.steps": 100, "algorithm.kind": "rloo"}.
        resume: go on with the run in `out`; "force": even if its prompts or its reference have changed.
        loosen: allow a looser leash on resume.

    Raises:
        UsageError: something asked for is wrong; nothing was started.
        RunError: something could not be done; what was trained is saved.
    """
    rewards = [reward] if callable(reward) or isinstance(reward, str) else list(reward)
    named = [r if isinstance(r, str) else getattr(r, "__name__", type(r).__name__) for r in rewards]
    from_file = isinstance(prompts, str | Path)
    tree: dict[str, Any] = {
        "out": str(out or f"runs/{datetime.datetime.now():%Y%m%d-%H%M%S}"),
        "model": {"policy": str(policy)},
        "data": {"prompts": str(prompts) if from_file else "(given in Python)"},
        "rewards": [{"use": name} for name in named],
    }
    if kl_target is not None:
        tree["kl"] = {"target": kl_target}
    config = parse_config(with_settings(tree, settings or {}))
    column = config.data.column
    rows = read_prompts(prompts, column) if isinstance(prompts, str | Path) else as_prompts(prompts, column)
    if len(config.rewards) != len(rewards):
        raise UsageError(
            f"settings name {len(config.rewards)} rewards and {len(rewards)} are given: leave `rewards` out of "
            'settings, or say more of one that is given, as "rewards.0.weight"'
        )
    device = str(pick_device(config.model.device))
    loaded = [_rewarder(given, spec, device) for given, spec in zip(rewards, config.rewards, strict=True)]
    force = resume == "force"
    return start(config, prompts=rows, rewards=loaded, resume=bool(resume), loosen=loosen, force=force)


def _rewarder(given: Callable[..., Any] | str, spec: RewardSpec, device: str) -> Rewarder:
    """A reward given in Python, with what `settings` say of it, such as {"rewards.0.weight": 0.5}."""
    if isinstance(given, str):
        return load_reward(spec, device=device)
    made = load_reward(partial(given, **spec.args) if spec.args else given)
    return replace(made, name=spec.name or made.name, weight=spec.weight, timeout_s=spec.timeout_s, shape=spec.shape)


def start(
    config: Config,
    *,
    prompts: Prompts | None = None,
    rewards: Sequence[Any] | None = None,
    resume: bool = False,
    loosen: bool = False,
    force: bool = False,
    check_only: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Runs a config: preflight, the loop, the report. Prompts and rewards are read from the config unless given.

    A run that comes to its KL budget ends there: `Run.ended` is "budget", and it is not finished.

    Raises:
        UsageError: `out` already holds a run and resume is False, or the other way round; on resume a looser leash
            without `loosen`, no KL budget left, or other prompts without `force`.
        RunError: on resume another reference without `force`; for the rest see `kleash.training.online.train`.
    """
    run = Run(Path(config.out))
    log = run.path / "events.jsonl"
    check_out(run.path, log, resume)
    require(config.log.to)
    if resume:
        _check_leash(log, config, loosen)
        check_resumed(config.kl.ceiling, next(reversed(run.steps), None))
    if prompts is None:
        prompts = read_prompts(config.data.prompts, config.data.column)
    prompts, held_out = asked(prompts, config.data), held_out_prompts(config.data)
    if resume and not force:
        _check_prompts(log, {"prompts": prompts, "held_out": held_out})
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out = {config.out!r} cannot be a run's directory: {error.strerror}") from None
    job = build_job(config, prompts, config.rewards if rewards is None else rewards, held_out)
    progress = progress or Progress()
    job, checked = preflighted(job, progress.notice)
    for line in [*describe(job), *checked.lines()]:
        progress.notice(line)
    if check_only:
        for row in [*table(job), *tried(job)]:
            progress.notice(row)
        return run
    with (
        Writer(log) as file,
        Writer(run.path / "samples.jsonl") as samples,
        opened(config.log.to, config.log.project, file, written_out(job), progress.notice) as events,
        progress,
    ):
        sinks = Sinks(events, samples, progress.update, progress.notice)
        state = resumed(job, log, sinks, force) if resume else begun(job, sinks)
        loop(job, state, sinks)
    run.report()
    return run


def check_out(run_dir: Path, log: Path, resume: bool) -> None:
    """A directory holds one run, which is begun once.

    Raises:
        UsageError: there is one and resume is False, or the other way round.
    """
    begun = log.exists() and bool(read(log))  # a process may be killed before its first record
    if begun and not resume:
        raise UsageError(
            f"{run_dir} already holds a run; go on with --resume (in Python: resume=True), or choose another out"
        )
    if resume and not begun:
        raise UsageError(f"there is no run in {run_dir} to resume")


def _check_leash(log: Path, config: Config, loosen: bool) -> None:
    before = parse_config(_in_force(log))
    looser = loosened(before.kl, config.kl)
    looser += follows_otherwise(before.model.reference_update, config.model.reference_update)
    if looser and not loosen:
        raise UsageError(
            f"resuming would loosen the leash: {'; '.join(looser)}. If that is meant, add --loosen "
            "(in Python: loosen=True)"
        )


def _check_prompts(log: Path, given: dict[str, Prompts | None]) -> None:
    for name, prompts in given.items():
        before, now = started(log).fingerprints.get(name), digest(prompts) if prompts else None
        if before is not None and now is not None and before != now:
            raise UsageError(
                f"data.{name}: the prompts are not the ones this run started with: {before['number']} with content "
                f"{before['content'][:12]}… before, {now['number']} with {now['content'][:12]}… now. Restore them, "
                'start a new run, or go on with them by --force (in Python: resume="force")'
            )


def _in_force(log: Path) -> dict[str, Any]:
    """The config of the newest resume, or of the start: what a leash is compared with."""
    resumes = [event.config for event in read(log) if isinstance(event, Resume) and event.config is not None]
    return resumes[-1] if resumes else started(log).config


__all__ = ["Run", "Target", "start", "train", "versions"]
