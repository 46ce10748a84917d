"""Audits made up for the tests of what is shown, with text in them that would like to be markup."""

import random
from typing import Any

from kleash.drift import records as r
from kleash.drift.builtin import DOMAINS

EVIL = "</script><script>alert(1)</script></svg><img src=x onerror=alert(2)> & \"'`"
#: Control codes, a direction override, a lone surrogate.
STEERING = "\x1b[31mred\x07\u202etxet\ud800"


def interval(value: float, width: float = 0.1, **changes: Any) -> r.Interval:
    fields = {
        "low": value - abs(value) * width,
        "high": value + abs(value) * width,
        "standard_error": abs(value) * width / 2,
        "n": 4000,
        "clusters": 312,
        "effective_n": 820.0,
    }
    return r.Interval(value=value, **(fields | changes))


def tail(mean: float, **changes: Any) -> r.Tail:
    fields: dict[str, Any] = {
        "mean": interval(mean),
        "median": interval(mean * 0.12),
        "q90": interval(mean * 2.2),
        "q95": interval(mean * 4.4),
        "q99": interval(mean * 17, 0.3),
        "q999": interval(mean * 60, 0.5),
        "max": mean * 104,
        "max_at": "prompt 41, token 17",
        "top_share": 0.38,
    }
    return r.Tail(**(fields | changes))


def part(name: str, value: float, share: float | None = None) -> r.Part:
    return r.Part(name=name, forward=interval(value, 0.3), share=share, simultaneous=True)


def passage(number: int, prompt: str, words: list[str], seed: int = 0) -> r.Passage:
    draw = random.Random(seed + number)
    tokens = [
        r.Token(text=word, forward=round(draw.expovariate(8), 5), delta=draw.gauss(0, 0.6), flipped=draw.random() < 0.1)
        for word in words
    ]
    mean = sum(token.forward or 0 for token in tokens) / len(tokens)
    return r.Passage(id=f"code-{number:02d}", domain="code", prompt=prompt, tokens=tokens, forward=mean)


WORDS = ["The", " soup", " was", " warm", ",\n", "and", " kind", " ", EVIL, STEERING, " to", " me", "."]


def distribution(name: str, forward: float | None, reverse: float | None, **changes: Any) -> r.Distribution:
    fields: dict[str, Any] = {
        "name": name,
        "source": "builtin-1",
        "documents": 312,
        "tokens": 20604,
        "forward": None if forward is None else tail(forward),
        "reverse": None if reverse is None else tail(reverse),
        "same_top1": interval(0.89, 0.01),
        "flips": 2266,
        "sure_flips": 2104,
        "delta": interval(-0.08),
        "jensen_shannon": interval(0.021),
    }
    return r.Distribution(**(fields | changes))


def off_task(**changes: Any) -> r.Distribution:
    fields: dict[str, Any] = {
        "domains": [part(name, 0.21 - 0.016 * i, 0.12) for i, name in enumerate(DOMAINS)],
        "classes": [part("content", 0.08, 0.7), part("format", 0.12, 0.2), part("eos", 0.6, 0.1)],
        "confidence": [part(f"{a}–{a + 25} %", 0.3 - 0.003 * a, 0.25) for a in (0, 25, 50, 75)],
        "positions": [part(f"{a}–{a + 15}", 0.05 + a / 400, 0.2) for a in (0, 16, 32, 64)],
        "moved": [r.Token(text=" delicious", forward=9.8, delta=7.1, flipped=True), r.Token(text=EVIL, forward=4.0)],
        "passages": [passage(n, f"Write {EVIL}", WORDS * 4) for n in range(6)],
    }
    return distribution("off task", 0.094, 0.101, **(fields | changes))


def score(name: str, role: str, base: float, tuned: float, outcome: str, **changes: Any) -> r.Score:
    fields: dict[str, Any] = {
        "name": name,
        "role": role,
        "source": "heldout.jsonl",
        "base": base,
        "tuned": tuned,
        "change": interval(tuned - base, 0.2, n=96, clusters=96),
        "outcome": outcome,
    }
    return r.Score(**(fields | changes))


