"""What is asked of an animal, each answer from something that kleash did not compute.

The truth of log-probs and gradients is the model's own logits on single rows: no batch, no padding, no mask, no head
recipe.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tests.models import build
from tests.training.small import OF_THE_MACHINE, events, settings, steps
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tools.zoo.families import VOCAB, Family
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from kleash.models.heads import apply
from kleash.models.load import Loaded, load
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.spec import Adapter, ModelSpec
from kleash.runlog import Resume
from kleash.tensors import Rollout
from kleash.training import online
from kleash.training.api import start
from kleash.training.config import Config
from kleash.training.toml import parse_config

#: With noise from a generator that a resume must restore.
REWARD = """
import numpy as np

def threes(completions, **columns):
    return [c.count("3") / 4 + 0.1 * np.random.normal() for c in completions]
"""


@dataclass(frozen=True, slots=True)
class Error:
    """Largest error of a log-prob in nats; of the gradient, relative to its length; None where none goes through."""

    logprob: float
    gradient: float | None


def write(family: Family, directory: Path) -> Path:
    """A random model of the family with a tokenizer of one word a token."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(family.build()).float()
    model.save_pretrained(directory)
    tokenizer = byte_pairs() if family.config == "Qwen2Config" else build.tokenizer(VOCAB)
    tokenizer.save_pretrained(directory)
    return directory


def byte_pairs() -> PreTrainedTokenizerFast:
    """Qwen2's models are given byte pairs by transformers, whatever tokenizer lies beside them."""
    tokens = ["Ġt", "t", "t2", "Ġ", *map(str, range(10)), *map(chr, range(ord("A"), ord("W") + 1))]
    inner = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, [("Ġ", "t")]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="t2", unk_token="W")


def rollout() -> Rollout:
    """Prompts of 5, 2 and 7 tokens, groups of unequal size, one-token completions among them."""
    return build.rollout((5, 2, 7), ((4, 6, 1), (6, 2), (3, 5, 6)))


def truth(policy: Policy, sample: Rollout) -> Tensor:
    """Log-probs of the counted tokens, from the model's own logits, a row at a time."""
    found = []
    for i, n in enumerate(sample.group.tolist()):
        prompt = sample.prompt_ids[n][sample.prompt_mask[n]]
        completion = sample.completion_ids[i][sample.mask[i]]
        logits = policy.model(input_ids=torch.cat([prompt, completion])[None], use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1, :VOCAB].float(), -1)
        found.append(logprobs.gather(-1, completion[:, None])[:, 0])
    return torch.cat(found)


def gradient(policy: Policy, logprobs: Tensor) -> Tensor:
    """Of a fixed weighting of the log-probs, for all that is trained."""
    weight = torch.cos(torch.arange(len(logprobs)))
    trained = policy.trainable()
    found = torch.autograd.grad((logprobs * weight).sum(), trained, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
    return torch.cat([part.flatten() for part in parts])


def paths(directory: Path, *, checkpointing: bool = False, adapter: bool = False) -> dict[PathName, Error]:
    """The error of each path that the model passed at load."""
    asked = Adapter(rank=2) if adapter else None
    loaded = load(ModelSpec(str(directory), gradient_checkpointing=checkpointing, adapter=asked, device="cpu"))
    policy, sample = loaded.policy, rollout()
    if adapter:
        disturb(policy)
    with evaluating(policy):
        right = truth(policy, sample)
        steepest = gradient(policy, right)
    errors: dict[PathName, Error] = {}
    for path in dict.fromkeys(loaded.paths + loaded.reading):
        live = path in loaded.paths
        with torch.set_grad_enabled(live):
            seen = policy(sample, path=path).logprobs[sample.mask]
        apart = (gradient(policy, seen) - steepest).norm() / steepest.norm() if live else None
        errors[path] = Error(float((seen - right).abs().max().detach()), None if apart is None else float(apart))
    return errors


@torch.no_grad()
def head(loaded: Loaded) -> float:
    """Largest difference of the head recipe from the model's own logits, relative to the largest logit."""
    ids = torch.arange(VOCAB)[None]
    hidden = loaded.policy.body(input_ids=ids, use_cache=False).last_hidden_state
    theirs = loaded.policy.causal(input_ids=ids, use_cache=False).logits[..., :VOCAB]
    return float((apply(hidden, loaded.policy.head()) - theirs).abs().max() / theirs.abs().max())


def runs(model: Path, directory: Path) -> tuple[int, bool]:
    """Steps of GRPO through the real loop, and whether a run that died in its second one resumes bitwise."""
    directory.mkdir()
    asked: dict[str, Any] = {"train__steps": 2, "train__checkpoint_every": 1}
    asked |= {"model__policy": str(model), "model__device": "cpu"}
    (directory / "reward.py").write_text(REWARD)
    asked |= {"rewards": [{"use": f"{directory / 'reward.py'}:threes"}]}
    whole = parse_config(settings(directory, **asked, out=str(directory / "whole")))
    broken = parse_config(settings(directory, **asked, out=str(directory / "run")))
    with redirect_stdout(io.StringIO()):
        return _both(whole, broken)


def _both(whole: Config, broken: Config) -> tuple[int, bool]:
    one, other = Path(whole.out), Path(broken.out)
    start(whole)
    tell = online._tell

    def die(state: Any, record: Any, *rest: Any) -> None:
        if record.step == 1:  # its updates are made and its record is not written
            raise DiedError
        tell(state, record, *rest)

    online._tell = die
    try:
        start(broken)
    except DiedError:
        pass
    finally:
        online._tell = tell
    start(broken, resume=True)
    resumed = [resume.step for resume in events(other, Resume)] == [1]
    return steps(one)[-1].step, resumed and _same(one, other)


class DiedError(Exception):
    """Stands for the end of the process."""


def _same(one: Path, other: Path) -> bool:
    records = [
        [{k: v for k, v in asdict(step).items() if k not in OF_THE_MACHINE} for step in steps(run)]
        for run in (one, other)
    ]
    a, b = (load(ModelSpec(str(newest(run)), device="cpu")).policy.state_dict() for run in (one, other))
    return records[0] == records[1] and all(torch.equal(a[name], b[name]) for name in a)


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


@torch.no_grad()
def exported(loaded: Loaded, directory: Path) -> bool:
    """Whether transformers alone loads what kleash saved, and gives the same logits; the weights were moved first."""
    disturb(loaded.policy)
    loaded.policy.save(directory, loaded.tokenizer)
    again: Any = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation=loaded.policy.causal.config._attn_implementation
    ).eval()
    ids = torch.arange(VOCAB)[None]
    ours = loaded.policy.model(input_ids=ids, use_cache=False).logits
    return torch.equal(again(input_ids=ids, use_cache=False).logits, ours)


@torch.no_grad()
def disturb(policy: Policy) -> None:
    """Moves every weight that is trained."""
    random = torch.Generator().manual_seed(3)
    for parameter in policy.trainable():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    training = policy.training
    policy.eval()
    yield
    policy.train(training)
