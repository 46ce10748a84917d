"""`kleash.train`: a run from Python or from a config, new or resumed."""

import datetime
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import kleash
from kleash.errors import RunError, UsageError
from kleash.models.fingerprint import differences
from kleash.models.load import pick_device
from kleash.records import Step, Target
from kleash.rewards.chain import ShapeMemory
from kleash.rewards.load import Rewarder, load_reward
from kleash.rewards.spec import RewardSpec
from kleash.runlog.jsonl import Writer, read
from kleash.runlog.schema import Evaluation, Resume, RunStart, current, last_of_each_step
from kleash.training import checkpoint
from kleash.training.best import Best, merit
from kleash.training.config import Config, resolved
from kleash.training.data import Prompts, as_prompts, asked, digest, held_out_prompts, read_prompts
from kleash.training.describe import describe
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.loosening import continued, loosened
from kleash.training.online import train as loop
from kleash.training.preflight import preflight
from kleash.training.progress import Progress
from kleash.training.run import Run
from kleash.training.setup import build_job
from kleash.training.toml import dump_config, parse_config, with_settings

PACKAGES = ("torch", "transformers", "peft", "safetensors", "tokenizers")


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
        resume: go on with the run in `out`; "force": even if its prompts have changed.
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

    Raises:
        UsageError: `out` already holds a run and resume is False, or the other way round; on resume a looser leash
            without `loosen`, or other prompts without `force`.
        RunError: see `kleash.training.online.train`.
    """
    run = Run(Path(config.out))
    log = run.path / "events.jsonl"
    _check_out(run, log, resume)
    if resume:
        _check_leash(log, config, loosen)
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
    for line in [*describe(job), *preflight(job).lines()]:
        progress.notice(line)
    if check_only:
        return run
    with Writer(log) as events, Writer(run.path / "samples.jsonl") as samples, progress:
        sinks = Sinks(events, samples, progress.update, progress.notice)
        state = _resumed(job, log, sinks) if resume else _begun(job, sinks)
        loop(job, state, sinks)
    run.report()
    return run


def _check_out(run: Run, log: Path, resume: bool) -> None:
    begun = log.exists() and bool(read(log))  # a process may be killed before its first record
    if begun and not resume:
        raise UsageError(
            f"{run.path} already holds a run; go on with --resume (in Python: resume=True), or choose another out"
        )
    if resume and not begun:
        raise UsageError(f"there is no run in {run.path} to resume")


def _check_leash(log: Path, config: Config, loosen: bool) -> None:
    before = parse_config(_in_force(log))
    looser = loosened(before.kl, config.kl)
    if looser and not loosen:
        raise UsageError(
            f"resuming would loosen the leash: {'; '.join(looser)}. If that is meant, add --loosen "
            "(in Python: loosen=True)"
        )


def _check_prompts(log: Path, given: dict[str, Prompts | None]) -> None:
    for name, prompts in given.items():
        before, now = _started(log).fingerprints.get(name), digest(prompts) if prompts else None
        if before is not None and now is not None and before != now:
            raise UsageError(
                f"data.{name}: the prompts are not the ones this run started with: {before['number']} with content "
                f"{before['content'][:12]}… before, {now['number']} with {now['content'][:12]}… now. Restore them, "
                'start a new run, or go on with them by --force (in Python: resume="force")'
            )


def _in_force(log: Path) -> dict[str, Any]:
    """The config of the newest resume, or of the start: what a leash is compared with."""
    resumes = [event.config for event in read(log) if isinstance(event, Resume) and event.config is not None]
    return resumes[-1] if resumes else _started(log).config


def _begun(job: Job, sinks: Sinks) -> Progressing:
    sinks.events.write(
        RunStart(
            config=_resolved(job),
            started=_now(),
            versions=versions(),
            fingerprints={"reference": job.reference.fingerprint, "prompts": digest(job.prompts)}
            | ({} if job.held_out is None else {"held_out": digest(job.held_out)}),
            argv=sys.argv,
        )
    )
    checkpoint.seed_random(job.config.train.seed)
    return Progressing(step=0, controller=job.controller.init(job.config.kl.first_beta))


def _resolved(job: Job) -> dict[str, Any]:
    return dump_config(resolved(job.config, learning_rate=job.learning_rate))


def _resumed(job: Job, log: Path, sinks: Sinks) -> Progressing:
    """The state at the newest complete checkpoint; the reference must be the one the run started with."""
    started = _started(log)
    changed = differences(started.fingerprints["reference"], job.reference.fingerprint)
    if changed:
        raise RunError(
            f"the reference is not the one this run started with ({'; '.join(changed)}); its KL would mean something "
            "else from here on. Restore it, or start a new run"
        )
    path, passed_over = checkpoint.newest(job.checkpoints)
    step, controller, shaping = 0, job.controller.init(job.config.kl.first_beta), ShapeMemory()
    if path is None:
        checkpoint.seed_random(job.config.train.seed)
    else:
        restored = checkpoint.restore(path, job.config.model, job.loaded.policy, job.optimizer)
        step, controller = restored.step, continued(job.config.kl, restored.leash, restored.controller)
        shaping = ShapeMemory.of(restored.shaping)
    for writer in (sinks.events, sinks.samples):
        writer.write(Resume(step=step, started=_now(), config=_resolved(job)))
    for sentence in passed_over:
        sinks.notice("checkpoint_passed_over", sentence)
    for sentence in _changes(started.config, _resolved(job)):
        sinks.notice("config_changed", sentence, step)
    sinks.say(f"resuming at step {step} " + ("(there is no complete checkpoint)" if path is None else f"from {path}"))
    events = read(log)
    history = [record for record in last_of_each_step(events) if record.step < step]
    evaluations = [event for event in current(events) if isinstance(event, Evaluation)]
    return Progressing(
        step=step,
        controller=controller,
        saved=step,
        history=history,
        evaluations=evaluations,
        best=_best(job, history, evaluations),
        shaping=shaping,
    )


def _best(job: Job, history: list[Step], evaluations: list[Evaluation]) -> Best:
    """The best so far, from the log: the score it had when it was chosen. One after the step resumed at is void."""
    link = job.run_dir / "best"
    if link.exists() and not link.is_symlink():
        raise UsageError(f"{link} is not the link that a run makes there; move it away, then resume")
    if not link.exists():
        return Best()
    name = link.resolve().name
    done = int(name.removeprefix("step-"))
    if done > len(history):
        return Best()
    before = [record for record in history if record.step < done]
    score = merit(before, evaluations, held_out=job.held_out is not None)
    return Best() if score is None else Best(score, name)


def _started(log: Path) -> RunStart:
    for event in current(read(log)):
        if isinstance(event, RunStart):
            return event
    raise RunError(f"{log} has no start of a run in it, so it cannot be resumed; start again with another out")


def _changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Each setting that differs, in words."""
    said: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            said += _changes(old, new, f"{name}.")
        elif old != new:
            said.append(f"{name} was {old!r} and is now {new!r}")
    return said


def versions() -> dict[str, str]:
    """kleash, Python and the packages that decide a run's numbers."""
    return {"kleash": kleash.__version__, "python": platform.python_version()} | {p: version(p) for p in PACKAGES}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


__all__ = ["Run", "Target", "start", "train", "versions"]
