"""The live page as a client sees it: what is served, to whom, and how soon a log's new row is there."""

import html
import http.client
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.report.logs import gamed, healthy, write_csv

from kleash.errors import RunError
from kleash.report.serve import Board, served
from kleash.report.watch import again
from kleash.report.watch.follow import Follower


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """A server whose board looks as `kleash watch --serve` has it look."""
    with served([Follower(path, again) for path in paths], 0) as (address, board):
        done = threading.Event()
        looking = threading.Thread(target=keep_looking, args=(board, done))
        looking.start()
        try:
            yield address
        finally:
            done.set()
            looking.join()


def keep_looking(board: Board, done: threading.Event) -> None:
    while not done.wait(0.25):
        board.look()


def get(address: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=5) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def test_the_page_has_the_run_and_its_rules_for_a_browser(tmp_path: Path) -> None:
    with serving(write_csv(gamed(), tmp_path / "run.csv")) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        code, text, headers = get(address)
        assert code == 200 and "GAMING THE REWARD" in text and 'data-version="1"' in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert re.search(r"script-src 'sha256-[^']+'", text) and "connect-src 'self'" in html.unescape(text)
        assert get(address + "etc/passwd")[0] == 404 and get(address + "../../etc/passwd")[0] == 404


def test_another_name_for_this_machine_is_turned_away(tmp_path: Path) -> None:
    with serving(write_csv(healthy(), tmp_path / "run.csv")) as address:
        port = urlsplit(address).port
        assert get(address, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example"):
            code, text, _ = get(address, Host=host)
            assert code == 421 and "HEALTHY" not in text
            assert get(address + "events", Host=host)[0] == 421


def test_nothing_but_reading_is_possible(tmp_path: Path) -> None:
    with serving(write_csv(healthy(), tmp_path / "run.csv")) as address:
        request = urllib.request.Request(address, b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=5)


def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(RunError, match=f"cannot serve on port {port} of 127.0.0.1: .* --port 0"), served([], port):
            pass


def messages(stream: http.client.HTTPResponse) -> Iterator[str]:
    for line in stream:
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


def test_a_new_row_is_on_the_page(tmp_path: Path) -> None:
    log = healthy(steps=1000)
    path = write_csv(log, tmp_path / "run.csv", rows=990)
    with serving(path) as address:
        stream = urllib.request.urlopen(address + "events?since=1", timeout=10)
        told = messages(stream)
        for rows in (991, 995, 1000):
            time.sleep(1.2)  # what looking may take of the time is spent
            write_csv(log, tmp_path / "next.csv", rows=rows).replace(path)
            next(told)
            assert f"{rows:,} rows" in get(address)[1]
        stream.close()


def test_who_comes_late_is_told_at_once(tmp_path: Path) -> None:
    with serving(write_csv(healthy(), tmp_path / "run.csv")) as address:
        with urllib.request.urlopen(address + "events?since=0", timeout=5) as stream:
            assert next(messages(stream)) == "1"
        with urllib.request.urlopen(address + "events?since=junk", timeout=5) as stream:
            assert next(messages(stream)) == "1"


def test_a_run_that_has_not_begun_has_a_page_too(tmp_path: Path) -> None:
    with serving(tmp_path / "later.csv") as address:
        assert "There is no log yet" in get(address)[1]
        write_csv(healthy(), tmp_path / "later.csv")
        end = time.monotonic() + 10
        while "HEALTHY" not in get(address)[1] and time.monotonic() < end:
            time.sleep(0.1)
        assert "HEALTHY" in get(address)[1]
