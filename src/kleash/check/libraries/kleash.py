"""kleash's own TOML. Source: docs/config.md, docs/kl.md."""

from kleash.check import gradients
from kleash.check.libraries.shared import length_of
from kleash.check.records import Charge, Checked, Found, Given, Number, Unread
from kleash.records import Target

#: The trainer's own, held by tests/check/test_read.py.
DEFAULT_TARGET = "0.02 nats/token"
DEFAULT_BETA = 0.05
DEFAULT_BETA_IN_DEVIATIONS = 0.5
#: How the algorithms that have `std` divide the reward by default.
_STD = {"gspo": "group", "dapo": "group", "cispo": "group"}
_SCHEDULES = ("constant", "linear", "cosine")


def kleash(given: Given, tokens: Number | None) -> Checked:
    length, said = length_of(given, tokens, "train.max_new_tokens", 128)
    kind = given.word("kl.penalty.kind", given.word("kl.penalty", "exact"))
    target = _target(given)
    spread = given.word("algorithm.std", _STD.get(given.method, "none")) == "group"
    beta = given.number("kl.beta", DEFAULT_BETA_IN_DEVIATIONS if spread else DEFAULT_BETA)
    if kind == "none" or (beta == 0 and target is None):
        off = 'kl.penalty = "none"' if kind == "none" else "kl.beta = 0"
        notes = ("kleash measures the KL all the same",)
        found = (Found(name="kl-off", here=f"{off}; kleash measures the KL all the same"),)
        return Checked(given=given, charges=(), traps=found, length=length, length_said=said, off=off, notes=notes)
    estimator, gradient, traps = _penalty(given, kind)
    charge = Charge(
        where="reward" if kind == "in_reward" else "loss",
        estimator=estimator,
        gradient=gradient,
        unit=None if target is None else target.unit,
        beta=beta,
        spread=spread,
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
        return "exact, over the whole vocabulary", "the reverse KL of the whole sequence", []
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
