"""What is tested before the first step, so that nothing is found out after hours of training."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kleash.errors import RunError
from kleash.masked import masked_mean
from kleash.models.exhausted import is_out_of_memory, release, said_of
from kleash.models.moving import Moving
from kleash.models.paths import PathName
from kleash.models.plan import lowered
from kleash.models.policy import Policy
from kleash.rewards.score import Scored, score
from kleash.tensors import Look, ReferenceStates, Rollout
from kleash.training.evaluate import check_held_out
from kleash.training.job import Job
from kleash.training.rolling import Asked, roll

#: Prompts and completions of the trial rollout.
TRIAL_PROMPTS, TRIAL_GROUP = 2, 2


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was measured. KL in nats per token; `noise_floor` is KL between two exact ways through the same weights.

    identity: largest KL(policy‖reference) of any token at step 0; exactly 0 when the reference is the start.
    rounding: mean KL at step 0 to a reference of the same weights in another precision: what its rounding alone makes.
    bf16_floor: KL between bf16 and fp32 arithmetic over the same weights; None when computing in fp32.
    sampler: largest difference between the sampler's log-prob of a token and the trainer's.
    scored: whether any trial sample, which may be cut short, got a score.
    """

    identity: float
    rounding: float | None
    noise_floor: float | None
    bf16_floor: float | None
    sampler: float
    scored: bool
    longest_prompt: int
    checkpoint_gb: float
    free_gb: float

    def lines(self) -> list[str]:
        """For the user, a line a finding."""
        floor = "not measured (one path)" if self.noise_floor is None else f"{self.noise_floor:.1e} nats/token"
        bf16 = "" if self.bf16_floor is None else f", bf16 against fp32 {self.bf16_floor:.1e}"
        least = f"the reference's own rounding is {self.rounding or 0:.1e} nats/token: a KL of that size means nothing"
        none = ["the rewards gave no trial sample a score; a step with no score at all ends the run"]
        return [
            f"policy and reference at step 0: largest KL {self.identity:.1e} nats/token",
            *([] if self.rounding is None else [least]),
            f"noise floor (batch shape, padding): {floor}{bf16}; sampler against trainer {self.sampler:.1e} nats",
            f"longest prompt {self.longest_prompt} tokens; a checkpoint takes about {self.checkpoint_gb:.2f} GB, "
            f"{self.free_gb:.1f} GB are free",
            *([] if self.scored else none),
        ]


def preflight(job: Job) -> Preflight:
    """Runs every check on a small rollout of the real policy.

    Raises:
        UsageError: a prompt is empty or too long for the context, the reward lacks a column.
        RunError: policy and reference differ although they are the same weights, the reward fails on the trial
            samples, or the disk has no room for the checkpoints.
    """
    check_held_out(job)
    checkpoint_gb, free_gb = _room(job)
    rollout, scored = _trial(job)
    look = _look(job, rollout)
    identity = float(look.kl[rollout.mask].max()) if look.kl is not None else float("nan")
    model = job.config.model
    same = model.reference == "start" and model.reference_dtype is None
    if same and identity != 0.0:
        raise RunError(
            f"policy and reference are the same weights, and yet KL(policy‖reference) is {identity:.3g} nats at a "
            "token: this model does not compute the same numbers twice, so no KL of it could be trusted"
        )
    return Preflight(
        identity=identity,
        rounding=_rounding(job, look, rollout),
        noise_floor=_noise_floor(job, rollout),
        bf16_floor=_bf16_floor(job, rollout),
        sampler=float((rollout.sampler - look.logprobs).abs()[rollout.mask].max()),
        scored=any(value is not None for value in scored.total),
        longest_prompt=job.work.prompt,
        checkpoint_gb=checkpoint_gb,
        free_gb=free_gb,
    )


