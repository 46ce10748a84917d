"""`kleash watch`: is this run healthy, or is it gaming the reward?"""

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kleash.cli.options import AsJson
from kleash.errors import UsageError

if TYPE_CHECKING:
    from kleash.report.watch import Case
    from kleash.report.watch.alerts import Alerts, Channel
    from kleash.report.watch.follow import Follower

#: Seconds between two looks at a log's files.
PAUSE_S = 0.25


def watch(
    paths: Annotated[list[Path], typer.Argument(help="Runs, checkpoints or logs of any trainer; several to compare.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on looking while the run goes on.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="A live page on 127.0.0.1, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: any free one.")] = 8421,
    budget: Annotated[str | None, typer.Option(help='How far is too far: "12 nats/sequence".')] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="What a foreign log's keys mean: reward=KEY,kl_ref=KEY:nats/token")
    ] = None,
    alert: Annotated[
        list[str] | None, typer.Option(help="A webhook to tell of each finding once; trackio: its own alerts.")
    ] = None,
    on_finding: Annotated[list[str] | None, typer.Option(help="A command to run once for each finding.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read a training log of any trainer and say what happened, since when, and which checkpoint to keep.

    Exit code 0: healthy, 1: a warning or an alarm, 2: it cannot be read, or no rule has what it needs.
    """
    from kleash.records import Target
    from kleash.report.watch import again
    from kleash.report.watch.alerts import Alerts
    from kleash.report.watch.follow import Follower
    from kleash.training.interrupt import stopped_code

    ceiling = None if budget is None else Target.parse(budget, "KL budget")
    looking = partial(again, columns=named(columns), budget=ceiling)
    alerts = Alerts(channels(alert, on_finding), lambda text: typer.echo(f"kleash: {text}", err=True))
    try:
        if serve:
            from kleash.report.serve import watch_and_serve

            watch_and_serve(
                [Follower(path, looking) for path in paths], port, lambda at: said(at, as_json), alerts.tell
            )
        if follow:
            cases = keep_looking([Follower(path, looking) for path in paths], alerts, as_json)
        else:
            cases = [looking(path)() for path in paths]
            for case in cases:
                alerts.tell(case)
            show(cases, as_json)
    except KeyboardInterrupt as stop:
        raise typer.Exit(stopped_code(stop)) from None
    finally:
        alerts.close()
    raise typer.Exit(worst(cases))


def said(address: str, as_json: bool) -> None:
    typer.echo(json.dumps({"page": address}) if as_json else f"live page: {address}   (Ctrl-C ends it)")


def channels(alert: list[str] | None, on_finding: list[str] | None) -> "list[Channel]":
    from kleash.report.watch.alerts import Command, Webhook
    from kleash.report.watch.trackio import Trackio

    told = [Trackio() if url == "trackio" else Webhook(url) for url in alert or []]
    return [*told, *(Command(line) for line in on_finding or [])]


def named(columns: list[str] | None) -> Mapping[str, str] | None:
    """["reward=score,kl_ref=kl:nats/token"] → {"reward": "score", "kl_ref": "kl:nats/token"}."""
    pairs = [pair for each in columns or [] for pair in each.split(",")]
    for pair in pairs:
        if not all(part.strip() for part in pair.partition("=")[::2]):
            raise UsageError(f"--columns {pair!r} is no NAME=KEY, like reward=score or kl_ref=my_kl:nats/token")
    return {name.strip(): key.strip() for name, _, key in (pair.partition("=") for pair in pairs)} or None


def worst(cases: "list[Case]") -> int:
    """1 where anything was found, else 2 where anything could not be judged, else 0."""
    codes = {case.exit_code for case in cases}
    return 1 if 1 in codes else max(codes)


def show(cases: "list[Case]", as_json: bool) -> None:
    if as_json:
        from kleash.report.watch.told import record

        told: Any = [record(case) for case in cases]
        typer.echo(json.dumps(told[0] if len(told) == 1 else told))
        return
    from rich.console import Console

    from kleash.report.watch.terminal import WIDTH, block

    console = Console(highlight=False)
    for number, case in enumerate(cases):
        if len(cases) > 1:
            console.print(f"{chr(10) if number else ''}{case.path}", markup=False, style="bold")
        console.print(block(case, min(console.width, WIDTH) if console.is_terminal else WIDTH), soft_wrap=True)


def followed(followers: "list[Follower]", alerts: "Alerts") -> Iterator[None]:
    """Yields whenever there is something new to show; ends when every run has ended."""
    while True:
        new = [follower.poll() for follower in followers]
        if any(new):
            for follower in followers:
                if follower.case:
                    alerts.tell(follower.case)
            yield
        if all(follower.case and follower.case.log.ended for follower in followers):
            return
        time.sleep(PAUSE_S)


def keep_looking(followers: "list[Follower]", alerts: "Alerts", as_json: bool) -> "list[Case]":
    """On a terminal a live view; else the whole summary at each new finding, or JSON, a line a look."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from kleash.report.watch.terminal import WIDTH, standing

    def cases() -> "list[Case]":
        return [each.case for each in followers if each.case]

    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        shown: object = None
        for _ in followed(followers, alerts):
            found = [case.said.findings for case in cases()]
            if cases() and (as_json or found != shown):
                shown = found
                show(cases(), as_json)
        return cases()
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for _ in followed(followers, alerts):
            parts = [standing(each, min(console.width, WIDTH)) for each in followers]
            live.update(Text("\n\n").join(parts), refresh=True)
    return cases()
