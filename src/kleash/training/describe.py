"""What a run is about to do, in a few lines: printed at the start and by `--check-only`."""

from dataclasses import fields, is_dataclass
from typing import Any

from kleash.algorithms import OWN_PENALTY
from kleash.beta.entropy import EntropyLaw
from kleash.kl.penalties import NoPenalty
from kleash.models.load import Loaded
from kleash.models.prompts import unended_turn
from kleash.models.quantised import weights_in
from kleash.models.spec import ModelSpec
from kleash.records import Target
from kleash.training.entropy import bonus_of
from kleash.training.evaluate import how
from kleash.training.footprint import line
from kleash.training.job import Job
from kleash.training.kl_config import DEFAULT_TARGET


def describe(job: Job) -> list[str]:
    """Model, algorithm, leash and rewards, each with what it means."""
    config, update = job.config, job.update
    lines = [
        trained_words(job.loaded, config.model),
        *base_words(job.loaded),
        f"reference  {_reference(job)}{_follows(job)}",
        f"algorithm  {_named(update.algorithm)}: {update.algorithm.label}",
        f"leash      {config.kl.penalty.kind}: {update.penalty.label}{_weighted(job)}",
        f"           {_leash(job)}",
        *([] if update.mismatch is None else [f"sampler    {update.mismatch.label}"]),
        f"rewards    {', '.join(f'{r.name} × {r.weight:g}' for r in job.rewarders)}",
        f"steps      {config.train.steps} × {config.train.prompts_per_step} prompts × {update.algorithm.group_size} "
        f"completions of at most {config.train.max_new_tokens} tokens, learning rate {job.learning_rate:g}",
    ]
    if config.kl.ceiling is not None:
        of = "kl_ref" if config.model.reference_update is None else "kl_origin"
        lines.insert(5, f"budget     {config.kl.ceiling} of {of}: with a reading above it the run saves and stops")
    lines += _entropy(job.config.entropy)
    lines += _prompts(job)
    if job.config.watch.every:
        lines.append(f"watch      every {job.config.watch.every} steps; on a finding: {job.config.watch.on_finding}")
    lines.append(line(job))
    if job.loaded.policy.critic is not None:
        where = "on the policy's own states" if job.loaded.policy.critic.body is None else "with a body of its own"
        made = "made for this run, its first values are 0" if job.loaded.critic == "fresh" else "as it was trained"
        size = sum(p.numel() for p in job.loaded.policy.critic.parameters() if p.requires_grad)
        lines.append(f"critic     a value head {where}, {made}: {size:,} parameters to train")
    if job.texts is not None:
        ptx, cut = job.texts.ptx, f", {job.texts.cut} of them cut" if job.texts.cut else ""
        lines.append(
            f"ptx        {len(job.texts.ids)} texts from {ptx.texts}, at most {ptx.max_tokens} tokens each{cut}; "
            f"{ptx.per_update} in each update, at {ptx.weight:g} × their loss per token"
        )
    if job.plan.path == "plain":
        shared = "sampling and the reference share" if job.of_reference(job.plan).path != "plain" else "sampling shares"
        lines.append(f"note       {shared} a prompt's states; training reads it again for every completion")
    if job.sampling.mismatch:
        lines.append(f"note       {job.sampling.mismatch}; beta will not be adapted on them")
    return lines


def trained_words(loaded: Loaded, model: ModelSpec) -> str:
    """Which model, and how much of it moves."""
    trained = sum(p.numel() for p in loaded.policy.trainable())
    total = weights_in(loaded.policy)
    adapter = {None: "all weights", "fresh": "a fresh adapter", "loaded": "its own adapter"}[loaded.adapter]
    return (
        f"policy     {loaded.name}, {adapter}: {trained:,} of {total:,} parameters, "
        f"{model.dtype} on {loaded.policy.device}"
    )


def base_words(loaded: Loaded) -> list[str]:
    """What few bits made of the base; nothing where it is whole."""
    found = loaded.policy.quantised
    if found is None:
        return []
    cost = "" if found.cost is None else f"; KL(base as stored‖quantised) {found.cost:.2g} nats/token on a fixed text"
    lines = [
        f"quantised  {found.scheme}: {found.layers} linear layers of the base, {found.after / 1e6:,.3g} MB instead of "
        f"{found.before / 1e6:,.3g}{cost}"
    ]
    if found.left:
        lines.append(
            f"note       {len(found.left)} linear layers do not fit the blocks and stay as they are, {found.left[0]} "
            "first"
        )
    return lines


