"""The plan of a run: made once from a step at its largest and the memory that is there, kept over resumes."""

from typing import Any

from kleash.models.free import free_bytes
from kleash.models.ledger import entries, to_come
from kleash.models.load import Loaded
from kleash.models.memory import size_of
from kleash.models.plan import Plan, Size, Work, choose
from kleash.models.reference import Reference
from kleash.training.config import Config
from kleash.training.job import Job, encoded


def largest(config: Config, loaded: Loaded, prompts: list[Any]) -> Work:
    """A step with the longest prompts and no completion that ends early.

    Raises:
        UsageError: a prompt is empty or too long for the context.
    """
    n, algorithm = config.train.prompts_per_step, config.algorithm
    return Work(
        prompts=n,
        groups=-(-n // algorithm.minibatches),
        group_size=algorithm.group_size,
        prompt=max(map(len, encoded(prompts, config, loaded))),
        length=config.train.max_new_tokens,
        asked=config.train.groups_per_pass,
    )


def planned(loaded: Loaded, reference: Reference | None, work: Work, size: Size | None = None) -> Plan:
    """The plan for this memory, models being loaded and nothing else yet. `size`: of the policy, if it is known."""
    policy, size = loaded.policy, size or size_of(loaded.policy, loaded.paths)
    free = free_bytes(policy.device)
    if free is not None:
        free -= to_come(entries(policy, () if reference is None else reference.policies, size, work))
    # A lone completion shares its prompt with none: the plain path is then the same arithmetic without a mask.
    return choose(size, work, ("plain",) if work.group_size == 1 else loaded.paths, free)


def earlier(saved: dict[str, Any] | None, job: Job) -> Plan:
    """The plan that a run went by, if it was made for the same work; its numbers are then the same bit for bit."""
    if saved is None or Work(**saved["work"]) != job.work or saved["plan"]["path"] not in job.loaded.paths:
        return job.plan
    return Plan(**saved["plan"])
