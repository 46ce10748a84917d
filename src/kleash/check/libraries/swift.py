"""ms-swift: GRPO with the KL in the loss or the reward, and DPO's kin. Source: ms-swift 4.6.0,
arguments/rlhf_args.py:356-374, rlhf_trainers/grpo_trainer.py:438-452, 972-976."""

from kleash.check import gradients
from kleash.check.libraries.shared import length_of
from kleash.check.records import Charge, Checked, Found, Given, Number


def swift(given: Given, tokens: Number | None) -> Checked:
    length, said = length_of(given, tokens, "max_completion_length", 512)
    if given.method != "grpo":
        charge = Charge(
            where="preference",
            estimator=f"log-ratios of the pairs ({given.method})",
            gradient=gradients.IMPLICIT,
            unit=None,
            beta=given.number("beta", 0.1),
        )
        return Checked(given=given, charges=(charge,), traps=(), length=length, length_said=said)
    beta = given.number("beta", 0.04)
    if beta == 0:
        found = Found(name="kl-off", here="beta = 0")
        return Checked(given=given, charges=(), traps=(found,), length=length, length_said=said, off=found.here)
    charge, traps = _charge(given, beta)
    return Checked(given=given, charges=(charge,), traps=tuple(traps), length=length, length_said=said)


def _charge(given: Given, beta: float | None) -> tuple[Charge, list[Found]]:
    advantage = given.word("advantage_estimator", "grpo")
    in_reward = given.switch("kl_in_reward", advantage != "grpo")
    if in_reward:
        charge = Charge(
            where="reward",
            estimator="k1, summed over the answer",
            gradient=gradients.SEQUENCE,
            unit="nats/token",
            beta=beta,
        )
        traps = [Found(name="real-crashes")] if given.word("loss_type", "grpo") == "real" else []
        return charge, traps + _sampling(given)
    samples = given.number("num_generations", 8)
    spread = given.word("scale_rewards", "group").lower() not in ("none", "false")
    charge = Charge(
        where="loss",
        estimator="k3",
        gradient=gradients.FORWARD,
        unit="nats/token",
        beta=beta,
        spread=spread,
        group=int(samples) if samples and advantage == "grpo" else None,
    )
    traps = [Found(name="forward-kl-gradient"), Found(name="dead-zone"), Found(name="own-token-only")]
    if spread:
        traps.append(Found(name="beta-in-spreads"))
    return charge, traps + _sampling(given)


def _sampling(given: Given) -> list[Found]:
    """What the command sets, and no default: those are the generation config's own."""
    off = {"top_p": 1.0, "top_k": (0.0, -1.0), "repetition_penalty": 1.0}
    shaped = [
        f"{key} = {given.settings[key]}" for key, none in off.items() if given.has(key) and not _is(given, key, none)
    ]
    return [Found(name="filtered-sampling", here=", ".join(shaped))] if shaped else []


def _is(given: Given, key: str, none: Number | tuple[float, ...]) -> bool:
    return given.number(key, None) in (none if isinstance(none, tuple) else (none,))
