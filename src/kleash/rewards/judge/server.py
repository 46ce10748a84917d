"""A judge behind an OpenAI-compatible server: vLLM, llama.cpp, Ollama, `transformers serve`, or somebody's own.

Asked through /chat/completions, several questions at a time. Where the server gives `top_logprobs` the verdict is a
probability; where it does not, its text is read strictly. Tries are repeated with growing, jittered waits, and
Retry-After is honoured. A key is read from the environment, and is in nothing that is said or written.
"""

import email.utils
import ipaddress
import json
import math
import os
import random
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from kleash.errors import RunError, UsageError
from kleash.rewards.judge.answers import Said, parsed
from kleash.rewards.judge.questions import Question
from kleash.rewards.judge.spec import JudgeSpec

#: Seconds before the second try; they double with each, up to the longest. A Retry-After above that is a failure.
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0
#: Bytes of a response beyond which it is not read: a verdict is short.
MOST_BYTES = 4_000_000
#: Of the most likely tokens, as many as servers give.
TOP = 20
SILENT, ABSENT, HALF = "no answer in time", "no connection", "half a response"
_WORTH_ANOTHER_TRY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_NO_USE = {401, 403, 404, 405}


class _Failed(NamedTuple):
    """why: in a few words. wait: what the server asked for. final: another try would end the same."""

    why: str
    wait: float | None = None
    final: bool = False


