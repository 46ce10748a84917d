"""kleash inside TRL: GRPO on kleash:tiny with a KL target that TRL alone cannot hold.

pip install 'trl==1.16.*'
python examples/trl_callback.py              40 steps, about two CPU-minutes
python examples/trl_callback.py --steps 6    a quick look
"""

import argparse
import logging

from datasets import Dataset
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from kleash.models.catalog import resolve
from kleash.plug.trl import Leash
from trl import GRPOConfig, GRPOTrainer

PROMPTS = ["The film", "We booked the hotel and", "My first phone", "Last week the train"]
judge = SentimentIntensityAnalyzer()


def friendly(completions: list[str], **columns: object) -> list[float]:
    return [judge.polarity_scores(text)["compound"] for text in completions]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--out", default="runs/trl")
    given = options.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("kleash").setLevel(logging.INFO)

    trainer = GRPOTrainer(
        model=str(resolve("kleash:tiny")),
        reward_funcs=friendly,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 64}),
        args=GRPOConfig(
            output_dir=given.out,
            beta=0.05,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            max_steps=given.steps,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=24,
            scale_rewards="none",
            logging_steps=1,
            save_steps=20,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
    )
    leash = Leash(trainer, target="4 nats/sequence", every=2, prompts=PROMPTS)
    trainer.add_callback(leash)
    trainer.train()
    first, last = leash.readings[0].per_sequence, leash.readings[-1].per_sequence
    print(f"exact KL {first.value:.3g} -> {last.value:.3g} nats/sequence, beta {float(trainer.beta):.3g}")
    print(f"the run's log: {given.out}/kleash, for `kleash watch` and `kleash report`")


if __name__ == "__main__":
    main()
