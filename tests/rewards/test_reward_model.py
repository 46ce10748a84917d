"""Reward models against the plain thing: the transformers model in float64, one row at a time, without padding."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.models.small_tokenizers import CHAT, byte_level
from tests.tolerances import FP32
from tests.training.small import settings
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    PreTrainedTokenizerFast,
)

from kleash.errors import RunError, UsageError
from kleash.models.classifier import Classifier
from kleash.rewards.load import load_reward
from kleash.rewards.score import score
from kleash.rewards.spec import RewardSpec
from kleash.training.api import start
from kleash.training.toml import parse_config

PROMPTS = ["the cat", "a dog on the road and then", "x", "to the end"]
TEXTS = [" sat on the mat.", "", " y", " of the thing, café!"]
SIZE = 300  # more rows than the tokenizer has tokens


def config(kind: str, **more: Any) -> Any:
    if kind == "bert":
        return BertConfig(
            vocab_size=SIZE, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=64, initializer_range=0.3, pad_token_id=2, **more,
        )  # fmt: skip
    return build.CONFIGS[kind](vocab_size=SIZE, initializer_range=0.3, **more)


def reward_model(
    directory: Path, kind: str = "llama", *, eos: bool = False, chat: str | None = None, **more: Any
) -> Path:
    """A random classifier, one output unless said otherwise, with a byte tokenizer, saved as transformers saves it."""
    torch.manual_seed(3)
    model: Any = AutoModelForSequenceClassification.from_config(config(kind, **{"num_labels": 1} | more))
    model.save_pretrained(directory)
    byte_level(eos=eos, chat=chat).save_pretrained(directory)
    return directory


def alone(directory: Path, texts: list[str], *, special: bool = True, label: int = 0) -> list[float]:
    """The truth."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory).double().eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    found = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=special, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found.append(float(model(input_ids=ids).logits[0, label]))
    return found


def scores(directory: Path, prompts: list[Any] = PROMPTS, texts: list[str] = TEXTS, **args: Any) -> list[Any]:
    rewarder = load_reward(RewardSpec(f"model:{directory}", args=args))
    return score([rewarder], prompts, texts, {}).total


def close(found: list[float], truth: list[float]) -> None:
    torch.testing.assert_close(
        torch.tensor(found).double(), torch.tensor(truth).double(), rtol=0, atol=FP32 * max(map(abs, truth))
    )


@pytest.mark.parametrize("batch_tokens", [1, 60, 10_000])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"pad_token_id": None}),
        ("llama", {"pad_token_id": 1, "eos": True}),  # padding and end are one token, and every text ends with it
        ("gpt2", {"pad_token_id": 2}),
        ("bert", {}),
    ],
    ids=["no pad", "pad is end", "gpt2", "encoder"],
)
def test_batched_is_each_row_alone_in_float64(tmp_path, kind, more, batch_tokens):
    directory = reward_model(tmp_path / "rm", kind, **more)
    truth = alone(directory, [p + t for p, t in zip(PROMPTS, TEXTS, strict=True)])
    assert len(set(truth)) == len(truth)
    close(scores(directory, batch_tokens=batch_tokens), truth)


def test_messages_go_through_its_own_template_with_the_answer(tmp_path):
    directory = reward_model(tmp_path / "rm", chat=CHAT, pad_token_id=2)
    prompts = [
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "x"}],
    ]
    texts = ["<s><system>be kind\n<user>hi\n<assistant>hello\n", "<s><user>x\n<assistant>y\n"]
    close(scores(directory, prompts, ["hello", "y"]), alone(directory, texts, special=False))


def test_messages_without_a_template_are_refused(tmp_path):
    directory = reward_model(tmp_path / "rm")
    with pytest.raises(UsageError, match="no chat template"):
        scores(directory, [[{"role": "user", "content": "x"}]], ["y"])


