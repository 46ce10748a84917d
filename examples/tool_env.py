"""A rollout of one's own: two turns with a calculator between them. What the tool writes is read, not trained on.

python examples/tool_env.py              20 steps on kleash:tiny, which shows the form: it cannot do sums
python examples/tool_env.py ./my-model   a model of your own

In a config: [data] rollout = "examples/tool_env.py:run" and [[rewards]] use = "examples/tool_env.py:right".
"""

import operator
import random
import re
import sys
from typing import Any

TURNS, PER_TURN = 2, 12
SUM = re.compile(r"(\d+)\s*([+*-])\s*(\d+)")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculator(text: str) -> str:
    """What the tool answers: the last sum in the text, worked out."""
    found = SUM.findall(text)
    if not found:
        return " Nothing to work out."
    a, sign, b = found[-1]
    return f" The result is {OPERATIONS[sign](int(a), int(b))}."


def run(prompts: list[str], generate: Any, tokenizer: Any, **columns: list[Any]) -> list[dict[str, Any]]:
    """One episode a prompt: ids and mask of all that comes after it, and how often the tool worked something out."""
    ids: list[list[int]] = [[] for _ in prompts]
    mask: list[list[bool]] = [[] for _ in prompts]
    worked = [0 for _ in prompts]
    for turn in range(TURNS):
        for row, new in enumerate(generate(ids, max_new_tokens=PER_TURN)):
            ids[row] += new
            mask[row] += [True] * len(new)
            if turn < TURNS - 1:
                answer = calculator(prompts[row] + tokenizer.decode(ids[row], skip_special_tokens=True))
                worked[row] += answer.startswith(" The result")
                told = tokenizer.encode(answer, add_special_tokens=False)
                ids[row] += told
                mask[row] += [False] * len(told)
    return [{"ids": i, "mask": m, "worked": w} for i, m, w in zip(ids, mask, worked, strict=True)]


def right(completions: list[str], answer: list[int], **columns: list[Any]) -> list[float]:
    """1 where the text after the tool's last word has the answer in it."""
    said = [text.rpartition(".")[2] for text in completions]
    return [float(str(a) in text) for text, a in zip(said, answer, strict=True)]


def questions(n: int) -> list[dict[str, Any]]:
    drawn = random.Random(0)
    pairs = [(drawn.randrange(2, 30), drawn.randrange(2, 30)) for _ in range(n)]
    return [{"prompt": f"We paid {a} + {b} for the hotel.", "answer": a + b} for a, b in pairs]


def main(policy: str) -> None:
    import kleash

    settings = {"data.rollout": f"{__file__}:run", "train.steps": 20, "train.max_new_tokens": 64}
    done = kleash.train(policy, questions(16), right, out="runs/tool", settings=settings)
    for step in done.steps[::5]:
        print(
            f"step {step.step}: score {step.score:.2f}, {step.length:.0f} counted tokens, {step.kl_ref.value:.2f} nats"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "kleash:tiny")
