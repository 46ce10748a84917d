"""The page of watched logs: live from `kleash watch --serve`, or frozen into one file that needs nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.report import page
from kleash.report.charts import short
from kleash.report.watch import charts, samples, told, words
from kleash.report.watch.case import Case, look
from kleash.report.watch.follow import Follower
from kleash.runlog.findings import dated

TEMPLATE = "watch.html.j2"
#: Characters of a sample beside a finding.
MOST_QUOTED = 400


def write_page(cases: Sequence[Case], path: Path) -> Path:
    """Writes the frozen page and returns its path.

    Raises:
        RunError: it cannot be written.
    """
    return page.write(path, TEMPLATE, **content(cases))


def live(followers: Sequence[Follower], version: int) -> str:
    """The page as it stands now; it asks for the next by itself."""
    cases = [each.case for each in followers if each.case]
    troubles = [f"{each.path}: {each.trouble}" for each in followers if each.trouble]
    return page.render(TEMPLATE, **content(cases, version=version, troubles=troubles))


def content(cases: Sequence[Case], *, version: int | None = None, troubles: Sequence[str] = ()) -> dict[str, Any]:
    """version: of a live page; None: frozen. troubles: what could not be read just now."""
    drawn = charts.groups(cases) if cases else []
    return {
        **page.scripts("hover.js.j2", "watch.js.j2"),
        "connect": "; connect-src 'self'" if version is not None else "",
        "title": ", ".join(case.name for case in cases) or "waiting for a log",
        "version_shown": version,
        "troubles": troubles,
        "runs": [run(case, len(cases) > 1) for case in cases],
        "groups": drawn,
        "browser": samples.browser(cases),
        "number": short,
    }


def run(case: Case, several: bool) -> dict[str, Any]:
    head = words.headline(case)
    lines = [line for line in words.lines(case) if line.label not in ("alarm", "warning", "note", "before", "after")]
    return {
        "name": case.name,
        "several": several,
        "tone": head.tone,
        "headline": head.text,
        "lines": grouped(lines),
        "findings": findings(case),
        "missing": list(words.by_need(case).items()),
        "checkpoints": checkpoints(case),
    }


def findings(case: Case) -> list[dict[str, Any]]:
    """As the page lists them: the samples of both sides with the first that has them, each advice once."""
    told: list[dict[str, Any]] = []
    advised: set[str] = set()
    quoted = False
    for number, one in enumerate(case.said.findings, 1):
        shows = bool(one.before and one.after) and not quoted
        told.append(
            {
                "number": number,
                "severity": one.severity,
                "tone": words.TONES[one.severity],
                "text": one.what,
                "since": dated(one.since, one.within),
                "seen": one.alarm_step if one.alarm_step != one.since else None,
                "sure": one.sure,
                "before": [words.quote(text, MOST_QUOTED) for text in one.before[:2]] if shows else [],
                "after": [words.quote(text, MOST_QUOTED) for text in one.after[:2]] if shows else [],
                "do": [line for line in one.do if line not in advised],
            }
        )
        quoted = quoted or shows
        advised.update(one.do)
    return told


def view(case: Case) -> str:
    """What the monitor says, and the reward and the KL it is said of, for a notebook."""
    drawn = [chart for _, _, found in charts.groups([case]) for chart in found if chart.title in charts.VIEWED]
    return page.view("watch_view.html.j2", run=run(case, several=False), charts=drawn)


def section(run_dir: Path) -> dict[str, Any]:
    """What the monitor says of a run of ours, for the report of that run."""
    try:
        case = look(run_dir)
    except RunError as error:
        return {"headline": f"The monitor cannot read this log: {error}", "tone": "mixed", "findings": [], "lines": []}
    wanted = ("keep", "distrust", "do", "unknown", "record")
    return {
        "headline": words.headline(case).text,
        "tone": words.headline(case).tone,
        "findings": findings(case),
        "lines": grouped([line for line in words.lines(case) if line.label in wanted]),
    }


def grouped(lines: Sequence[words.Line]) -> list[tuple[str, list[words.Line]]]:
    """Lines under their label, which is written once."""
    found: list[tuple[str, list[words.Line]]] = []
    for line in lines:
        if found and line.label in ("", found[-1][0]):
            found[-1][1].append(line)
        else:
            found.append((line.label, [line]))
    return found


def checkpoints(case: Case) -> list[dict[str, Any]]:
    """Each with its KL, what is thought of it, and the command that compares it with the last clean one."""
    clean, suspect = case.said.clean, set(case.said.suspect)
    rows = []
    for saved, (step, _, kl) in zip(case.log.checkpoints, told.checkpoints(case), strict=True):
        bad = saved.path in suspect
        keep = saved.path == clean
        rows.append(
            {
                "step": step,
                "name": words.shown(saved.path),
                "kl": kl,
                "judged": "distrust" if bad else "keep" if keep else "",
                "tone": "bad" if bad else "good" if keep else "",
                "command": words.drift_command(case, suspect=saved.path) if bad else None,
            }
        )
    return rows
