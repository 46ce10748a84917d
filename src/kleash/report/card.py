"""The model card of an exported model: what it was made from, how, and how far it moved. Markdown, from a run's log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.records import Reading
from kleash.report.run import at, kind
from kleash.report.toml import toml
from kleash.runlog import Evaluation, OfflineEvaluation, RunStart, read
from kleash.runlog.schema import current, last_of_each_step, offline_evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that a checkpoint came from, and after how many updates."""

    run: Path
    step: int


def card(title: str, *, base: str | None, export: Mapping[str, str], origin: Origin | None, drift: str | None) -> str:
    """The text of README.md.

    Args:
        base: hub id or name of the model it was made from, where it is known.
        export: how it was exported, by name.
        drift: the block that `kleash drift` wrote for cards.
    """
    start, rows, config = _of_run(origin)
    base = _text(at(config, "model", "policy")) or base
    parts = [_front(base), f"# {_plain(title)}", ""]
    if start is not None:
        verb = "reinforcement learning on a KL leash" if start.verb == "train" else f"`kleash {start.verb}`"
        parts.append(f"Made from {_code(base)} by {verb}, with kleash {start.versions.get('kleash', '')}.")
    else:
        parts.append(f"Exported with kleash{'' if base is None else f' from {_code(base)}'}.")
    parts += ["", *_table([*rows, *export.items()])]
    if drift is not None:
        parts += ["", "## Drift from its base", "", drift.strip()]
    if start is not None:
        parts += ["", "## Recipe", "", "```toml", toml(config).strip(), "```"]
    return "\n".join(parts) + "\n"


def _of_run(origin: Origin | None) -> tuple[RunStart | None, list[tuple[str, str]], dict[str, Any]]:
    if origin is None:
        return None, [], {}
    events = current(read(origin.run / "events.jsonl"))
    start = next((event for event in reversed(events) if isinstance(event, RunStart)), None)
    config = {} if start is None else start.config
    rows = [("updates", str(origin.step))]
    for name, value in (
        ("algorithm", kind(at(config, "algorithm")) or kind(at(config, "loss"))),
        ("KL penalty", kind(at(config, "kl", "penalty"))),
        ("KL target", _text(at(config, "kl", "target"))),
        ("KL budget", _text(at(config, "kl", "budget"))),
        ("rewards", ", ".join(str(at(reward, "use")) for reward in at(config, "rewards") or []) or None),
    ):
        rows += [] if value is None else [(name, value)]
    return start, [*rows, *_measured(events, origin.step)], config


def _measured(events: Sequence[Any], step: int) -> list[tuple[str, str]]:
    """What the log says of the policy after `step` updates, and of the one it began as."""
    online = {record.step: record for record in last_of_each_step(events)}
    held_out = {event.step: event for event in events if isinstance(event, Evaluation)}
    offline = {event.step: event for event in offline_evaluations(events)}
    rows: list[tuple[str, str]] = []
    measured = held_out.get(step) or offline.get(step) or online.get(step)
    for unit in ("kl_ref", "kl_ref_token"):
        reading = getattr(measured, unit, None)
        rows += [] if reading is None else [(f"KL from the reference, {reading.unit}", _reading(reading))]
    if step in online and online[step].score is not None:
        rows.append(("training score", _change(online.get(0), online[step], "score")))
    if step in held_out and held_out[step].score is not None:
        rows.append(("held-out score", _change(held_out.get(0), held_out[step], "score")))
    if step in offline:
        rows += _offline(offline.get(0), offline[step])
    return rows


def _offline(first: OfflineEvaluation | None, last: OfflineEvaluation) -> list[tuple[str, str]]:
    where = "held-out" if getattr(last, "held_out", True) else "training"  # only pairs say which
    return [
        (f"{where} {name}", _change(first, last, name))
        for name in ("loss", "accuracy")
        if getattr(last, name, None) is not None
    ]


def _change(first: Any, last: Any, name: str) -> str:
    error = getattr(last, f"{name}_error", None)
    said = f"{getattr(last, name):.4g}" + ("" if error is None else f" ± {error:.2g}")
    before = getattr(first, name, None)
    return said if before is None or first is last else f"{before:.4g} → {said}"


def _reading(reading: Reading) -> str:
    error = "" if reading.standard_error is None else f" ± {reading.standard_error:.2g}"
    return f"{reading.value:.4g}{error} ({reading.estimator}, {reading.n_sequences} samples, {reading.direction})"


def _front(base: str | None) -> str:
    """YAML that the hub reads; a local path is nobody's base there."""
    lines = ["---", "library_name: transformers", "tags:", "- kleash"]
    if base is not None and not base.startswith(("kleash:", ".", "/", "~")) and base.count("/") == 1:
        lines.append(f"base_model: {base}")
    return "\n".join([*lines, "---", ""])


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {_plain(name)} | {_plain(value)} |" for name, value in rows)]


def _plain(text: str) -> str:
    """Inside a table: a bar or a line's end would break it, and HTML would be run by whoever shows it."""
    for raw, shown in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(raw, shown)
    return text


def _code(text: str | None) -> str:
    return "a model" if text is None else f"`{_plain(text).replace('`', '')}`"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
