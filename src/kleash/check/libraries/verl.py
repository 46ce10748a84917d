"""verl: KL in the reward, in the loss, both or neither. Sources: verl 0.9.1, trainer/config/ppo_trainer.yaml:101-123,
actor.yaml:103-116, trainer/ppo/core_algos.py:2188-2248, ray_trainer.py:85-112."""

from kleash.check import gradients
from kleash.check.libraries.shared import length_of, ziegler_traps
from kleash.check.records import Charge, Checked, Found, Given, Number

_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_ACTOR = "actor_rollout_ref.actor"
_CONTROL = "algorithm.kl_ctrl"
#: Advantages that are divided by a spread; those of a group, whose mean holds the sample itself.
_SPREAD = ("gae", "grpo", "grpo_vectorized", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
_OWN_MEAN = ("grpo", "grpo_vectorized", "gdpo", "reinforce_plus_plus_baseline")
#: The others are whitened whatever norm_adv_by_std_in_grpo says.
_SWITCHED = ("grpo", "grpo_vectorized", "gdpo")


def verl(given: Given, tokens: Number | None) -> Checked:
    """The charges of a resolved or partial verl config; what is not given has verl's default."""
    length, said = length_of(given, tokens, "data.max_response_length", 512)
    in_reward, in_loss = given.switch("algorithm.use_kl_in_reward"), given.switch(f"{_ACTOR}.use_kl_loss")
    charges: list[Charge] = []
    traps: list[Found] = []
    if in_reward:
        charge, found = _reward(given)
        charges.append(charge)
        traps += found
    if in_loss:
        charge, found = _loss(given)
        charges.append(charge)
        traps += found
    if in_reward and in_loss:
        traps.insert(0, Found(name="two-penalties"))
    traps += _unused(given, in_reward, in_loss)
    if (
        charges
        and given.number("actor_rollout_ref.model.lora_rank", 0)
        and given.has("actor_rollout_ref.model.lora_adapter_path")
    ):
        traps.append(Found(name="lora-reference-is-base"))
    off = None
    if not charges:
        off = "use_kl_in_reward and use_kl_loss are both off" + ("" if _said(given) else ", verl's default")
    elif all(charge.beta == 0 for charge in charges):
        off = "the coefficient is 0: measured, not charged"
    if off:
        traps.insert(0, Found(name="kl-off", here=off))
    return Checked(given=given, charges=tuple(charges), traps=tuple(traps), length=length, length_said=said, off=off)


def _said(given: Given) -> bool:
    return given.has("algorithm.use_kl_in_reward") or given.has(f"{_ACTOR}.use_kl_loss")


def _type(given: Given, key: str, default: str) -> tuple[str, bool]:
    """(k1, k2, k3, abs or full; whether its gradient is k2's, by a + at the end)."""
    written = given.word(key, default)
    base = written.removesuffix("+")
    return _NAMES.get(base, base), written.endswith("+")


def _reward(given: Given) -> tuple[Charge, list[Found]]:
    estimator, _ = _type(given, "algorithm.kl_penalty", "kl")
    adaptive = given.word(f"{_CONTROL}.type", "fixed") == "adaptive"
    beta = given.number(f"{_CONTROL}.kl_coef", 0.001)
    target = given.number(f"{_CONTROL}.target_kl", 0.1)
    charge = Charge(
        where="reward",
        estimator=f"{estimator} per token",
        gradient=gradients.IN_REWARD.get(estimator, "none: it raises"),
        unit="nats/token",
        beta=beta,
        target=target if adaptive else None,
    )
    traps = []
    if estimator == "full":
        traps.append(Found(name="full-raises", here="algorithm.kl_penalty"))
    elif estimator != "k1":
        traps.append(Found(name="sampled-in-reward", here=f"algorithm.kl_penalty = {estimator}"))
    if adaptive:
        rows = (given.number("data.train_batch_size", 1024) or 1024) * (
            given.number("actor_rollout_ref.rollout.n", 1) or 1
        )
        told = "" if target is None else f"{target:g} nats/token"
        traps += [Found(name="controller-lost"), Found(name="target-per-token", here=told)]
        traps += ziegler_traps(beta, target, given.number(f"{_CONTROL}.horizon", 10000), rows)
    return charge, traps


def _loss(given: Given) -> tuple[Charge, list[Found]]:
    estimator, straight = _type(given, f"{_ACTOR}.kl_loss_type", "low_var_kl")
    advantage = given.word("algorithm.adv_estimator", "gae")
    kept = advantage in _SWITCHED and not given.switch("algorithm.norm_adv_by_std_in_grpo", True)
    spread = advantage in _SPREAD and not kept
    samples = given.number("actor_rollout_ref.rollout.n", 1)
    known = estimator in gradients.IN_LOSS
    charge = Charge(
        where="loss",
        estimator=f"{estimator} with the gradient of k2" if straight else estimator,
        gradient=gradients.OWN if straight and known else gradients.IN_LOSS.get(estimator, "none: it raises"),
        unit="nats/token",
        beta=given.number(f"{_ACTOR}.kl_loss_coef", 0.001),
        spread=spread,
        group=int(samples) if samples and advantage in _OWN_MEAN else None,
    )
    key = f"kl_loss_type = {given.word(f'{_ACTOR}.kl_loss_type', 'low_var_kl')}"
    traps = []
    if estimator == "full":
        traps.append(Found(name="full-raises", here=key))
    elif not straight:
        by_type = {"k1": "k1-in-loss", "k2": "k2-value", "k3": "forward-kl-gradient", "abs": "abs-in-loss"}
        traps += [Found(name=by_type[estimator], here=key)] if estimator in by_type else []
        traps += [Found(name="dead-zone")] if estimator == "k3" else []
    if known and (straight or estimator != "k1"):
        traps.append(Found(name="own-token-only"))
    if spread:
        traps.append(Found(name="beta-in-spreads", here=f"adv_estimator = {advantage}"))
    return charge, traps


def _unused(given: Given, in_reward: bool, in_loss: bool) -> list[Found]:
    """Coefficients and controllers that are set and do nothing."""
    found = []
    if not in_loss and given.number(f"{_ACTOR}.kl_loss_coef", 0):
        found.append(Found(name="coefficient-without-switch", here=f"{_ACTOR}.kl_loss_coef without use_kl_loss"))
    if not in_reward and given.number(f"{_CONTROL}.kl_coef", 0):
        found.append(Found(name="coefficient-without-switch", here=f"{_CONTROL}.kl_coef without use_kl_in_reward"))
    if not in_reward and given.word(f"{_CONTROL}.type", "fixed") == "adaptive":
        found.append(Found(name="adaptive-elsewhere", here=f"{_CONTROL}.type = adaptive without use_kl_in_reward"))
    return found
