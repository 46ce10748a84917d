"""TRL: which KL its configs charge. Sources: TRL at the tags v0.14 to v1.16 (trainer/*_config.py, *_trainer.py)."""

from kleash.check import gradients
from kleash.check.libraries.shared import length_of, unread
from kleash.check.records import Charge, Checked, Found, Given, Number

_NO_REFERENCE = ("orpo", "cpo")
_PAIRWISE = ("dpo", "kto", "online_dpo")
_FILTERS = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "top_k": 0.0}


def trl(given: Given, tokens: Number | None) -> Checked:
    """GRPO: in the loss. RLOO, PPO: in the reward. DPO and its kin: beta of the pair's loss."""
    length, said = length_of(given, tokens, "max_completion_length", 512 if given.version >= (1, 0) else 256)
    charges, traps, off = _METHODS.get(given.method, _preference)(given)
    if charges and charges[0].beta == 0:
        charges, off = (), off or "beta = 0" + ("" if given.has("beta") else f", TRL {_version(given)}'s default")
    if off is not None and given.method not in _NO_REFERENCE:
        traps = [Found(name="kl-off", here=off), *[t for t in traps if t.name in _WITHOUT_BETA]]
    notes = tuple(note for note in [unread(given, "beta")] if note)
    return Checked(
        given=given, charges=charges, traps=tuple(traps), length=length, length_said=said, off=off, notes=notes
    )


#: Traps that hold with nothing charged too.
_WITHOUT_BETA = ("no-ppo", "not-this-kl", "sync-refused", "no-reference-loss")
_Said = tuple[tuple[Charge, ...], list[Found], str | None]


def _version(given: Given) -> str:
    return ".".join(map(str, given.version))


def _grpo(given: Given) -> _Said:
    beta = given.number("beta", 0.04 if given.version < (0, 19) else 0.0)
    if given.settings.get("beta", 0) is None:
        beta = 0.0
    corrected = given.version >= (0, 26) and given.switch("use_bias_correction_kl", given.version >= (1, 10))
    spread = given.word("scale_rewards", "group").lower() not in ("none", "false")
    by_sequence = given.word("importance_sampling_level", "token") == "sequence"
    group = given.number("num_generations", 8)
    charge = Charge(
        where="loss",
        estimator="k3 × live importance ratio" if corrected else "k3",
        gradient=gradients.OWN if corrected else gradients.FORWARD,
        unit="nats/token",
        beta=beta,
        spread=spread,
        group=None if group is None else int(group),
    )
    traps = [Found(name="own-token-only"), Found(name="k3-overflow")]
    if not corrected:
        traps.append(Found(name="forward-kl-gradient", here=_why_uncorrected(given)))
    elif by_sequence:
        traps.append(Found(name="sequence-weight"))
    if spread:
        traps.append(Found(name="beta-in-spreads", here=f'scale_rewards = "{given.word("scale_rewards", "group")}"'))
    return (charge,), traps + _reference(given, beta) + _sampling(given), None


def _why_uncorrected(given: Given) -> str:
    if given.version < (0, 26):
        return f"TRL {_version(given)} has no correction; 0.26 has"
    said = "" if given.has("use_bias_correction_kl") else f", TRL {_version(given)}'s default"
    return f"use_bias_correction_kl = False{said}"


def _rloo(given: Given) -> _Said:
    beta = given.number("beta", 0.05)
    charge = Charge(
        where="reward",
        estimator="k1, summed over the answer",
        gradient=gradients.SEQUENCE,
        unit="nats/token",
        beta=beta,
    )
    return (charge,), _reference(given, beta) + _sampling(given), None


def _ppo(given: Given) -> _Said:
    traps = [Found(name="no-ppo", here=f"TRL {_version(given)}")] if given.version >= (1, 16) else []
    estimator = given.word("kl_estimator", "k1")
    old = given.version < (0, 12)
    beta = given.number("init_kl_coef", 0.2) if old else given.number("kl_coef", 0.05)
    adaptive = old and given.switch("adap_kl_ctrl", True)
    charge = Charge(
        where="reward",
        estimator=f"{estimator} per token",
        gradient=gradients.IN_REWARD.get(estimator, gradients.SEQUENCE),
        unit="nats/sequence",
        beta=beta,
        target=given.number("target", 6.0) if adaptive else None,
    )
    if adaptive:
        traps.append(Found(name="controller-lost", here="adap_kl_ctrl"))
    if gradients.IN_REWARD.get(estimator) == gradients.VANISHES:
        traps.append(Found(name="sampled-in-reward", here=f"kl_estimator = {estimator}"))
    return (charge,), traps, None


def _async(given: Given) -> _Said:
    return (), [Found(name="not-this-kl")], "AsyncGRPO has no reference"


def _preference(given: Given) -> _Said:
    kinds = given.settings.get("loss_type", "sigmoid")
    kinds = kinds if isinstance(kinds, list | tuple) else [kinds]
    if given.method in _NO_REFERENCE:
        found = Found(name="no-reference-loss", here=given.method.upper())
        return (), [found], f"{given.method.upper()} has no reference"
    charge = Charge(
        where="preference",
        estimator=f"log-ratios of the pairs ({', '.join(map(str, kinds))})",
        gradient=gradients.IMPLICIT,
        unit=None,
        beta=given.number("beta", 0.1),
    )
    trap = {"dpo": "no-kl-in-dpo", "kto": "kto-baseline", "online_dpo": "padding-in-kl"}[given.method]
    return (charge,), [Found(name=trap)], None


def _reference(given: Given, beta: float | None) -> list[Found]:
    """Where the reference comes from, and whether it survives."""
    found = []
    if given.switch("sync_ref_model"):
        refused = beta == 0 or given.switch("use_peft")
        why = "beta = 0" if beta == 0 else "an adapter"
        found.append(Found(name="sync-refused", here=why) if refused else Found(name="reference-lost"))
    if beta != 0 and given.switch("model is made here") and not given.switch("use_peft"):
        found.append(Found(name="reference-reloaded"))
    return found


def _sampling(given: Given) -> list[Found]:
    shaped = [
        f"{key} = {given.settings[key]}" for key, off in _FILTERS.items() if given.number(key, off) not in (None, off)
    ]
    return [Found(name="filtered-sampling", here=", ".join(shaped))] if shaped else []


_METHODS = {"grpo": _grpo, "rloo": _rloo, "ppo": _ppo, "async_grpo": _async}
