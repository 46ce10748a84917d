"""OpenRLHF's command lines, with dots (0.11) or as before. Sources: OpenRLHF 0.11.2 cli/train_ppo_ray.py:436-525,
models/utils.py:69-129, trainer/ppo_utils/experience_maker.py:240-330."""

from dataclasses import replace

from kleash.check import gradients
from kleash.check.libraries.shared import length_of, ziegler_traps
from kleash.check.records import Charge, Checked, Found, Given, Number

_OLD = {
    "init_kl_coef": "algo.kl.init_coef",
    "kl_target": "algo.kl.target",
    "kl_horizon": "algo.kl.horizon",
    "kl_estimator": "algo.kl.estimator",
    "use_kl_loss": "algo.kl.use_loss",
    "advantage_estimator": "algo.advantage.estimator",
    "no_advantage_std_norm": "algo.advantage.no_std_norm",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt",
    "rollout_batch_size": "rollout.batch_size",
    "generate_max_len": "rollout.max_new_tokens",
}
_WHITENED = ("gae", "reinforce", "reinforce_baseline")
_OWN_MEAN = ("group_norm", "dr_grpo", "reinforce_baseline")


def openrlhf(given: Given, tokens: Number | None) -> Checked:
    given = replace(given, settings={_OLD.get(key, key): value for key, value in given.settings.items()})
    length, said = length_of(given, tokens, "rollout.max_new_tokens", 1024)
    if given.method == "dpo":
        charge = Charge(
            where="preference", estimator="log-ratios of the pairs", gradient=gradients.IMPLICIT, unit=None,
            beta=given.number("beta", 0.1),
        )  # fmt: skip
        return Checked(given=given, charges=(charge,), traps=(), length=length, length_said=said)
    charge, traps = _charge(given)
    if charge.beta == 0:
        found = Found(name="kl-off", here="algo.kl.init_coef = 0: no reference; `kl` is logged as 0")
        if given.has("algo.kl.target"):
            traps = [Found(name="adaptive-stuck", here="beta 0 with algo.kl.target"), found]
        else:
            traps = [found]
        return Checked(given=given, charges=(), traps=tuple(traps), length=length, length_said=said, off=found.here)
    return Checked(given=given, charges=(charge,), traps=tuple(traps), length=length, length_said=said)


def _charge(given: Given) -> tuple[Charge, list[Found]]:
    in_loss, straight = given.switch("algo.kl.use_loss"), given.switch("algo.kl.unbiased_gradient")
    estimator = given.word("algo.kl.estimator", "k1")
    advantage = given.word("algo.advantage.estimator", "gae")
    samples = given.number("rollout.n_samples_per_prompt", 1) or 1
    beta, target = given.number("algo.kl.init_coef", 0.01), given.number("algo.kl.target", None)
    whitened = advantage in _WHITENED and not given.switch("algo.advantage.no_std_norm")
    if in_loss:
        gradient = gradients.OWN if straight else gradients.IN_LOSS.get(estimator, gradients.NEITHER)
    else:
        gradient = gradients.IN_REWARD.get(estimator, gradients.VANISHES)
    charge = Charge(
        where="loss" if in_loss else "reward",
        estimator=f"{estimator} with the true gradient" if in_loss and straight else estimator,
        gradient=gradient,
        unit="nats/token",
        beta=beta,
        spread=advantage == "group_norm" or (in_loss and whitened),
        group=int(samples) if advantage in _OWN_MEAN else None,
        target=target,
    )
    traps = _in_loss(estimator, straight) if in_loss else _in_reward(estimator, advantage)
    if charge.spread:
        traps.append(Found(name="beta-in-spreads", here=f"algo.advantage.estimator = {advantage}"))
    return charge, traps + _adaptive(given, charge, in_loss, samples)


def _in_loss(estimator: str, straight: bool) -> list[Found]:
    here = f"estimator {estimator}, use_loss"
    if straight:
        return [Found(name="own-token-only")]
    if estimator == "k1":
        return [Found(name="k1-in-loss", here=here)]
    if estimator == "k2":
        return [Found(name="k2-value", here=here), Found(name="own-token-only")]
    return [Found(name="forward-kl-gradient", here=here), Found(name="dead-zone"), Found(name="own-token-only")]


def _in_reward(estimator: str, advantage: str) -> list[Found]:
    found = [Found(name="clamped-charge")]
    if estimator != "k1":
        found.append(Found(name="sampled-in-reward", here=f"estimator {estimator} without use_loss"))
    if advantage in ("rloo", "dr_grpo", "group_norm", "flash_reinforce"):
        found.append(Found(name="not-baselined", here=f"estimator {advantage}"))
    return found


def _adaptive(given: Given, charge: Charge, in_loss: bool, samples: Number) -> list[Found]:
    if not given.has("algo.kl.target"):
        return []
    if in_loss:
        return [Found(name="adaptive-elsewhere", here="algo.kl.target with use_loss")]
    rows = (given.number("rollout.batch_size", 1024) or 1024) * samples
    told = "" if charge.target is None else f"{charge.target:g} nats/token"
    law = ziegler_traps(charge.beta, charge.target, given.number("algo.kl.horizon", 10000), rows)
    named = [
        Found(name="adaptive-incompatible"),
        Found(name="controller-lost"),
        Found(name="target-per-token", here=told),
    ]
    return named + law