@dataclass(frozen=True)
class Server:
    """Where it is, and how it is asked. key: None for a server that wants none."""

    url: str
    spec: JudgeSpec
    key: str | None = None

    def __repr__(self) -> str:
        return f"Server({self.url!r}, {self.spec.model!r})"  # without the key

    @classmethod
    def at(cls, url: str, spec: JudgeSpec) -> "Server":
        """The server with the key of the environment.

        Raises:
            UsageError: the variable that should hold the key is not set.
        """
        key = os.environ.get(spec.api_key_env) if spec.api_key_env else None
        if spec.api_key_env and not key:
            raise UsageError(f"judge: the environment variable {spec.api_key_env}, named by api_key_env, is not set")
        return cls(url.rstrip("/"), spec, key)

    @property
    def identity(self) -> dict[str, Any]:
        spec = self.spec
        settings = {"temperature": spec.temperature, "max_tokens": spec.max_tokens}
        return {"url": self.url, "model": spec.model} | settings

    def ask(self, questions: Sequence[Question]) -> Generator[tuple[int, Said]]:
        """As they are answered. A question that could not be asked is a failure; the others go on.

        Raises:
            RunError: the server refuses every question: a wrong key, address or model.
        """
        stop, gone = threading.Event(), threading.Event()
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx2.Limits(max_connections=self.spec.concurrency)
        client = httpx2.Client(
            headers=headers, timeout=self.spec.timeout_s, limits=limits, trust_env=not _here(self.url)
        )
        waiting: SimpleQueue[int] = SimpleQueue()
        answered: SimpleQueue[tuple[int, Said | BaseException]] = SimpleQueue()

        def work() -> None:
            with suppress(Empty):
                while not stop.is_set():
                    i = waiting.get_nowait()
                    try:
                        answered.put((i, self._one(client, questions[i], stop, gone)))
                    except BaseException as error:
                        answered.put((i, error))

        for i in range(len(questions)):
            waiting.put(i)
        # daemons: a process that is told to stop does not wait for a server that says nothing
        for _ in range(min(self.spec.concurrency, len(questions))):
            threading.Thread(target=work, name="kleash-judge", daemon=True).start()
        try:
            for _ in questions:
                i, found = answered.get()
                if isinstance(found, BaseException):
                    raise found
                yield i, found
            client.close()
        finally:
            stop.set()

    def _one(self, client: httpx2.Client, question: Question, stop: threading.Event, gone: threading.Event) -> Said:
        """One question, with its tries. `gone`: nobody could be reached lately, so one try has to do."""
        body, tries = self._body(question), 0
        while True:
            tries += 1
            found = self._try(client, body)
            if isinstance(found, Mapping):
                gone.clear()
                return self._read(found, question)._replace(tries=tries)
            if found.final or tries > self.spec.retries or gone.is_set() or stop.is_set():
                if found.why in (SILENT, ABSENT):
                    gone.set()
                return Said(failure=found.why, tries=tries, lost=True)
            stop.wait(self._wait(tries, found.wait))

    def _wait(self, tries: int, asked: float | None) -> float:
        """Seconds: what the server asked for, and never less; else a random share of a limit that doubles."""
        grown = min(FIRST_WAIT * 2 ** min(tries - 1, 20), LONGEST_WAIT)
        jitter = random.SystemRandom().uniform(0.5, 1.0) * grown  # not a stream that a run's seed decides
        return jitter if asked is None else asked + jitter / 4

    def _body(self, question: Question) -> dict[str, Any]:
        spec = self.spec
        body: dict[str, Any] = {
            "model": spec.model,
            "messages": [{"role": "user", "content": question.text}],
            "max_tokens": spec.max_tokens,
            "temperature": spec.temperature,
            "logprobs": True,
            "top_logprobs": TOP,
        }
        return body if spec.temperature == 0 else body | {"seed": question.sample}

    def _try(self, client: httpx2.Client, body: dict[str, Any]) -> Mapping[str, Any] | _Failed:
        try:
            status, headers, content = self._post(client, body)
            if status in (400, 422) and b"logprob" in content and "logprobs" in body:
                for name in ("logprobs", "top_logprobs"):  # it knows no such thing; its text will do
                    body.pop(name)
                status, headers, content = self._post(client, body)
        except httpx2.TimeoutException:
            return _Failed(SILENT)
        except (httpx2.RemoteProtocolError, httpx2.DecodingError, httpx2.ReadError):
            return _Failed(HALF)
        except httpx2.TransportError:
            return _Failed(ABSENT)
        except httpx2.HTTPError as error:
            return _Failed(type(error).__name__)
        if status == 200:
            return _json(content)
        if status in _NO_USE:
            raise RunError(f"judge {self.url}: the server refuses to answer (HTTP {status}): {self._shown(content)}")
        wait = _retry_after(headers.get("retry-after"))
        late = wait is not None and wait > LONGEST_WAIT
        return _Failed(f"HTTP {status}", wait, final=status not in _WORTH_ANOTHER_TRY or late)

    def _post(self, client: httpx2.Client, body: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        """The whole response within the time for it, however slowly it drips in."""
        end = time.monotonic() + self.spec.timeout_s
        content = b""
        with client.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            for part in response.iter_bytes():
                content += part
                if time.monotonic() > end:
                    raise httpx2.ReadTimeout("slower than timeout_s")
                if len(content) > MOST_BYTES:
                    raise httpx2.DecodingError("longer than any verdict")
            return response.status_code, response.headers, content

    def _shown(self, content: bytes) -> str:
        """The beginning of what a server said, fit for a terminal, without the key."""
        text = content[:2000].decode(errors="replace")
        if self.key:
            text = text.replace(self.key, "…")
        return "".join(c if c.isprintable() else " " for c in text)[:200].strip() or "it says no more"

    def _read(self, completion: Mapping[str, Any], question: Question) -> Said:
        """What a chat completion says; anything else that came as JSON is a failure."""
        try:
            choice = completion["choices"][0]
            text = choice["message"].get("content")
            usage = completion.get("usage") or {}
            read, written = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
            if text is not None and not isinstance(text, str):
                raise TypeError
            listed = (choice.get("logprobs") or {}).get("content") or []
            shares = self._shares(listed, text or "", question.words)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return Said(failure="not a chat completion", lost=True)
        return Said(shares=shares, text=text or "", tokens_in=read, tokens_out=written)

    def _shares(self, listed: list[Any], text: str, words: Sequence[str]) -> dict[str, float] | None:
        """Probability of each verdict where it was given; None where the server lists no probabilities."""
        if self.spec.max_tokens > 1:  # it may have reasoned before: where the verdict stands at the end
            word = parsed(text, words)
            listed = [t for t in listed if word is not None and t["token"].strip() == word][-1:]
        if not listed or not listed[0].get("top_logprobs"):
            return None
        found = dict.fromkeys(words, 0.0)
        for token in listed[0]["top_logprobs"]:
            logprob = float(token["logprob"])
            if math.isnan(logprob) or logprob > 1e-3:
                raise ValueError
            if token["token"].strip() in found:
                found[token["token"].strip()] += min(math.exp(logprob), 1.0)
        return found


def _json(content: bytes) -> Mapping[str, Any] | _Failed:
    try:
        found = json.loads(content)
    except ValueError:
        return _Failed("not JSON")
    return found if isinstance(found, dict) else _Failed("not a chat completion")


def _retry_after(value: str | None) -> float | None:
    """Seconds, from a number of them or a date; None where nothing readable was said."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _here(url: str) -> bool:
    """Whether the address is this machine's own: no proxy leads there."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
