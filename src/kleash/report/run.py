"""The report of one run: `report.html` in its directory, made from its log alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kleash.report import figures, page, samples, words
from kleash.report.charts import standalone
from kleash.report.log import Log, load
from kleash.report.toml import toml
from kleash.report.watch import page as watched
from kleash.runlog import Found, Notice, Rollback

#: What a notebook shows of a report: charts by title, and so many prompts.
VIEWED = ("KL to the reference", "Score")
VIEWED_PROMPTS = 3


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into the run directory and returns its path.

    Raises:
        RunError: no readable log there, no step in it yet, or the page cannot be written.
    """
    log = load(run_dir)
    return page.write(
        run_dir / "report.html",
        "run.html.j2",
        **page.scripts("hover.js.j2", "watch.js.j2"),
        **head(run_dir, log),
        groups=figures.groups(log),
        samples=samples.over_time(log.samples),
        notices=notices(log),
        facts=facts(log),
        config=toml(log.start.config) if log.start else "",
        again=again(log),
    )


def view(run_dir: Path) -> str:
    """The run for a notebook: its KL and its score, what the monitor says, a few samples.

    Raises:
        RunError: no readable log there, or no step in it yet.
    """
    log = load(run_dir)
    drawn = [chart for _, _, charts in figures.groups(log) for chart in charts if chart.title in VIEWED]
    table = samples.over_time(log.samples)
    few = replace(table, rows=table.rows[:VIEWED_PROMPTS])
    return page.view("run_view.html.j2", **head(run_dir, log), charts=drawn, samples=few)


def head(run_dir: Path, log: Log) -> dict[str, Any]:
    return {
        "watched": watched.section(run_dir),
        "title": log.name,
        "verdict": words.verdict(log),
        "ending": words.ending(log),
        "tiles": words.tiles(log),
    }


def write_charts(run_dir: Path) -> list[Path]:
    """Writes every chart of the report as an SVG file into `charts/` of the run directory, for papers and slides."""
    log, folder = load(run_dir), run_dir / "charts"
    folder.mkdir(exist_ok=True)
    written = []
    for _, _, drawn in figures.groups(log):
        for chart in drawn:
            name = "-".join("".join(c if c.isalnum() else " " for c in chart.title.lower()).split())
            written.append(folder / f"{name}.svg")
            written[-1].write_text(standalone(chart), encoding="utf-8")
    return written


def notices(log: Log) -> list[dict[str, str]]:
    said = [{"where": place(notice.step), "text": text(notice)} for notice in log.notices]
    held = [step for step in log.steps if step.controller_held]
    if held:
        last = held[-1]
        said.append(
            {"where": place(last.step), "text": f"beta was held in {len(held)} steps; last: {last.controller_held}"}
        )
    unscored = sum(step.unscored for step in log.steps)
    if unscored:
        said.append({"where": "all steps", "text": f"{unscored} samples got no score; they left the loss."})
    return said


def text(notice: Notice | Rollback | Found) -> str:
    if isinstance(notice, Notice):
        return notice.text
    if isinstance(notice, Found):
        found = notice.finding
        done = "" if notice.action == "warn" else f" ({notice.action})"
        return f"{found.headline} since step {found.since}: {found.what}{done}"
    return (
        f"{notice.why}: from step {notice.from_step} the run went back to here (rollback {notice.number}); the "
        f"learning rate is {notice.learning_rate:g} from here on"
    )


def again(log: Log) -> str:
    """How to use the config: as a file, unless the prompts or rewards exist only in a Python session."""
    prompts = at(log.start.config if log.start else {}, "data", "prompts")
    if prompts == "(given in Python)":
        return "The run was started from Python, with its prompts and rewards; these are its settings."
    return "Save this as run.toml, then: kleash train run.toml"


def place(step: int | None) -> str:
    return "before the first step" if step is None else f"step {step}"


def facts(log: Log) -> list[tuple[str, str]]:
    """What was run, with what: names and values for a definition list; what is unknown is left out."""
    config = log.start.config if log.start else {}
    last = log.steps[-1]
    found: list[tuple[str, Any]] = [
        ("Model", at(config, "model", "policy")),
        ("Reference", at(config, "model", "reference")),
        ("Algorithm", kind(at(config, "algorithm"))),
        ("KL penalty", kind(at(config, "kl", "penalty"))),
        ("Controller", kind(at(config, "kl", "controller"))),
        ("Target", log.target),
        ("Budget", last.budget),
        ("KL at the end", both_units(log)),
        ("Held out", held_out(log)),
        ("Rewards", ", ".join(str(at(reward, "use")) for reward in at(config, "rewards") or []) or None),
        ("Seed", at(config, "train", "seed")),
        ("Started", log.start.started if log.start else None),
        ("Time", clock(sum(step.seconds.get("total", 0.0) for step in log.steps))),
        ("Peak memory", f"{last.peak_memory_gb:.2f} GB" if last.peak_memory_gb is not None else None),
        ("Checkpoints", ", ".join(Path(checkpoint.path).name for checkpoint in log.checkpoints) or None),
    ]
    if log.start:
        versions = ", ".join(f"{name} {version}" for name, version in log.start.versions.items())
        found.append(("Versions", versions or None))
        found += [(f"Fingerprint, {name}", fingerprint(value)) for name, value in log.start.fingerprints.items()]
        found.append(("Command", " ".join(log.start.argv) or None))
    return [(name, str(value)) for name, value in found if value is not None]


def both_units(log: Log) -> str | None:
    last = log.steps[-1]
    readings = [reading for reading in (last.kl_ref, last.kl_ref_token) if reading]
    parts = []
    for reading in readings:
        error = "" if reading.standard_error is None else f" ± {reading.standard_error:.2g}"
        parts.append(f"{reading.value:.4g}{error} {reading.unit}")
    if readings:
        first = readings[0]
        counts = f"{first.n_prompts} prompts, {first.n_sequences} sequences, {first.n_tokens} tokens"
        parts.append(f"({first.direction}, {first.estimator}; {counts}; ± one standard error)")
    return "  ".join(parts) or None


def held_out(log: Log) -> str | None:
    """The last evaluation in a line."""
    if not log.evaluations:
        return None
    last = log.evaluations[-1]
    error = "" if last.score_error is None else f" ± {last.score_error:.2g}"
    score = "no score" if last.score is None else f"score {last.score:.4g}{error}"
    return f"{score} after {last.step} steps ({last.n_prompts} prompts, {last.how}; ± one standard error)"


def at(tree: Any, *keys: str) -> Any:
    """The value under nested keys, None where the way ends."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def kind(component: Any) -> str | None:
    """{"kind": "grpo", "group_size": 8} → "grpo (group_size 8)"."""
    if not isinstance(component, Mapping):
        return None if component is None else str(component)
    rest = ", ".join(f"{key} {value}" for key, value in component.items() if key != "kind" and value is not None)
    name = str(component.get("kind", ""))
    return f"{name} ({rest})" if rest else name


def fingerprint(value: Any) -> str:
    """Hashes by their first 12 digits; the whole ones are in the log."""
    if not isinstance(value, Mapping):
        return str(value)[:12] if len(str(value)) > 40 else str(value)
    return ", ".join(f"{key} {fingerprint(item)}" for key, item in value.items() if item is not None)


def clock(seconds: float) -> str | None:
    if seconds <= 0:
        return None
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds % 60:.0f} s"
