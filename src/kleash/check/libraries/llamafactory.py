"""LLaMA-Factory: PPO through TRL 0.8.6 to 0.9.6, and preference losses. Source: LLaMA-Factory 0.9.5,
hparams/finetuning_args.py, train/ppo/trainer.py."""

from kleash.check import gradients
from kleash.check.libraries.shared import length_of, ziegler_traps
from kleash.check.records import Charge, Checked, Found, Given, Number

_NO_REFERENCE = ("orpo", "simpo")


def llamafactory(given: Given, tokens: Number | None) -> Checked:
    length, said = length_of(given, tokens, "max_new_tokens", 1024)
    match given.method:
        case "ppo":
            charges, traps, off = _ppo(given)
        case "dpo":
            charges, traps, off = _dpo(given)
        case "kto":
            charges, traps, off = (_pairs(given, "kto"),), [Found(name="kto-baseline")], None
        case stage:
            off = f"stage: {stage} has no KL to a reference"
            charges, traps = (), [Found(name="kl-off", here=off)]
    return Checked(given=given, charges=charges, traps=tuple(traps), length=length, length_said=said, off=off)


def _ppo(given: Given) -> tuple[tuple[Charge, ...], list[Found], None]:
    target = given.number("ppo_target", 6.0)
    batch = (given.number("per_device_train_batch_size", 8) or 8) * (
        given.number("gradient_accumulation_steps", 1) or 1
    )
    rows = batch * (given.number("ppo_buffer_size", 1) or 1)
    charge = Charge(
        where="reward",
        estimator="k1 per token",
        gradient=gradients.SEQUENCE,
        unit="nats/sequence",
        beta=0.2,
        target=target,
    )
    traps = [
        Found(name="pinned-trl"),
        Found(name="controller-lost", here="beta starts at 0.2, which no setting changes"),
    ]
    told = "" if target is None else f"ppo_target = {target:g} nats/sequence"
    traps += [Found(name="target-per-sequence", here=told), *ziegler_traps(0.2, target, 10000, rows)]
    return (charge,), traps, None


def _dpo(given: Given) -> tuple[tuple[Charge, ...], list[Found], str | None]:
    loss = given.word("pref_loss", "sigmoid")
    if loss in _NO_REFERENCE:
        return (), [Found(name="no-reference-loss", here=f"pref_loss: {loss}")], f"{loss} has no reference"
    return (_pairs(given, loss),), [Found(name="no-kl-in-dpo")], None


def _pairs(given: Given, loss: str) -> Charge:
    return Charge(
        where="preference",
        estimator=f"log-ratios of the pairs ({loss})",
        gradient=gradients.IMPLICIT,
        unit=None,
        beta=given.number("pref_beta", 0.1),
    )
