"""Writes the preference pairs of recipes/tiny_dpo.toml: python tools/make_tiny_pairs.py

Two answers of the embedded model to each prompt, told apart by a rater who likes praise but is careless: Bradley and
Terry's, who prefers a with probability σ(SHARPNESS · (VADER(a) − VADER(b))). So the truth is known, and the pairs are
what the model could have written.
"""

import json
import math
import random
from pathlib import Path

from kleash.models.load import load
from kleash.models.prompts import decode, encode
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import ModelSpec
from kleash.rewards.vader import Vader

RECIPES = Path(__file__).parents[1] / "recipes"
SHARPNESS, LENGTH, SEED = 4.0, 32, 0
#: Where the prompts come from, where the pairs go, and how many a prompt.
FILES = [
    ("tiny_texts.jsonl", "tiny_pairs.jsonl", 4),
    ("tiny_texts_held_out.jsonl", "tiny_pairs_held_out.jsonl", 3),
]


def main() -> None:
    loaded, chance = load(ModelSpec(policy="kleash:tiny")), random.Random(SEED)
    for number, (source, target, count) in enumerate(FILES):
        prompts = [json.loads(line)["prompt"] for line in (RECIPES / source).read_text().splitlines()]
        prompts = list(dict.fromkeys(prompts))
        ids = encode(prompts, loaded.tokenizer, context=loaded.context, max_new_tokens=LENGTH)
        rollout = sample(
            loaded.policy,
            ids,
            Sampling(max_new_tokens=LENGTH),
            loaded.ends,
            group_size=2 * count,
            seed=SEED,
            step=number,
            prompt_index=list(range(len(ids))),
        )
        texts = decode(rollout, loaded.tokenizer)
        scores = Vader()(texts)
        rows = []
        for i in range(0, len(texts), 2):
            a, b = i, i + 1
            if chance.random() > 1 / (1 + math.exp(-SHARPNESS * (scores[a] - scores[b]))):
                a, b = b, a
            if texts[a] != texts[b] and not rollout.truncated[a] and not rollout.truncated[b]:
                rows.append({"prompt": prompts[i // (2 * count)], "chosen": texts[a], "rejected": texts[b]})
        (RECIPES / target).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        print(f"{target}: {len(rows)} pairs of {len(prompts)} prompts")


if __name__ == "__main__":
    main()
