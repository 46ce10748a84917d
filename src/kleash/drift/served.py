"""A model behind an OpenAI-compatible server that gives the log-probs of prompt tokens, as vLLM's does.

Asked through /completions with token ids: `prompt_logprobs` (vLLM) gives the most likely tokens at each position and
the prompt's own; `echo` with `logprobs` (llama-cpp-python, others) the prompt's own, enough for a sampled estimate.
"""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from kleash.errors import RunError, UsageError

#: Seconds of one request; tries of it, and the wait before the second, which doubles.
TIMEOUT, TRIES, FIRST_WAIT = 120.0, 4, 0.5
#: Of the most likely tokens: as many as vLLM gives unless it is started with --max-logprobs.
TOP = 20
#: Log-probs from here down stand for "none" where JSON has no infinity.
NONE_BELOW = -1000.0
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class Position(NamedTuple):
    """What is known of the distribution that a token was predicted from: log-probs by token id, the token's among them.

    rank: of the token, 1 for the likeliest; None where the server does not say. top: whether `known` holds the
    likeliest tokens, and not the observed one alone.
    """

    token: int
    known: dict[int, float]
    rank: int | None = None
    top: bool = True

    @property
    def logp(self) -> float:
        return self.known[self.token]

    @property
    def likeliest(self) -> int:
        return max(self.known, key=lambda i: self.known[i])


@dataclass(frozen=True)
class Served:
    """One model of a server. client: asks it, with the key if one is wanted, which is in nothing that is said."""

    url: str
    model: str
    client: httpx2.Client = field(repr=False)
    context: int | None = None

    def positions(self, ids: Sequence[int], top: int = TOP) -> list[Position]:
        """Of each token after the first.

        Raises:
            RunError: the server cannot be asked, or gives no log-probs of prompt tokens.
        """
        asked = {"prompt": list(ids), "max_tokens": 1, "temperature": 0.0}
        choice = self._choice(asked | {"prompt_logprobs": top})
        given = choice.get("prompt_logprobs")
        if given is None:
            choice = self._choice(asked | {"echo": True, "logprobs": 1})
            with self._read("logprobs"):
                return self._echoed(ids, choice.get("logprobs") or {})
        with self._read("prompt_logprobs"):
            if len(given) != len(ids):
                raise RunError(f"{self.url} scored {len(given)} tokens of a prompt of {len(ids)}: it has other tokens")
            return [self._position(token, entries) for token, entries in zip(ids[1:], given[1:], strict=True)]

    def _position(self, token: int, entries: dict[str, Any]) -> Position:
        known = {int(i): _logprob(entry["logprob"]) for i, entry in entries.items()}
        if token not in known:
            raise RunError(f"{self.url} gives no log-prob of the prompt's own token {token}: it has other tokens")
        return Position(token, known, entries[str(token)].get("rank"))

    @contextmanager
    def _read(self, name: str) -> Iterator[None]:
        """While a field of an answer is read: of whatever form it is, what is wrong with it is a sentence."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"the server at {self.url} gives {name} of another form than vLLM's: {error!r:.80}"
            ) from error

    def _echoed(self, ids: Sequence[int], logprobs: dict[str, Any]) -> list[Position]:
        """The prompt's own log-probs, of a server that repeats the prompt."""
        own = logprobs.get("token_logprobs") or []
        if len(own) not in (len(ids), len(ids) + 1):  # the prompt, and the one token that had to be asked for
            raise RunError(
                f"the server at {self.url} gives no log-probs of prompt tokens (asked for {len(ids)}, it gave "
                f"{len(own)}). vLLM gives them, llama-cpp-python too (logits_all=true); llama.cpp's own server and "
                "most hosted ones give those of generated tokens only, and from them no drift can be had"
            )
        return [
            Position(token, {token: _logprob(logprob)}, top=False)
            for token, logprob in zip(ids[1:], own[1 : len(ids)], strict=True)
        ]

    def completion(self, ids: Sequence[int], max_new_tokens: int, seed: int) -> tuple[list[int], bool]:
        """Tokens drawn after a prompt at temperature 1 from the whole distribution, and whether they ended themselves.

        Raises:
            RunError: the server cannot be asked, or does not say which tokens it drew.
        """
        whole = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        asked = {"prompt": list(ids), "max_tokens": max_new_tokens, "seed": seed, "return_token_ids": True}
        choice = self._choice(asked | whole)
        drawn = choice.get("token_ids")
        if not isinstance(drawn, list):
            raise RunError(
                f"the server at {self.url} does not say which tokens it drew (return_token_ids, vLLM's, gives them); "
                "its text alone could be tokenised in another way than it was drawn, and its log-probs would be wrong"
            )
        with self._read("token_ids"):
            return [int(i) for i in drawn], choice.get("finish_reason") == "stop"

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        found = _asked(self.client, f"{self.url}/completions", body | {"model": self.model})
        choices = found.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise RunError(f"{self.url}/completions answered something else than completions: {str(found)[:80]}")
        return choices[0]


