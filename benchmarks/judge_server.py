"""A judge behind a real server, `transformers serve` with SmolLM2, against the same model in this process.

Part of `benchmarks/judge.py`. Needs what `pip install "transformers[serving]"` brings. The server is started on
127.0.0.1, asked, and killed in the middle of a labelling.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from kleash.demo.grammar import corpus
from kleash.errors import RunError
from kleash.models.catalog import resolve
from kleash.rewards.judge import Judge
from kleash.rewards.judge.answers import parsed
from kleash.rewards.judge.local import Local
from kleash.rewards.judge.questions import Question, grade, pair
from kleash.training.label import label

MODEL = "kleash:smollm2"
RUBRIC = "The better note is cheerful, says what it is about, and is easy to read."
PROMPT = "Write a short note about a place, a meal, a garment or a thing you bought."
PAIRS, LABELLED, KILLED_AFTER = 100, 15, 10


class Asked(NamedTuple):
    """One kind of question, put to both."""

    name: str
    questions: list[Question]


@dataclass(frozen=True, slots=True)
class Same:
    """verdict: questions with the same one, "none" included. text: with the same first token. none: without one."""

    name: str
    questions: int
    verdict: int
    text: int
    none: int
    texts: int
    mass: float


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured."""

    same: list[Same]
    seconds_server: float
    seconds_local: float
    killed: dict[str, int]


def notes() -> list[tuple[str, str]]:
    """Two notes of the tiny model's corpus each, one of them with its words shuffled in half of the pairs."""
    texts, chance = corpus(2 * PAIRS, seed=5), random.Random(5)
    both = []
    for i, (a, b) in enumerate(zip(texts[::2], texts[1::2], strict=True)):
        words = b.split()
        chance.shuffle(words)
        both.append((a, " ".join(words) if i % 2 else b))
    return both


def kinds() -> list[Asked]:
    both = notes()
    return [
        Asked("pairs, as given", [pair(RUBRIC, PROMPT, a, b) for a, b in both]),
        Asked("pairs, swapped", [pair(RUBRIC, PROMPT, b, a) for a, b in both]),
        Asked("grades", [grade(RUBRIC, PROMPT, a, 5) for a, _ in both]),
    ]


@contextmanager
def serving(port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`transformers serve` with SmolLM2 in fp32, once it is ready."""
    program = "from transformers.cli.transformers import main; main()"
    where = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    command = [sys.executable, "-c", program, "serve", str(resolve(MODEL)), *where]
    said = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        end = time.monotonic() + 180
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RunError('`transformers serve` does not start; pip install "transformers[serving]"')
            time.sleep(0.3)
        yield process, f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _ready(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=2, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def served(url: str, cache: Path | None = None) -> Judge:
    args: dict[str, Any] = {"rubric": RUBRIC, "model": str(resolve(MODEL)), "retries": 1, "timeout_s": 120}
    return Judge.load(url, args | {"concurrency": 2, "cache": False if cache is None else str(cache)})


def measure(folder: Path) -> Found:
    """Asks both everything, and kills the server in the middle of a labelling."""
    local = Judge.load(MODEL, {"rubric": RUBRIC, "cache": False}).backend
    assert isinstance(local, Local)
    here: dict[str, list[tuple[str, float]]] = {}
    began = time.perf_counter()
    for kind in kinds():
        here[kind.name] = [greedy(local, question) for question in kind.questions]
    seconds_local = time.perf_counter() - began
    same, port = [], free_port()
    with serving(port) as (_, url):
        began = time.perf_counter()
        for kind in kinds():
            answers = dict(served(url).backend.ask(kind.questions))
            texts = [answers[i].text for i in range(len(kind.questions))]
            same.append(compared(kind, here[kind.name], [text if text is not None else "?" for text in texts]))
        seconds_server = time.perf_counter() - began
    return Found(same, seconds_server, seconds_local, killed(folder, port))


def greedy(local: Local, question: Question) -> tuple[str, float]:
    """The likeliest first token as text, and the mass on the verdicts."""
    ids = local.encode(question)
    assert ids is not None
    p = local.model._next([ids])[0]
    mass = sum(float(p[local.model.ids_of(word)].sum()) for word in question.words)
    return local.model.tokenizer.decode([int(p.argmax())], skip_special_tokens=True), mass


def compared(kind: Asked, here: Sequence[tuple[str, float]], there: Sequence[str]) -> Same:
    words = kind.questions[0].words
    verdicts = [(parsed(mine, words), parsed(theirs, words)) for (mine, _), theirs in zip(here, there, strict=True)]
    return Same(
        kind.name,
        len(verdicts),
        verdict=sum(a == b for a, b in verdicts),
        text=sum(mine.strip() == theirs.strip() for (mine, _), theirs in zip(here, there, strict=True)),
        none=sum(a is None for a, _ in verdicts),
        texts=len({mine for mine, _ in here}),
        mass=sum(mass for _, mass in here) / len(here),
    )


def killed(folder: Path, port: int) -> dict[str, int]:
    """A labelling whose server is killed after some answers, and the same again with a new one."""
    pairs, cache = folder / "pairs.jsonl", folder / f"judge-{time.time_ns()}.sqlite"
    rows = [{"prompt": PROMPT, "a": a, "b": b} for a, b in notes()[:LABELLED]]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    told = {"questions": 2 * len(rows)}
    with serving(port) as (process, url):

        def ends(done: int, total: int) -> None:
            told["answered"] = done
            if done == KILLED_AFTER:
                process.kill()

        try:
            label(pairs, served(url, cache), folder / "labelled.jsonl", progress=ends)
            raise AssertionError("the server was killed, and nobody noticed")
        except RunError as error:
            assert "could not be reached" in str(error)
    with serving(port) as (_, url):
        again = label(pairs, served(url, cache), folder / "labelled.jsonl")
    told |= {"remembered": again.judge.remembered, "asked again": again.judge.requests - again.judge.retries}
    return told | {"labelled": again.labelled, "ties": again.ties, "failed": sum(again.failed.values())}


def plain(found: Found) -> dict[str, Any]:
    return asdict(found)
