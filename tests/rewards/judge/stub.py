"""A server of the documented wire form on 127.0.0.1 that judges by a rule, and misbehaves as it is told."""

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: body → (verdict → probability); what is not spent on verdicts goes to the token "The".
Rule = Callable[[dict[str, Any]], dict[str, float]]


def longer_wins(body: dict[str, Any]) -> dict[str, float]:
    """By the length of what is fenced off."""
    parts = body["messages"][0]["content"].split("<answer ")
    first, second = (len(part.partition(">\n")[2].partition("\n</answer")[0]) for part in parts[1:3])
    p = 1 / (1 + math.exp((second - first) / 4))
    return {"A": p * 0.8, "B": (1 - p) * 0.8}


@dataclass
class Stub:
    """What it does with the requests to come, by number; beyond the list, what is good. seen: bodies and headers."""

    rule: Rule = longer_wins
    misdeeds: list[str] = field(default_factory=list)
    logprobs: bool = True
    seen: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    silence: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    port: int = 0
    dies_after: int | None = None

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> str:
        with self.lock:
            if len(self.seen) == self.dies_after:
                return "dead"
            self.seen.append((body, headers))
            return self.misdeeds.pop(0) if self.misdeeds else "good"


def completion(body: dict[str, Any], rule: Rule, logprobs: bool) -> dict[str, Any]:
    """As documented for /v1/chat/completions."""
    shares = rule(body)
    rest = max(1 - sum(shares.values()), 1e-9)
    every = sorted({**shares, "The": rest}.items(), key=lambda item: -item[1])
    listed = [{"token": t, "logprob": math.log(max(p, 1e-30)), "bytes": list(t.encode())} for t, p in every]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": every[0][0]},
        "finish_reason": "length",
    }
    if logprobs and body.get("logprobs"):
        choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}
    return {"id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice], "usage": usage}


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            misdeed = stub.next(body, dict(self.headers))
            if misdeed.startswith("HTTP "):
                status, _, more = misdeed.removeprefix("HTTP ").partition(" ")
                self._send(json.dumps({"error": more or "no"}).encode(), int(status), more)
            elif misdeed == "half":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif misdeed == "silent":
                stub.silence.wait(10)
                self.close_connection = True
            elif misdeed == "garbage":
                self._send(b"\x00\xff<html>busy</html>")
            elif misdeed == "dead":
                server.socket.close()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif misdeed.startswith("json "):
                self._send(misdeed.removeprefix("json ").encode())
            else:
                self._send(json.dumps(completion(body, stub.rule, stub.logprobs)).encode())

        def _send(self, content: bytes, status: int = 200, more: str = "") -> None:
            self.send_response(status)
            if more.startswith("after "):
                self.send_header("Retry-After", more.removeprefix("after "))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None: ...  # connections end badly here: that is what it is for

    server = Quiet(("127.0.0.1", stub.port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield stub
    finally:
        stub.silence.set()
        server.shutdown()
        server.server_close()
