"""A log that changes under the eyes of its reader, and whoever is told of what was found."""

import gzip
import json
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.report.logs import found, healthy, write_csv

from kleash.errors import UsageError
from kleash.report.watch import again, look
from kleash.report.watch.alerts import Alerts, Channel, Command, Webhook
from kleash.report.watch.follow import Follower
from kleash.report.watch.terminal import standing
from kleash.report.watch.trackio import Trackio

FIXTURES = Path(__file__).parents[1] / "runlog" / "fixtures"


def rows(follower: Follower) -> int:
    assert follower.case is not None
    return len(follower.case.log.step)


def test_it_looks_when_the_log_grows_shrinks_or_is_replaced(tmp_path: Path) -> None:
    log, path = healthy(), tmp_path / "log.csv"
    follower = Follower(path, again)
    assert follower.poll() and "there is no" in str(follower.trouble)
    assert not follower.poll()
    write_csv(log, path, rows=20)
    first = Follower(path, again)
    assert follower.poll() and first.poll() and rows(follower) == rows(first) == 20  # two at one log
    assert not follower.poll()
    for count in (50, 30, 60):
        new = write_csv(log, tmp_path / "new.csv", rows=count)
        if count == 60:
            new.replace(path)
        else:
            path.write_text(new.read_text())
        follower._not_before = 0.0
        assert follower.poll() and rows(follower) == count


def test_what_cannot_be_read_for_a_moment_keeps_the_last_look(tmp_path: Path) -> None:
    path = write_csv(healthy(), tmp_path / "log.csv", rows=20)
    follower = Follower(path, again)
    follower.poll()
    path.write_text("")
    follower._not_before = 0.0
    assert follower.poll() and rows(follower) == 20
    assert "not read anew: " in standing(follower).plain and "HEALTHY" in standing(follower).plain
    path.unlink()
    follower._not_before = 0.0
    assert follower.poll() and "there is no" in str(follower.trouble)


def test_a_directory_is_looked_at_down_to_its_checkpoints(tmp_path: Path) -> None:
    from kleash.report.watch.follow import signature

    deep = tmp_path / "runs" / "today" / "host"
    deep.mkdir(parents=True)
    before = signature(tmp_path)
    (deep / "events.out.tfevents.1").write_bytes(b"x")
    assert signature(tmp_path) != before
    (deep / "down").mkdir()
    (deep / "down" / "far").write_bytes(b"x")
    assert len(signature(tmp_path)) == 1


# ── alerts ─────────────────────────────────────────────────────────────────────────────────────────────────


def told(channels: list[Channel]) -> list[str]:
    """Twice the same look; what went wrong."""
    said: list[str] = []
    alerts = Alerts(channels, said.append)
    for _ in range(2):
        alerts.tell(found())
    alerts.close()
    return said


def test_a_webhook_hears_of_each_finding_once() -> None:
    heard: list[dict] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert told([Webhook(f"http://127.0.0.1:{server.server_port}/secret")]) == []
        server.shutdown()
    grave = found().grave
    assert [one["finding"]["rule"] for one in heard] == [finding.rule for finding in grave]
    assert heard[0]["text"].startswith("kleash watch outputs: alarm: GAMING THE REWARD. step 1")


def test_a_command_gets_the_finding_as_data(tmp_path: Path) -> None:
    out = tmp_path / "told"
    program = tmp_path / "take.py"
    program.write_text(
        "import json, os, sys\n"
        f"open({str(out)!r}, 'a').write(json.load(sys.stdin)['rule'] + '|' + os.environ['KLEASH_SEVERITY'] + '\\n')\n"
    )
    assert told([Command(f"{sys.executable} {program}")]) == []
    grave = found().grave
    assert out.read_text().splitlines() == [f"{finding.rule}|{finding.severity}" for finding in grave]


def test_a_failure_is_said_and_holds_no_secret() -> None:
    said = told([Command("exit 3"), Webhook("http://127.0.0.1:9/token-of-mine")])
    assert any("ended with code 3" in line for line in said)
    assert any("the webhook at 127.0.0.1 was not told" in line for line in said)
    assert not any("token-of-mine" in line for line in said)


def test_an_address_that_is_none_is_refused() -> None:
    for address in ("file:///etc/passwd", "example.org/hook", "https://"):
        with pytest.raises(UsageError, match="is no address"):
            Webhook(address)


def test_trackio_shows_each_finding_once_whoever_watches(tmp_path: Path) -> None:
    """In a database that trackio 0.43 itself wrote; the alerts belong to the run that the importer reads."""
    path = tmp_path / "project.db"
    path.write_bytes(gzip.decompress((FIXTURES / "trackio" / "run.db.gz").read_bytes()))
    watched = look(path)
    one = replace(found(), path=path, log=replace(found().log, path=watched.log.path))
    for _ in range(2):
        for finding in one.grave:
            Trackio().tell(one, finding)
    with closing(sqlite3.connect(path)) as database:
        there = database.execute("SELECT run_id, run_name, title, level, step FROM alerts ORDER BY id").fetchall()
    levels = {"alarm": "error", "warning": "warn"}
    assert there == [("second", "second", f.headline, levels[f.severity], f.alarm_step) for f in one.grave]
    assert len(look(path).log.step) == len(watched.log.step)


def test_trackio_is_refused_for_what_is_no_database() -> None:
    assert any("--alert trackio writes into the database" in line for line in told([Trackio()]))