def _reference(job: Job) -> str:
    found, one = job.reference.fingerprint, job.config.model.reference
    prints = {one: found} if isinstance(one, str) else found
    stored = job.config.model.reference_dtype
    said = ", ".join(f"{name}, weights {print['weights'][:12]}…{_in_few_bits(print)}" for name, print in prints.items())
    return said if stored is None else f"{said} in {stored}"


def _in_few_bits(print: dict[str, Any]) -> str:
    return f" in {print['quantised'].split(',')[0]}" if print.get("quantised") else ""


def _follows(job: Job) -> str:
    law = job.config.model.reference_update
    if law is None:
        return ""
    keys = ", ".join(f"{f.name} {getattr(law, f.name)}" for f in fields(law) if f.name != "kind")
    return f"; it follows the policy: {law.kind} ({keys})"


def _named(algorithm: Any) -> str:
    """Its kind, and each key that is not its paper's: a mix is seen to be one."""
    published = type(algorithm)()
    own = {f.name: getattr(algorithm, f.name) for f in fields(published)}
    changed = [f"{name} = {_toml(value)}" for name, value in own.items() if value != getattr(published, name)]
    return f"{algorithm.kind} with {', '.join(changed)}" if changed else algorithm.kind


def _toml(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return "{ " + ", ".join(f"{f.name} = {_toml(getattr(value, f.name))}" for f in fields(value)) + " }"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _entropy(law: EntropyLaw | None) -> list[str]:
    if law is None:
        return []
    bonus, target = bonus_of(law), getattr(law, "target", None)
    held = "" if target is None else f", moved by {law.kind} to hold {target}"
    return [f"entropy    a bonus with coefficient {bonus.coef:g}{held}: {bonus.label}"]


def _prompts(job: Job) -> list[str]:
    data, loaded = job.config.data, job.loaded
    lines = [f"prompts    {len(job.prompts)} from {data.prompts}"]
    if loaded.tokenizer.chat_template and not all(isinstance(prompt, str) for prompt in job.prompts.prompts):
        closing = unended_turn(loaded.tokenizer, loaded.ends, data.asked)
        if closing is not None and closing not in job.sampling.stop:
            lines.append(
                f"note       the chat template closes a turn with {closing!r}, which is no end token of this model, so "
                f'completions may run on past it: set train.stop = ["{closing}"]'
            )
    if job.held_out is not None:
        every = job.config.train.evaluate_every or job.config.train.checkpoint_every
        lines.append(
            f"held out   {len(job.held_out)} from {data.held_out}, every {every} steps: {how(job)}, "
            "with the same noise each time"
        )
        both = sum(prompt in job.prompts.prompts for prompt in job.held_out.prompts)
        if both:
            lines.append(f"note       {both} of the held-out prompts are trained on as well")
    return lines


def _leash(job: Job) -> str:
    kl = job.config.kl
    if kl.penalty.kind == "none":
        published = OWN_PENALTY.get(job.config.algorithm.kind) is NoPenalty
        return f"no penalty{', as published' if published else ''}; the KL is measured all the same"
    if not kl.schedule:
        return f"beta {kl.first_beta:g}, {kl.law.kind}"
    first = Target.parse(kl.schedule[0].target)
    left_out = str(first) == DEFAULT_TARGET
    why = f" (the default, {DEFAULT_TARGET}: conservative; set kl.target to loosen it)" if left_out else ""
    more = f", {len(kl.schedule) - 1} later changes" if len(kl.schedule) > 1 else ""
    length = job.config.train.max_new_tokens
    other = (
        f"{first.value * length:.3g} nats/sequence"
        if first.unit == "nats/token"
        else f"{first.value / length:.3g} nats/token"
    )
    return f"target {first} (at {length} tokens: {other}){more}{why}, held by {kl.law.kind} from beta {kl.first_beta:g}"


def _weighted(job: Job) -> str:
    weights = job.config.kl.weights
    if weights is None:
        return ""
    return f"; weighted by class of token (eos {weights.eos:g}, format {weights.format:g}, content {weights.content:g})"
