"""One reward model, or an ensemble of them: the same pairs, other seeds. And how far its members disagree."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.errors import UsageError
from kleash.models.spec import ModelSpec
from kleash.rl.calibration import calibration, disagreement
from kleash.training.offline.job import OfflineJob
from kleash.training.offline.progress import OfflineProgress
from kleash.training.offline.reward import Preferring
from kleash.training.offline.reward_config import RewardConfig
from kleash.training.offline.reward_setup import build_reward
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.start import run_offline

#: Where an ensemble's figures stand, beside its members.
FIGURES = "ensemble.json"


@dataclass(frozen=True, slots=True)
class Together:
    """What an ensemble is worth on the held-out pairs.

    accuracy: of each member; of_the_mean: of the mean of their scores, with its 95 % interval. disagreement: the
    standard deviation of r_c − r_r between members, mean over pairs; of those that the mean has right, and wrong.
    """

    accuracy: list[float]
    of_the_mean: tuple[float, float, float]
    disagreement: float
    disagreement_right: float | None
    disagreement_wrong: float | None
    n_pairs: int

    def __str__(self) -> str:
        def part(value: float | None) -> str:
            return "–" if value is None else f"{value:.3f}"

        return (
            f"held out: accuracy {', '.join(f'{a:.3f}' for a in self.accuracy)}; of their mean "
            f"{self.of_the_mean[0]:.3f} ({self.of_the_mean[1]:.3f} to {self.of_the_mean[2]:.3f}); members differ by "
            f"{self.disagreement:.3f} (std of r_c − r_r), by {part(self.disagreement_right)} where the mean is right "
            f"and by {part(self.disagreement_wrong)} where it is wrong"
        )


@dataclass(frozen=True, slots=True)
class RewardRuns:
    """What `kleash reward` made: a run a member. together: of an ensemble with held-out pairs."""

    path: Path
    members: list[OfflineRun]
    together: Together | None = None

    @property
    def use(self) -> list[str]:
        """What `[[rewards]] use` takes."""
        return [
            f"model:{run.path / 'best' if (run.path / 'best').exists() else run.model.path}" for run in self.members
        ]


def train_members(
    config: RewardConfig,
    pairs: Sequence[Any] | None = None,
    held_out: Sequence[Any] | None = None,
    *,
    progress: OfflineProgress | None = None,
    resume: bool = False,
    force: bool = False,
    check_only: bool = False,
) -> RewardRuns:
    """Each member one after the other. On `resume` those that are finished stay, and the first that is not goes on.

    Raises:
        UsageError, RunError: as `run_offline`.
    """
    build = partial(build_reward, pairs=pairs, held_out=held_out)
    path, shown = Path(config.out), progress or OfflineProgress()
    if config.members == 1:
        run = run_offline(config, build, resume=resume, force=force, check_only=check_only, progress=shown)
        return RewardRuns(path, [run])
    if (path / "events.jsonl").exists():
        raise UsageError(f"out = {config.out!r} holds a run of its own, and members = {config.members} go below it")
    each = [_member(config, i) for i in range(config.members)]
    if resume and not any((Path(one.out) / "events.jsonl").exists() for one in each):
        raise UsageError(f"{config.out} has no member to go on with; leave --resume out")
    runs: list[OfflineRun] = []
    for i, one in enumerate(each):
        begun = (Path(one.out) / "events.jsonl").exists()
        run = OfflineRun(Path(one.out))
        if not (resume and begun and run.finished):
            shown.notice(f"member {i} of {config.members}, seed {one.train.seed}:")
            again = resume and begun
            run = run_offline(one, build, resume=again, force=force, check_only=check_only, progress=shown)
        runs.append(run)
    if check_only:
        return RewardRuns(path, runs)
    together = _together(runs, [build(_at(one, run)) for one, run in zip(each, runs, strict=True)])
    if together is not None:
        (path / FIGURES).write_text(json.dumps(asdict(together), indent=1) + "\n", encoding="utf-8")
        shown.notice(str(together))
    return RewardRuns(path, runs, together)


def _member(config: RewardConfig, i: int) -> RewardConfig:
    train = replace(config.train, seed=config.train.seed + i)
    return replace(config, out=str(Path(config.out) / str(i)), members=1, train=train)


def _at(config: RewardConfig, run: OfflineRun) -> RewardConfig:
    """The config that loads what came out of a run."""
    model = ModelSpec(policy=str(run.model.path), dtype=config.model.dtype, device=config.model.device)
    return replace(config, model=model)


def _together(runs: Sequence[OfflineRun], jobs: Sequence[OfflineJob]) -> Together | None:
    found: list[Float[Tensor, " N"]] = []
    for job in jobs:
        objective = job.objective
        assert isinstance(objective, Preferring), "build_reward makes one"
        if objective.held_out is None:
            return None
        scores = objective.scored(objective.held_out, job.plan)
        found.append(scores[:, 0] - scores[:, 1])
    return together(torch.stack(found))


def together(ahead: Float[Tensor, "K N"]) -> Together:
    """Of the members' differences r_c − r_r of the same pairs."""
    mean = calibration(ahead.mean(0)).accuracy
    right = ahead.mean(0) > 0

    def apart(which: Tensor) -> float | None:
        return disagreement(ahead[:, which]) if which.any() else None

    return Together(
        accuracy=[calibration(one).accuracy.value for one in ahead],
        of_the_mean=(mean.value, mean.low, mean.high),
        disagreement=disagreement(ahead),
        disagreement_right=apart(right),
        disagreement_wrong=apart(~right),
        n_pairs=ahead.shape[1],
    )


def told(made: RewardRuns) -> tuple[dict[str, Any], str]:
    """What the command says of it, as plain values and in words."""
    evaluated = [run.evaluations[-1] if run.evaluations else None for run in made.members]
    plain = {
        "run": str(made.path),
        "use": made.use,
        "accuracy": [getattr(last, "accuracy", None) for last in evaluated],
        "together": None if made.together is None else asdict(made.together),
        "reports": [str(run.path / "report.html") for run in made.members],
    }
    use = f'"{made.use[0]}"' if len(made.use) == 1 else json.dumps(made.use)
    return plain, f"use     {use}\nlogs    {made.path}\nreport  {', '.join(plain['reports'])}"