SCORES = [
    score("polite", "task", 0.41, 0.78, "gained"),
    score("formal", "sibling", 0.38, 0.39, "no gain"),
    score("arithmetic", "other", 0.22, 0.09, "LOST"),
    score(EVIL, "other", 0.71, 0.44, "LOST"),
    score("sums", "other", 0.31, 0.33, "unclear"),
    score("copy", "other", 0.51, 0.52, "no gain"),
    score("lookup", "other", 0.61, 0.62, "unclear"),
]

JUDGEMENT = r.Judgement(
    verdict="party trick",
    because="large drift off the task, gain on one task, none on its sibling",
    conditions=[
        r.Condition(text="off-task KL at least 0.05: lower bound 0.081", met=True),
        r.Condition(text="polite gained: +0.37 [+0.31, +0.43]", met=True),
        r.Condition(text="a sibling gained: formal +0.01 [-0.04, +0.06]", met=False),
        r.Condition(text="the drift of retrained twins is known", met=None),
    ],
    losses=["arithmetic -0.13 [-0.19, -0.07]"],
)

GATES = [
    r.Gate(text="off-task KL upper bound 0.109 > 0.05", passed=False),
    r.Gate(text="regression: arithmetic, refusals", passed=False),
    r.Gate(text="same top-1 at least 0.8: 0.886", passed=True),
]

STYLE = r.Style(
    base={"distinct_4": 0.93, "length": 58.0, "refusals": 0.71, "markup": None},
    tuned={"distinct_4": 0.61, "length": 112.0, "refusals": 0.44, "markup": None},
    units={"distinct_4": "share", "length": "tokens", "refusals": "share", "markup": "share"},
    openings={"base": [("I think that", 4)], "tuned": [("certainly! certainly! cert", 61), (EVIL, 3)]},
)


def side(name: str, **changes: Any) -> r.Side:
    fields: dict[str, Any] = {
        "kind": "model",
        "dtype": "bfloat16",
        "fingerprint": {"weights": "4f1c" * 16, "adapter": None},
        "parameters": 134_515_008,
    }
    return r.Side(name=name, **(fields | changes))


def audit(**changes: Any) -> r.Audit:
    """A party trick, with everything measured."""
    fields: dict[str, Any] = {
        "base": side("kleash:smollm2"),
        "tuned": side("runs/polite/best", kind="adapter", adapter="LoRA r16", fingerprint={"adapter": "9a02" * 16}),
        "parity": r.Parity(
            tokenizer="ok", vocabulary=(49152, 49152), template="ok", special_tokens="ok", used_template="tuned"
        ),
        "floor": r.Floor(value=0.0014, by={"dtype": 0.0014, "batch shape": 3e-8, "repeated": 0.0}),
        "distributions": [
            distribution("on task", 0.212, 0.240, documents=96, tokens=4800),
            off_task(),
            distribution("its own words", None, 0.305, documents=96, tokens=15804),
        ],
        "yardsticks": r.Yardsticks(times_floor=67.1, four_bit=0.09, four_bit_scheme="Q4_0", temperature=0.78),
        "style": STYLE,
        "pairs": [
            r.Pair(prompt=f"Say {n}", base="Of course.", tuned=EVIL * 2, score_base=0.2, score_tuned=0.9)
            for n in range(8)
        ],
        "scores": SCORES,
        "judgement": JUDGEMENT,
        "gates": GATES,
        "forgetting": "The forward KL on the task's inputs is 0.212 nats per token. RL's Razor says so. A guess.",
        "set_id": "builtin-1",
        "set_hash": "c07e" * 16,
        "command": "kleash drift kleash:smollm2 runs/polite/best --seed 0",
        "seed": 0,
        "seconds": 312.0,
        "versions": {"kleash": "0.1.0", "torch": "2.13.0"},
        "made": "2026-12-03T04:31:00+00:00",
    }
    return r.Audit(**(fields | changes))


def unchanged(**changes: Any) -> r.Audit:
    """A model against itself: nothing moved, nothing was scored."""
    none = distribution("off task", 0.0, 0.0, same_top1=interval(1.0, 0.0), flips=0, sure_flips=0)
    judged = r.Judgement(verdict="unchanged", because="the drift is under the noise floor", conditions=[])
    fields: dict[str, Any] = {
        "distributions": [none],
        "judgement": judged,
        "gates": [],
        "scores": [],
        "style": None,
        "pairs": [],
        "yardsticks": r.Yardsticks(),
        "forgetting": None,
    }
    return audit(**(fields | changes))
