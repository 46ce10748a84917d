"""One price of the KL in the words of another library, and at another length.

The common unit is β of E[R] − β·KL(policy‖reference) over whole answers: reward lost per nat. In a loss where the
policy gradient and the KL have the same normaliser (token mean, sequence mean, a constant) the normaliser falls out:
beta is that β there, but for the reward's division by its spread and the sample's own share in its group's mean.
"""

from dataclasses import dataclass

from kleash.check.records import Checked, Number
from kleash.errors import UsageError

TARGETS = ("trl", "verl", "openrlhf", "kleash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """lines: settings of the other library. beta: reward per nat of an answer of `length` tokens."""

    to: str
    beta: float
    length: float
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def convert(checked: Checked, to: str, length: Number | None = None, reward_std: Number | None = None) -> Converted:
    """The config's leash for the library `to`.

    length: answers of so many tokens there. The price of a nat per token is kept, β·length, so that the KL per token
    that a reward buys stays what it was. reward_std: the reward's spread within a group, where beta is in units of it.

    Raises:
        UsageError: nothing is charged, the beta is not in the file, or the library is unknown.
    """
    if to not in TARGETS:
        raise UsageError(f"--to {to!r} is no library this converts to: {', '.join(TARGETS)}")
    if not checked.charges:
        raise UsageError(f"there is no beta to convert: {checked.off}")
    charge = checked.charges[0]
    price = charge.per_sequence(reward_std)
    if price is None:
        raise UsageError("there is no beta to convert: the file does not tell it (it is decided when the script runs)")
    there = checked.length if length is None else float(length)
    beta = price * checked.length / there
    target = _target(checked, there)
    notes = []
    if charge.spread and reward_std is None:
        notes.append("this beta is in spreads of the reward per nat: say --reward-std for one in units of the reward")
    if length is not None and length != checked.length:
        notes.append(f"at {length:g} tokens instead of {checked.length:g} the price of a nat per token is kept")
    if charge.where == "preference":
        notes.append(
            "a pair loss's beta prices its own implicit reward: as a leash on another reward it is a first guess"
        )
    if len(checked.charges) > 1:
        notes.append("of two charges the first is converted")
    return Converted(to=to, beta=beta, length=there, lines=_LINES[to](beta, target), notes=tuple(notes))


def _target(checked: Checked, length: Number) -> tuple[float, float] | None:
    """The config's target as (nats per token, nats per sequence at `length`)."""
    charge = checked.charges[0]
    if charge.target is None:
        return None
    per_token = charge.target / (checked.length if charge.unit == "nats/sequence" else 1.0)
    return per_token, per_token * length


_Target = tuple[float, float] | None


def _trl(beta: float, target: _Target) -> tuple[str, ...]:
    held = "" if target is None else f'   # and kleash.plug.trl.Leash(target="{target[1]:.4g} nats/sequence")'
    return (
        f"RLOOConfig(beta={beta:.4g}){held}",
        f'GRPOConfig(beta=G1 * {beta:.4g}, scale_rewards="none")   # G1 = 1 - 1/num_generations',
    )


def _verl(beta: float, target: _Target) -> tuple[str, ...]:
    lines = ("algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl", f"algorithm.kl_ctrl.kl_coef={beta:.4g}")
    held = () if target is None else (f"algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.target_kl={target[0]:.4g}",)
    return (*lines, *held)


def _openrlhf(beta: float, target: _Target) -> tuple[str, ...]:
    held = () if target is None else (f"--algo.kl.target {target[0]:.4g}",)
    return (f"--algo.kl.init_coef {beta:.4g} --algo.kl.estimator k1 --algo.advantage.estimator rloo", *held)


def _kleash(beta: float, target: _Target) -> tuple[str, ...]:
    if target is None:
        return ("[kl]", f"beta = {beta:.4g}")
    return ("[kl]", f'target = "{target[1]:.4g} nats/sequence"', f"beta = {beta:.4g}   # where the controller starts")


_LINES = {"trl": _trl, "verl": _verl, "openrlhf": _openrlhf, "kleash": _kleash}
