"""The live page of watched logs, on this machine alone: the standard library's server, pages and one stream of events.

It listens on 127.0.0.1, answers only what is asked of that name (a page elsewhere that has its own name point here is
turned away), changes nothing and reads no path from a request.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

from kleash.errors import RunError
from kleash.report.watch.case import Case
from kleash.report.watch.follow import Follower
from kleash.report.watch.page import live

HOST = "127.0.0.1"
#: Seconds between two looks at the logs' files, and between two signs of life to a page.
PAUSE_S, ALIVE_S = 0.25, 10.0
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
#: The page's own policy, in the page, names its script; this one holds for whatever else might be answered.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
POLICY += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Board:
    """The newest page, and who waits for the next."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self.followers = followers
        self._changed = threading.Condition()
        self._version, self._page = 0, ""
        self.ended = False

    def look(self) -> bool:
        """Looks at every log; whether there is a new page."""
        new = [follower.poll() for follower in self.followers]
        if not any(new) and self._version:
            return False
        page = live(self.followers, self._version + 1)
        with self._changed:
            self._version, self._page = self._version + 1, page
            self._changed.notify_all()
        return True

    def page(self) -> str:
        with self._changed:
            return self._page

    def end(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def after(self, version: int) -> int | None:
        """Waits for a version beyond this one; None: no news so far."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self._version != version, timeout=ALIVE_S)
            return self._version if self._version != version else None


class Handler(BaseHTTPRequestHandler):
    """GET / is the page, GET /events the stream; all else is not here."""

    protocol_version = "HTTP/1.1"
    board: Board
    names: tuple[str, ...] = ()

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if self.headers.get("Host") not in self.names:
            self.answer(421, "This page is for the machine it runs on: open the address that kleash printed.\n")
        elif asked.path == "/":
            self.answer(200, self.board.page(), "text/html")
        elif asked.path == "/events":
            since = parse_qs(asked.query).get("since", [""])[0]
            self.stream(int(since) if since.isascii() and since.isdigit() else 0)
        else:
            self.answer(404, "There is nothing here.\n")

    def answer(self, code: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", errors="backslashreplace")
        self.start(code, kind, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def stream(self, version: int) -> None:
        """Each new version as a message, a comment now and then so that a page that has gone is noticed."""
        self.close_connection = True
        self.start(200, "text/event-stream", {"Connection": "close"})
        with suppress(OSError):  # the page has gone
            while not self.board.ended:
                newer = self.board.after(version)
                self.wfile.write(b": alive\n\n" if newer is None else f"data: {newer}\n\n".encode())
                version = version if newer is None else newer

    def start(self, code: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(code)
        policy = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": POLICY}
        for name, value in (HEADERS | policy | more).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for findings."""


@contextmanager
def served(followers: Sequence[Follower], port: int) -> Iterator[tuple[str, Board]]:
    """The page's address while it is served, and its board, which the caller has look.

    Raises:
        RunError: the port is taken, or may not be had.
    """
    board = Board(followers)
    handler = type("Handler", (Handler,), {"board": board})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
        handler.names = tuple(f"{name}:{server.server_port}" for name in (HOST, "localhost"))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"cannot serve on port {port} of {HOST}: {why}; choose another with --port, or --port 0 for any free one"
        ) from error
    server.daemon_threads = True
    board.look()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/", board
    finally:
        board.end()
        server.shutdown()
        server.server_close()


def watch_and_serve(
    followers: Sequence[Follower], port: int, say: Callable[[str], None], found: Callable[[Case], None]
) -> NoReturn:
    """Until Ctrl-C. say: told the address once. found: told every new look."""
    with served(followers, port) as (address, board):
        say(address)
        new, pause = True, threading.Event()
        while True:
            if new:
                for follower in followers:
                    if follower.case:
                        found(follower.case)
            pause.wait(PAUSE_S)
            new = board.look()
