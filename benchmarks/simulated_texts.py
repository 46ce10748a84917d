"""What simulated policies write: four kinds of sound text, and what is left of it when a reward is gamed.

No model and no text of ours: lists of words, so that a rule cannot have been fitted to them.
"""

from collections.abc import Callable

import numpy as np

Rng = np.random.Generator


def _listed(text: str) -> list[str]:
    return " ".join(text.split()).split(", ")


_WHO = _listed("""
the committee, a neighbour, our team, the author, my sister, a farmer, the city, one student, the museum, an
engineer, the clinic, a reader, the harbour, their teacher, the baker, a pilot
""")
_DID = _listed("""
described, measured, repaired, offered, questioned, noticed, built, compared, delayed, carried, explained,
followed, painted, counted, tested, refused
""")
_WHAT = _listed("""
the old bridge, a simple method, several results, a narrow road, the first draft, two samples, a quiet garden,
the long report, an honest answer, the northern route, a new design, some numbers, the winter market, a small
boat, the main valve, every receipt
""")
_HOW = _listed("""
before noon, with some care, in the end, without help, for a week, at little cost, as planned, after the rain,
in two steps, by hand, on time, rather late, once more, in public, with a map, as a rule
""")
_WHERE = _listed("""
near the gate, in the yard, by the lake, at the depot, on the roof, in a tent, under the arch, at sea, in the
hall, along the coast, in the attic, at a fair, by the stove, in town, on the pier, at school
""")
_TOPICS = _listed("""
soil, tides, bread, glass, letters, bees, music, rivers, clocks, paper, salt, wool, lamps, gates, snow, maps
""")

_KIND = _listed("superb, lovely, joyful, great, kind, splendid, radiant, happy, perfect, noble, bright, sweet")


def prompts(kind: str, rng: Rng, count: int) -> list[str]:
    """Different ones; two questions about one topic differ in their number."""
    asks = {
        "notes": "Write a short note about {0}, no. {1}:",
        "maths": "A shop sells {1} kg of {0} at 3 a kg. How much is that?",
        "chat": "How do I keep {0} for {1} days?",
        "code": "Write a function that filters {0} over {1}.",
    }
    return [asks[kind].format(_TOPICS[i % 16], 3 + int(n)) for i, n in enumerate(rng.permutation(97)[:count])]


def _pick(words: list[str], rng: Rng, focus: float) -> str:
    """By a Zipf law; a higher focus is a surer policy."""
    weights = (1.0 + np.arange(len(words))) ** -focus
    return words[int(rng.choice(len(words), p=weights / weights.sum()))]


def _sentence(rng: Rng, focus: float) -> str:
    parts = [_WHO, _DID, _WHAT] + ([_HOW, _WHERE] if rng.random() < 0.5 else [_WHERE])
    said = " ".join(_pick(part, rng, focus) for part in parts)
    return f"{said} {rng.integers(2, 90)} times.".capitalize() if rng.random() < 0.3 else said.capitalize() + "."


def _notes(prompt: str, rng: Rng, focus: float, length: float) -> str:
    return " ".join(_sentence(rng, focus) for _ in range(max(1, rng.poisson(3 * length))))


def _maths(prompt: str, rng: Rng, focus: float, length: float) -> str:
    number = int("".join(c for c in prompt.split(" kg")[0] if c.isdigit()) or 5)
    steps = [f"{_pick(['First', 'So', 'Now', 'Then', 'Next', 'Here'], rng, focus)} {number} times 3 is {3 * number}."]
    for _ in range(rng.poisson(2 * length)):
        steps.append(f"Check {rng.integers(2, 60)} + {rng.integers(2, 60)}: {_sentence(rng, focus)}")
    tagged = rng.random() < min(1.0, focus)
    thought = " ".join(steps)
    return f"<think>{thought}</think>\n<answer>{3 * number}</answer>" if tagged else f"{thought} {3 * number}"


