"""Preference pairs of which the truth is known: two samples of a policy, of which a hidden reward prefers one."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

from kleash.demo.gold import gold
from kleash.models.load import load
from kleash.models.prompts import decode, encode
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import ModelSpec

#: How far two gold rewards must lie apart for the better one to be preferred with probability 1/(1 + 1/e).
TEMPERATURE = 0.1
#: Prompts that are sampled together.
AT_ONCE = 64


def draw_pairs(policy: Path, prompts: Sequence[str], path: Path, *, seed: int, max_new_tokens: int) -> int:
    """Writes a row of prompt, chosen and rejected for each prompt whose two samples differ; how many there are.

    Which sample is chosen is drawn: the first with probability σ((gold₁ − gold₂) / TEMPERATURE), as by Bradley and
    Terry's rater.
    """
    loaded = load(ModelSpec(policy=str(policy), device="cpu"))
    ids = encode(list(prompts), loaded.tokenizer, context=loaded.context, max_new_tokens=max_new_tokens)
    rng, rows = random.Random(f"{seed}/rater"), []
    for first in range(0, len(ids), AT_ONCE):
        numbers = list(range(first, min(first + AT_ONCE, len(ids))))
        rollout = sample(
            loaded.policy,
            [ids[i] for i in numbers],
            Sampling(max_new_tokens=max_new_tokens),
            loaded.ends,
            group_size=2,
            seed=seed,
            step=0,
            prompt_index=numbers,
        )
        texts = decode(rollout, loaded.tokenizer)
        for place, number in enumerate(numbers):
            a, b = texts[2 * place : 2 * place + 2]
            if a.strip() and b.strip() and a != b:
                first_better, second_better = gold([prompts[number]] * 2, [a, b])
                wins = rng.random() < 1 / (1 + math.exp((second_better - first_better) / TEMPERATURE))
                rows.append({"prompt": prompts[number], "chosen": a if wins else b, "rejected": b if wins else a})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return len(rows)
