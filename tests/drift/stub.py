"""A server of vLLM's documented wire form, on 127.0.0.1, whose numbers are those of a small model; it can misbehave."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

#: Misdeeds whose answers are these very bytes, of which one says that it is longer.
RAW = {"garbage": b"<html>oh no</html>", "half": b'{"choices": [{"prompt_logp', "list": b"[1, 2]", "null": b"null"}


@dataclass
class Stub:
    """model: whose log-probs it gives. misdeed: what it does wrong. seen: the bodies that were posted."""

    model: Any
    misdeed: str = ""
    names: tuple[str, ...] = ("m",)
    failures: int = 0
    status: int = 503
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    url: str = ""

    @torch.no_grad()
    def logprobs(self, ids: list[int]) -> torch.Tensor:
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        choice: dict[str, Any] = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": None}
        if body.get("return_token_ids") and self.misdeed != "no token ids":
            choice |= {"token_ids": self.drawn(ids, body), "finish_reason": "stop"}
        if self.misdeed == "foreign token":
            choice["token_ids"] = [99_999]
        if "prompt_logprobs" in body and self.misdeed not in ("echo only", "generated only"):
            choice["prompt_logprobs"] = self.entries(ids, body["prompt_logprobs"])
        if body.get("echo"):
            own = [None, *(float(row[i]) for row, i in zip(self.logprobs(ids), ids[1:], strict=False)), -0.5]
            choice["logprobs"] = {"token_logprobs": [-0.5] if self.misdeed == "generated only" else own}
        return {"id": "cmpl-1", "object": "text_completion", "model": body["model"], "choices": [choice]}

    def entries(self, ids: list[int], top: int) -> list[Any]:
        found: list[Any] = [None]
        for row, token in zip(self.logprobs(ids), ids[1:], strict=False):
            best = row.topk(min(top, len(row)))
            given = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            if self.misdeed == "renormalised":
                total = torch.tensor(list(given.values())).logsumexp(0)
                given = {i: v - float(total) for i, v in given.items()}
            given.setdefault(token, float(row[token]) if self.misdeed != "renormalised" else -12.0)
            if self.misdeed == "more than one":
                given = {i: v + 1.0 for i, v in given.items()}
            rank = {i: 1 + int((row > row[i]).sum()) for i in given}
            found.append({str(i): {"logprob": v, "rank": rank[i], "decoded_token": f"t{i}"} for i, v in given.items()})
        last: Any = found[-1]
        if self.misdeed == "other form":
            found[-1] = [-0.5]
        if self.misdeed == "no numbers":
            found[-1] = {key: {"logprob": "low"} for key in last}
        if self.misdeed == "nan":
            found[-1] = {key: {"logprob": None} for key in last}
        if self.misdeed == "other tokens":
            return found[:-1]
        if self.misdeed == "own token missing":
            last.pop(str(ids[-1]))
        return found

    def drawn(self, ids: list[int], body: dict[str, Any]) -> list[int]:
        assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, -1, 0.0)
        g = torch.Generator().manual_seed(body["seed"])
        so_far = list(ids)
        for _ in range(body["max_tokens"]):
            so_far.append(int(torch.multinomial(self.logprobs(so_far)[-1].exp(), 1, generator=g)))
        return so_far[len(ids) :]


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub at `stub.url` meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            stub.headers.append(self.headers)
            models = [{"id": name, "object": "model", "max_model_len": 64} for name in stub.names]
            self.answer(200, {"object": "list", "data": models})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.seen.append(body)
            if stub.failures:
                stub.failures -= 1
                self.answer(stub.status, {"error": "loading"})
            elif stub.misdeed in RAW:
                self.send_response(200)
                self.send_header("Content-Length", "400" if stub.misdeed == "half" else str(len(RAW[stub.misdeed])))
                self.end_headers()
                self.wfile.write(RAW[stub.misdeed])
                self.close_connection = True
            elif stub.misdeed == "refuses":
                self.answer(400, {"error": {"message": "Cannot request more than 5 logprobs"}})
            else:
                self.answer(200, stub.completion(body))

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
