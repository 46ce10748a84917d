"""From a config to a job: everything is loaded and checked here, before anything is trained."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kleash.errors import UsageError
from kleash.models.exhausted import room_for
from kleash.models.load import Loaded, load, pick_device
from kleash.models.memory import size_of
from kleash.models.reference import build_reference
from kleash.models.sampling import Sampling
from kleash.models.token_classes import token_classes
from kleash.rewards.load import find, load_rewards
from kleash.training.config import Config, with_critic
from kleash.training.data import Prompts, indices
from kleash.training.job import Job
from kleash.training.passes import Update
from kleash.training.planning import largest, planned
from kleash.training.texts import load_texts
from kleash.training.train_config import TrainSpec

#: Learning rates when none is given: usual for full fine-tuning, and for adapters, which need about ten times more.
FULL_RATE, ADAPTER_RATE = 1e-5, 1e-4
#: What helps where a model does not fit.
SMALLER = (
    "choose a smaller model, or keep its weights in bf16 under an adapter (model.adapter = { rank = 16 } and "
    'model.dtype = "bfloat16")'
)
NO_COPY = (
    "train an adapter, whose base is the reference as well (model.adapter = { rank = 16 }), or set "
    'model.reference_dtype = "bfloat16"'
)


def build_job(
    config: Config,
    prompts: Prompts,
    rewards: Sequence[Any | Callable[..., Any]],
    held_out: Prompts | None = None,
) -> Job:
    """Loads models and rewards, makes the optimizer. Moves nothing.

    Raises:
        UsageError, RunError: with what is wrong in the config, a model, a reward or the prompts.
    """
    config = with_critic(config)
    train = config.train
    indices(0, train.prompts_per_step, len(prompts), train.seed)
    controller = config.kl.law
    controller.init(config.kl.first_beta)
    rewarders = load_rewards(rewards, device=str(pick_device(config.model.device)))
    with room_for("the policy", SMALLER):
        loaded = load(config.model, seed=train.seed)
    with room_for("the reference", NO_COPY):
        reference = build_reference(config.model, loaded, temperature=train.temperature)
    size, work = size_of(loaded.policy, loaded.paths), largest(config, loaded, prompts.prompts)
    rate = train.learning_rate or (FULL_RATE if loaded.adapter is None else ADAPTER_RATE)
    groups = _groups(loaded, rate, train.critic_bias_rate)
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=train.adam_betas, weight_decay=train.weight_decay, fused=True)
    ids = max(loaded.policy.rows, loaded.ends.pad_id + 1)  # padding may lie beyond what the model can read
    classes = token_classes(loaded.tokenizer, loaded.ends, ids, config.kl.format).to(loaded.policy.device)
    return Job(
        config=config,
        run_dir=Path(config.out),
        loaded=loaded,
        reference=reference,
        rewarders=rewarders,
        prompts=prompts,
        sampling=_sampling(train),
        update=_update(config, loaded, classes),
        controller=controller,
        optimizer=optimizer,
        learning_rate=rate,
        size=size,
        work=work,
        plan=planned(loaded, reference, work, size),
        held_out=held_out,
        classes=classes,
        rollout=_own_rollout(config.data.rollout),
        texts=load_texts(config.algorithm, loaded, train.seed),
    )


def _sampling(train: TrainSpec) -> Sampling:
    return Sampling(
        max_new_tokens=train.max_new_tokens,
        min_new_tokens=train.min_new_tokens,
        temperature=train.temperature,
        top_p=train.top_p,
        top_k=train.top_k,
        stop=train.stop,
    )


def _update(config: Config, loaded: Loaded, classes: Int[Tensor, " V"]) -> Update:
    return Update(
        algorithm=config.algorithm,
        penalty=config.kl.penalty,
        length=config.train.max_new_tokens,
        temperature=config.train.temperature,
        max_grad_norm=config.train.max_grad_norm,
        mismatch=config.train.mismatch,
        token_weight=None if config.kl.weights is None else config.kl.weights.table(classes),
    )


def _groups(loaded: Loaded, rate: float, bias_rate: float | None) -> list[dict[str, Any]]:
    """The optimizer's parameter groups: everything, and a critic's bias. `factor`: by how much its rate differs."""
    trained, critic = loaded.policy.trainable(), loaded.policy.critic
    if critic is None or bias_rate is None:
        return [{"params": trained}]
    bias = critic.value.bias
    return [{"params": [p for p in trained if p is not bias]}, {"params": [bias], "factor": bias_rate / rate}]


def _own_rollout(use: str | None) -> Callable[..., Any] | None:
    """The function that data.rollout names."""
    if use is None:
        return None
    found = find(use, "data.rollout")
    if not callable(found):
        raise UsageError(f"data.rollout {use!r} is a {type(found).__name__}, not a function")
    return found