def connect(name: str) -> Served:
    """The model at "http://host:8000/v1", or at "http://host:8000/v1#name" where it serves several.

    The key, if one is wanted, is read from OPENAI_API_KEY.

    Raises:
        RunError: no server answers there.
        UsageError: it does not serve that model, or several.
    """
    url, _, model = name.partition("#")
    url, key = url.rstrip("/"), os.environ.get("OPENAI_API_KEY")
    local = urlsplit(url).hostname in _LOCAL  # no proxy of the environment between
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx2.Client(headers=headers, timeout=TIMEOUT, trust_env=not local)
    listed = _asked(client, f"{url}/models").get("data")
    models = {str(one["id"]): one for one in listed or [] if isinstance(one, dict) and "id" in one}
    if not model and len(models) == 1:
        model = next(iter(models))
    if model not in models:
        asked = f"does not serve {model}" if model else "serves several models"
        raise UsageError(f"{url} {asked}; name one as {url}#NAME: {', '.join(models) or 'it lists none'}")
    return Served(url=url, model=model, client=client, context=models[model].get("max_model_len"))


def refuse_renormalised(positions: Sequence[Position], url: str) -> None:
    """That the log-probs are those of the whole distribution.

    Raises:
        RunError: they add up to more than 1, or to 1 over the few tokens given though the model is not sure of them.
    """
    many = [p for p in positions if p.top and len(p.known) > 2]
    masses = [math.fsum(math.exp(logprob) for logprob in p.known.values()) for p in many]
    if any(mass > 1.001 for mass in masses):
        raise RunError(f"the probabilities that {url} gives add up to {max(masses):.3f}: they are none")
    full = sum(mass > 1 - 1e-4 for mass in masses)
    unsure = [p for p in many if p.known[p.likeliest] < math.log(0.9)]
    several = len({i for p in many for i in p.known}) > max((len(p.known) for p in many), default=0)
    if unsure and several and full > 0.95 * len(many):  # of the whole vocabulary it is right
        raise RunError(
            f"the likeliest tokens that {url} gives add up to 1 at {full} of {len(many)} positions: they are "
            "renormalised (after top-k, top-p or a temperature), and their log-probs are not the model's"
        )


def _logprob(value: Any) -> float:
    found = float("nan") if value is None else float(value)
    return -math.inf if found <= NONE_BELOW else found


def _asked(client: httpx2.Client, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the server answers, after a few tries.

    Raises:
        RunError: nothing that can be used.
    """
    said = "no answer"
    for n in range(TRIES):
        time.sleep(FIRST_WAIT * 2 ** (n - 1) if n else 0)
        try:
            answer = client.get(url) if body is None else client.post(url, json=body)
            if answer.status_code < 400:
                found = answer.json()
                if isinstance(found, dict):
                    return found
                said = f"it answered {answer.text.strip()[:80]}, which is no JSON object"
                continue
            said = f"HTTP {answer.status_code}: {answer.text.strip()[:200]}"
            if answer.status_code not in _AGAIN:
                break
        except httpx2.HTTPError as error:
            said = str(error).strip() or type(error).__name__
        except ValueError as error:
            said = f"its answer is not JSON ({error})"
    raise RunError(f"the server at {url} could not be asked: {said}")