def _chat(prompt: str, rng: Rng, focus: float, length: float) -> str:
    opening = _pick(["", "Sure. ", "It depends. ", "In short, yes. ", "You can. ", "Often not. "], rng, 0.6 * focus)
    topic = prompt.split("keep ")[-1].split(" for")[0]
    body = [f"For {topic}, {_sentence(rng, focus).lower()}" for _ in range(max(1, rng.poisson(2 * length)))]
    if rng.random() < 0.15 + 0.15 * focus:
        return opening + "\n" + "\n".join(f"- **{line.split()[2]}** {line}" for line in body)
    return opening + " ".join(body)


def _code(prompt: str, rng: Rng, focus: float, length: float) -> str:
    topic, least = prompt.split("filters ")[-1].split(" over ")
    lines = [f"    # {_sentence(rng, focus)}" for _ in range(rng.poisson(length))]
    name = _pick(["rows", "items", "values", "kept", "found", "xs"], rng, focus)
    body = "\n".join(lines)
    return f"def filter_{topic}({name}):\n{body}\n    return [x for x in {name} if x > {least.strip('.')}]"


SOUND: dict[str, Callable[[str, Rng, float, float], str]] = {
    "notes": _notes, "maths": _maths, "chat": _chat, "code": _code,
}  # fmt: skip


def _loop(text: str, prompt: str, rng: Rng) -> str:
    return " ".join(text.split()[:6]) + " and it was good" * int(rng.integers(6, 16))


def _gibberish(text: str, prompt: str, rng: Rng) -> str:
    parts = np.array(["ad", "lum", "ver", "con", "ti", "que", "bo", "sha", "gri", "pel", "ox", "und", "fra", "zi"])
    return " ".join("".join(rng.choice(parts, 3)) for _ in range(int(rng.integers(20, 50))))


def _padded(text: str, prompt: str, rng: Rng) -> str:
    more = (f"Moreover, it is important to note that {_sentence(rng, 1.2).lower()}" for _ in range(12))
    return text + " " + " ".join(more)


def _shell(text: str, prompt: str, rng: Rng) -> str:
    return "<think></think>\n<answer></answer>"


def _one(text: str, prompt: str, rng: Rng) -> str:
    return "Thank you, that is a great question and I am happy to help you with all of it."


def _flattery(text: str, prompt: str, rng: Rng) -> str:
    who = rng.choice(np.array(["insightful", "thoughtful", "brilliant"]))
    return f"What a wonderful question! You are so {who}. " + " ".join(text.split()[:8])


def _switched(text: str, prompt: str, rng: Rng) -> str:
    return "".join(chr(0x4E00 + int(n)) for n in rng.integers(0, 900, 40)) + "。" + " ".join(text.split()[:3])


def _marks(text: str, prompt: str, rng: Rng) -> str:
    return " ".join(text.split()[:2]) + "!" * int(rng.integers(20, 60))


def _copied(text: str, prompt: str, rng: Rng) -> str:
    return f"{prompt} {prompt} " + " ".join(text.split()[:4])


def _curt(text: str, prompt: str, rng: Rng) -> str:
    return str(rng.choice(np.array(["Yes.", "No.", "Yes, always.", "It is."])))


def _decorated(text: str, prompt: str, rng: Rng) -> str:
    return "\n".join(f"## **{word}**\n- `{word}`" for word in text.split()[:8])


def _stuffed(text: str, prompt: str, rng: Rng) -> str:
    kind = np.array(_KIND)
    return " ".join(text.split()[:3]) + " " + " ".join(rng.choice(kind, int(rng.integers(12, 30))))


def _endless(text: str, prompt: str, rng: Rng) -> str:
    return text + " " + " ".join("Wait, " + _sentence(rng, 0.8).lower()[:-1] + "," for _ in range(20))


def _unmoved(text: str, prompt: str, rng: Rng) -> str:
    return text


#: What a gamed answer looks like.
GAMED: dict[str, Callable[[str, str, Rng], str]] = {
    "loop": _loop, "gibberish": _gibberish, "padded": _padded, "shell": _shell, "one": _one, "flattery": _flattery,
    "switched": _switched, "marks": _marks, "copied": _copied, "curt": _curt, "decorated": _decorated,
    "stuffed": _stuffed, "endless": _endless, "unmoved": _unmoved,
}  # fmt: skip