def test_several_labels(tmp_path):
    directory = reward_model(tmp_path / "rm", num_labels=3, id2label={0: "bad", 1: "good", 2: "odd"}, pad_token_id=2)
    truth = alone(directory, [p + t for p, t in zip(PROMPTS, TEXTS, strict=True)], label=1)
    close(scores(directory, label=1), truth)
    assert scores(directory, label="good") == scores(directory, label=1)
    with pytest.raises(UsageError, match=r"no label is chosen; it has 3: bad, good, odd"):
        scores(directory)
    with pytest.raises(UsageError, match=r"has no label 'best'"):
        scores(directory, label="best")
    with pytest.raises(UsageError, match=r"has no label 3"):
        scores(directory, label=3)


def test_too_long_is_said_and_never_cut(tmp_path):
    directory = reward_model(tmp_path / "rm")  # 64 positions, a token a byte
    with pytest.raises(RunError, match=r"sample 2 has 71 of its tokens with the prompt, and it takes 64"):
        scores(directory, ["a", "b", "c" * 40], ["x", "y", "z" * 30])


def test_an_empty_sample_is_said(tmp_path):
    directory = reward_model(tmp_path / "rm")
    byte_level(bos=False).save_pretrained(directory)
    with pytest.raises(RunError, match="sample 1 has no tokens"):
        scores(directory, ["a", ""], ["x", ""])


def test_nan_names_the_model_and_the_sample(tmp_path, monkeypatch):
    directory = reward_model(tmp_path / "rm")
    monkeypatch.setattr(Classifier, "logits", lambda self, rows, batch_tokens: torch.tensor([[1.0], [float("nan")]]))
    with pytest.raises(RunError, match=r"rm' gave nan .*sample 1 of 2 .*'b'"):
        scores(directory, ["a", "b"], ["x", "y"])


def test_rows_of_similar_length_go_together(tmp_path, monkeypatch):
    directory = reward_model(tmp_path / "rm", pad_token_id=2)
    seen: list[list[int]] = []
    forward = Classifier._forward

    def watched(self: Classifier, rows: list[list[int]]) -> torch.Tensor:
        seen.append([len(row) for row in rows])
        return forward(self, rows)

    monkeypatch.setattr(Classifier, "_forward", watched)
    scores(directory, ["p"] * 6, ["x" * n for n in (30, 1, 29, 2, 28, 3)], batch_tokens=96)
    assert seen == [[32, 31, 30], [5, 4, 3]]


@pytest.mark.parametrize(
    ("args", "message"),
    [({"labels": 1}, "args.labels.*label, dtype and batch_tokens"), ({"batch_tokens": 0}, "must be at least 1")],
)
def test_args_are_checked(tmp_path, args, message):
    with pytest.raises(UsageError, match=message):
        scores(tmp_path, **args)


# ── what is no reward model ─────────────────────────────────────────────────────────────────────────────


def test_a_language_model_is_refused(tmp_path):
    model: Any = AutoModelForCausalLM.from_config(config("llama", tie_word_embeddings=True))
    model.save_pretrained(tmp_path / "lm")
    byte_level().save_pretrained(tmp_path / "lm")
    with pytest.raises(UsageError, match=r"lacks 1 weights of a classifier \(score.weight"):
        scores(tmp_path / "lm", label=0)


def test_code_pickles_and_nothing_are_refused(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoModelForSequenceClassification": "own.Model"}})
    )
    with pytest.raises(UsageError, match="kleash runs no code of a reward model"):
        scores(tmp_path / "code")
    directory = reward_model(tmp_path / "rm")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UsageError, match="no pickled weights"):
        scores(directory)
    with pytest.raises(UsageError, match="holds no config"):
        (tmp_path / "empty").mkdir()
        scores(tmp_path / "empty")


# ── in a run ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_gives_it_text_not_ids(tmp_path):
    """The policy's tokenizer has words, the reward model's has bytes: the scores are those of the decoded text."""
    directory = reward_model(tmp_path / "rm", max_position_embeddings=256)
    tree = settings(tmp_path, train__steps=1)
    tree["rewards"] = [{"use": f"model:{directory}"}]
    start(parse_config(tree))
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["event"] == "sample"]
    assert isinstance(AutoTokenizer.from_pretrained(directory), PreTrainedTokenizerFast)
    close([row["score"] for row in rows], alone(directory, [row["prompt"] + row["completion"] for row in rows]))