def preflighted(job: Job, say: Callable[[str], None]) -> tuple[Job, Preflight]:
    """The checks, and the job with a smaller plan where there was no room for them by its own.

    Raises:
        RunError: there is no room by the smallest either; and what `preflight` raises.
    """
    while True:
        try:
            return job, preflight(job)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            said = said_of(error)
        release()
        plan = lowered(job.plan, job.work, job.loaded.paths)
        if plan is None:
            raise RunError(
                f"memory ran out ({said}) in the checks before the first step, with one completion at a time; set "
                f"{job.shorter} lower, choose a smaller model, or train an adapter (model.adapter = {{ rank = 16 }})"
            )
        say(f"memory ran out ({said}) in the checks before the first step: {plan} instead of {job.plan}")
        job = replace(job, plan=plan)


def _trial(job: Job) -> tuple[Rollout, Scored]:
    """A few samples of the first prompts, scored once so that the reward has run before training starts."""
    n = min(TRIAL_PROMPTS, len(job.prompts))
    prompts, columns = job.prompts.take(list(range(n)), TRIAL_GROUP)
    # Short: what is tested are numbers and signatures. A loop of the user's own may need all its room.
    most = job.sampling.max_new_tokens if job.rollout is not None else min(16, job.sampling.max_new_tokens)
    brief = replace(job, sampling=replace(job.sampling, max_new_tokens=most, min_new_tokens=0))
    rolled = roll(brief, job.loaded.policy, Asked(prompts, columns, list(range(n)), TRIAL_GROUP), step=0)
    return rolled.rollout, score(job.rewarders, prompts, rolled.texts, rolled.columns, trial=True)


@torch.no_grad()
def _look(job: Job, rollout: Rollout) -> Look:
    path, rows = job.plan.path, job.plan.rows
    states = job.reference.states(rollout, path, rows)
    return job.loaded.policy(rollout, reference=states, temperature=job.update.temperature, path=path, rows=rows)


def _rounding(job: Job, look: Look, rollout: Rollout) -> float | None:
    model = job.config.model
    if model.reference != "start" or model.reference_dtype is None or look.kl is None:
        return None
    return float(masked_mean(look.kl, rollout.mask))


@torch.no_grad()
def _noise_floor(job: Job, rollout: Rollout) -> float | None:
    """KL between two ways through the same weights: what batch shape and padding alone can do."""
    others: list[PathName] = [path for path in job.loaded.reading if path != job.plan.path]
    if not others:
        return None
    return _kl_between(job.loaded.policy, rollout, job, other_path=others[-1])


@torch.no_grad()
def _bf16_floor(job: Job, rollout: Rollout) -> float | None:
    policy = job.loaded.policy
    if policy.compute is None:
        return None
    full = Policy(policy.model, policy.recipe, compute=None)
    return _kl_between(full, rollout, job, other_path=job.plan.path)


def _kl_between(other: Policy, rollout: Rollout, job: Job, *, other_path: PathName) -> float:
    """Mean size of the KL per token between the policy and other arithmetic over its weights."""
    hidden = other.hidden(rollout, other_path).to(job.loaded.policy.head().weight.dtype)
    states = ReferenceStates(hidden, other.head())
    look = job.loaded.policy(rollout, reference=states, temperature=job.update.temperature, path=job.plan.path)
    # Where a KL is all rounding it may come out below 0, and noise has no sign.
    return float(masked_mean(look.kl.abs(), rollout.mask))


def _room(job: Job) -> tuple[float, float]:
    """GB of one checkpoint (weights in their dtype, two fp32 moments), GB free; refuses too little for two."""
    trained = job.loaded.policy.trainable()
    size = sum(p.numel() * (p.element_size() + 8) for p in trained)
    if isinstance(job.reference, Moving):
        size += sum(weight.nbytes for weight in job.reference.tensors().values())
    size /= 1e9
    free = shutil.disk_usage(job.run_dir).free / 1e9
    if free < 2 * size:
        raise RunError(
            f"{job.run_dir} has {free:.2f} GB free and a checkpoint takes about {size:.2f} GB; make room for at "
            "least two, or choose another out"
        )
    return size, free
