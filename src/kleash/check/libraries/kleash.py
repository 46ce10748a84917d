"""kleash's own TOML. Source: docs/config.md, docs/kl.md."""

from typing import Literal

from kleash.check import gradients
from kleash.check.libraries.shared import length_of
from kleash.check.records import Charge, Checked, Found, Given, Number, Unread
from kleash.records import Target

#: The trainer's own, held by tests/check/test_read.py.
DEFAULT_TARGET = "0.02 nats/token"
DEFAULT_BETA = 0.05
DEFAULT_BETA_IN_DEVIATIONS = 0.5
#: How the algorithms divide the reward and average over tokens by default; the others by nothing and a constant.
_STD = {"gspo": "group", "dapo": "group", "cispo": "group"}
_LENGTH = {"gspo": "sequence_mean", "dapo": "token_mean", "cispo": "token_mean"}
#: The penalty where the config has no [kl]; the others' is exact.
_OWN = {"cispo": "none", "dapo": "none", "reinforce++": "in_reward"}
_SCHEDULES = ("constant", "linear", "cosine")


def kleash(given: Given, tokens: Number | None) -> Checked:
    length, said = length_of(given, tokens, "train.max_new_tokens", 128)
    leashed = any(key.startswith("kl.") for key in given.settings)
    own = "exact" if leashed else _OWN.get(given.method, "exact")
    kind = given.word("kl.penalty.kind", given.word("kl.penalty", own))
    target = _target(given)
    divided = given.word("algorithm.std", _STD.get(given.method, "none"))
    in_deviations = divided == "group" or given.method == "best_of_n"
    beta = given.number("kl.beta", DEFAULT_BETA_IN_DEVIATIONS if in_deviations else DEFAULT_BETA)
    if kind == "none" or (beta == 0 and target is None):
        off = "kl.beta = 0" if kind != "none" else 'kl.penalty = "none"'
        off += "" if leashed else f", {given.method}'s own"
        notes = ("kleash measures the KL all the same",)
        found = (Found(name="kl-off", here=f"{off}; kleash measures the KL all the same"),)
        return Checked(given=given, charges=(), traps=found, length=length, length_said=said, off=off, notes=notes)
    estimator, gradient, traps = _pairs(given) if given.method == "online_dpo" else _penalty(given, kind)
    where: Literal["reward", "loss", "preference"] = "reward" if kind == "in_reward" else "loss"
    charge = Charge(
        where="preference" if given.method == "online_dpo" else where,
        estimator=estimator,
        gradient=gradient,
        unit="nats/sequence" if target is None else target.unit,
        beta=beta,
        spread=divided != "none",
        target=None if target is None else target.value,
    )
    notes = () if target is None else ("beta is where the controller starts: it is moved to hold the target",)
    return Checked(given=given, charges=(charge,), traps=tuple(traps), length=length, length_said=said, notes=notes)


def _target(given: Given) -> Target | None:
    """The first target, the default one where neither target nor beta is given."""
    written = given.settings.get("kl.target")
    if isinstance(written, list) and written and isinstance(written[0], dict):
        written = written[0].get("target")
    if written is not None and not isinstance(written, Unread):
        return Target.parse(written)
    steered = given.has("kl.beta") and not given.has("kl.controller") and not given.has("kl.controller.kind")
    schedule = given.word("kl.controller.kind", given.word("kl.controller", "")) in _SCHEDULES
    return None if steered or schedule else Target.parse(DEFAULT_TARGET)


def _penalty(given: Given, kind: str) -> tuple[str, str, list[Found]]:
    if kind == "exact":
        whole = "the reverse KL of the whole sequence"
        divided = given.word("algorithm.std", _STD.get(given.method, "none"))
        average = given.word("algorithm.length", _LENGTH.get(given.method, "constant"))
        if divided != "none" or average != "constant":
            whole = f"near {whole}; std = {divided} and length = {average} bend it (docs/kl.md §6)"
        return "exact, over the whole vocabulary", whole, []
    if kind == "in_reward":
        return "k1 per token", gradients.SEQUENCE, []
    if kind != "in_loss":
        return kind, "as docs/kl.md says", []
    estimator = given.word("kl.penalty.estimator", "exact")
    ratio = given.word("kl.penalty.ratio", "default")
    if estimator == "k3" and ratio not in ("live", "default"):
        here = f'kl.penalty.ratio = "{ratio}"'
        return "k3", gradients.FORWARD, [Found(name="forward-kl-gradient", here=here), Found(name="own-token-only")]
    return estimator, gradients.OWN, [Found(name="own-token-only")]


def _pairs(given: Given) -> tuple[str, str, list[Found]]:
    """online_dpo: the reference is in its loss of pairs, and no other penalty is let in."""
    loss = given.word("algorithm.preference", "dpo")
    gradient = gradients.IMPLICIT if loss == "dpo" else "of E[win rate] − β · the reverse KL of the whole sequence"
    return f"log-ratios of the policy's own pairs ({loss})", gradient, []
