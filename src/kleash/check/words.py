"""What `kleash check` prints, and its JSON."""

from dataclasses import asdict
from typing import Any

from kleash.check.convert import Converted
from kleash.check.records import Charge, Checked, Number
from kleash.check.traps import TRAPS

_ORDER = {"alarm": 0, "warning": 1, "note": 2}
_WHERE = {"reward": "in the reward", "loss": "in the loss", "preference": "in the pairs' loss"}


def failed(checked: list[Checked]) -> bool:
    """Whether any trap is a warning or an alarm."""
    return any(TRAPS[trap.name].severity != "note" for one in checked for trap in one.traps)


def text(checked: Checked, reward_std: Number | None) -> str:
    given = checked.given
    version = ".".join(map(str, given.version))
    lines = [f"{given.place}: {given.library} {given.method.upper()}, defaults of {given.library} {version}"]
    if checked.off:
        lines.append(_row("KL", f"none is charged: {checked.off}"))
    else:
        lines += [line for charge in checked.charges for line in _charge(charge, checked, reward_std)]
    lines += [_row("note", note) for note in checked.notes]
    for trap in sorted(checked.traps, key=lambda trap: _ORDER[TRAPS[trap.name].severity]):
        known = TRAPS[trap.name]
        here = f" ({trap.here})" if trap.here else ""
        lines += [_row(known.severity, f"{trap.name}{here}: {known.what}"), _row("", f"do: {known.do}")]
    return "\n".join(lines)


def _charge(charge: Charge, checked: Checked, reward_std: Number | None) -> list[str]:
    logged = f"; logged in {charge.unit}" if charge.unit else "; no KL is logged"
    lines = [
        _row("KL", f"policy‖reference {_WHERE[charge.where]}, {charge.estimator}{logged}"),
        _row("gradient", charge.gradient),
    ]
    price = charge.per_sequence(reward_std)
    if price is None:
        return [*lines, _row("beta", "not told by the file")]
    unit = "spreads of the reward" if charge.spread and reward_std is None else "of reward"
    lines.append(_row("beta", f"{charge.beta:.4g}: {price:.4g} {unit} per nat of an answer,"))
    per_token = (
        f"{price * checked.length:.4g} {unit} per nat/token at {checked.length:g} tokens ({checked.length_said})"
    )
    lines.append(_row("", per_token))
    if charge.target is not None:
        per_sequence = charge.target * (checked.length if charge.unit == "nats/token" else 1)
        lines.append(
            _row("target", f"{per_sequence / checked.length:.4g} nats/token, {per_sequence:.4g} nats/sequence")
        )
    return lines


def _row(name: str, said: str) -> str:
    return f"  {name:9} {said}"


def converted_text(converted: Converted) -> str:
    lines = [f"in {converted.to}, {converted.beta:.4g} per nat of an answer of {converted.length:g} tokens:"]
    return "\n".join([*lines, *(f"  {line}" for line in converted.lines), *(f"  ({note})" for note in converted.notes)])


def told(checked: Checked, reward_std: Number | None, converted: Converted | None) -> dict[str, Any]:
    """For --json."""
    given = checked.given
    return {
        "library": given.library,
        "method": given.method,
        "place": given.place,
        "version": ".".join(map(str, given.version)),
        "off": checked.off,
        "length": checked.length,
        "kl": [
            asdict(charge)
            | {"beta_per_sequence": (price := charge.per_sequence(reward_std))}
            | {"beta_per_token": None if price is None else price * checked.length}
            for charge in checked.charges
        ],
        "traps": [{"name": t.name, "here": t.here} | asdict(TRAPS[t.name]) for t in checked.traps],
        "notes": list(checked.notes),
        "converted": None if converted is None else asdict(converted),
    }
