"""The real loop on a model small enough to enumerate: V = 5 (an end token among them), T = 3, groups of G = 2.

The sampler is replaced by every ordered pair of the 85 sequences, each weighted by its probability, so that one step
of the loop takes the *expected* gradient. Truth is autograd through exact sums over the model's own logits, computed
by calling the transformers model on single rows; nothing of kleash is on that side.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.tabular import Sequences, enumerate_sequences
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from kleash.beta import Constant
from kleash.models import adapters
from kleash.models.counting import TokenCounter
from kleash.models.critic import make_critic
from kleash.models.heads import recipe_from
from kleash.models.load import Loaded
from kleash.models.memory import size_of
from kleash.models.plan import Plan, Work
from kleash.models.policy import Policy
from kleash.models.reference import Frozen
from kleash.models.sampling import Sampling, sample
from kleash.models.several import Several
from kleash.models.spec import Adapter, CriticKind
from kleash.models.stopping import Ends
from kleash.rewards.load import Rewarder
from kleash.rl.mismatch import Mismatch
from kleash.runlog.jsonl import Writer
from kleash.tensors import Rollout
from kleash.training import online, rolling
from kleash.training.data import as_prompts
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.passes import Update
from kleash.training.toml import parse_config

V, T, EOS, C = 5, 3, 2, 3
PROMPT = [3, 0, 4]
BETA = 0.7
SPACE: Sequences = enumerate_sequences(V, T, eos=EOS)
S = SPACE.ids.shape[0]


def small_model(seed: int) -> Any:
    return build.model(
        "llama", torch.float64, seed=seed, vocab_size=V, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, initializer_range=0.6,
    )  # fmt: skip


def small_policy(seed: int, *, lora: bool = False, critic: CriticKind | None = None) -> Policy:
    built = small_model(seed)
    if lora:
        built = adapters.attach(built, Adapter(rank=2), "base", seed).double()
        torch.manual_seed(seed + 1)
        for name, parameter in built.named_parameters():
            if "lora_B" in name:  # B = 0 would leave A without a gradient
                parameter.data.normal_(std=0.5)
    policy = Policy(built, recipe_from(build.CONFIGS["llama"](vocab_size=V), V))
    if critic is not None:
        policy.critic, _ = make_critic(critic, policy.causal, Path("nowhere"))
        torch.manual_seed(seed + 2)
        for parameter in policy.critic.value.parameters():
            parameter.data.normal_()  # any values will do; those of 0 would hide mistakes
    return policy


def small_tokenizer() -> PreTrainedTokenizerFast:
    """t0 … t4 between spaces; only the end token is special, so every sequence has a text of its own."""
    inner = Tokenizer(WordLevel({f"t{i}": i for i in range(V)}, unk_token="none"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=f"t{EOS}")


def logits_of(policy: Policy) -> Tensor:
    """[S, T, V] log π(·|prompt, prefix) by the transformers model itself, rows alone, live."""
    rows = torch.cat([torch.tensor(PROMPT).expand(S, -1), SPACE.ids[:, :-1]], 1)
    return policy.model(input_ids=rows, use_cache=False).logits[:, len(PROMPT) - 1 :].log_softmax(-1)


def token_logprobs(next_logprobs: Tensor) -> Tensor:
    return torch.where(SPACE.mask, next_logprobs.gather(-1, SPACE.ids[..., None])[..., 0], 0.0)


def scores() -> Tensor:
    """A fixed reward of each sequence, without structure."""
    return torch.rand(S, generator=torch.Generator().manual_seed(11), dtype=torch.float64) * 2 - 1


def objective(policy: Policy, reference: Policy, beta: float, reward: Tensor) -> Tensor:
    """E R − beta KL(policy‖reference) of the sequence: exact sums, live."""
    log_p, log_q = token_logprobs(logits_of(policy)).sum(1), token_logprobs(logits_of(reference)).sum(1).detach()
    return (log_p.exp() * (reward - beta * (log_p - log_q))).sum()


def gradient(value: Tensor, policy: Policy) -> Tensor:
    """∇value with respect to everything that trains, flat."""
    parameters = [p for p in policy.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
    )


class Spy(torch.optim.SGD):
    """Reads `.grad` where an optimizer does. Moves the weights only by what `moves` says after each step."""

    def __init__(self, policy: Policy, moves: list[list[Tensor] | None] | None = None) -> None:
        super().__init__(policy.trainable(), lr=0.0)
        self.trained, self.moves, self.seen = policy.trainable(), moves or [], []

    def step(self, closure: Any = None) -> None:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        self.seen.append(torch.cat([g.flatten() for g in grads]).clone())
        move = self.moves[len(self.seen) - 1] if len(self.seen) <= len(self.moves) else None
        if move is not None:
            with torch.no_grad():
                for parameter, delta in zip(self.trained, move, strict=True):
                    parameter.add_(delta)


@dataclass
class Setting:
    """What a test varies."""

    algorithm: Any
    penalty: Any
    beta: float = BETA
    lora: bool = False
    groups_per_pass: int | None = None
    reward: Tensor | None = None
    moves: list[list[Tensor] | None] | None = None
    edit: Callable[[Rollout], Rollout] = lambda rollout: rollout
    token_weight: Tensor | None = None
    mismatch: Mismatch | None = None
    entropy: dict[str, Any] | None = None


def pairs(policy: Policy) -> Rollout:
    """Every ordered pair of sequences as a group, weighted by its probability (times N, since the loss is a mean)."""
    with torch.no_grad():
        logprobs = token_logprobs(logits_of(policy))
    probability = logprobs.sum(1).exp()
    first, second = torch.cartesian_prod(torch.arange(S), torch.arange(S)).T
    return rollout_of(torch.stack([first, second], 1).flatten(), logprobs, probability[first] * probability[second])


def singles(policy: Policy) -> Rollout:
    """Every sequence as a group of its own, weighted by its probability times N."""
    with torch.no_grad():
        logprobs = token_logprobs(logits_of(policy))
    return rollout_of(torch.arange(S), logprobs, logprobs.sum(1).exp(), size=1)


def rollout_of(rows: Tensor, logprobs: Tensor, probability: Tensor, size: int = 2) -> Rollout:
    n = len(probability)
    return Rollout(
        prompt_ids=torch.tensor(PROMPT).expand(n, -1),
        prompt_mask=torch.ones(n, len(PROMPT), dtype=torch.bool),
        completion_ids=SPACE.ids[rows],
        mask=SPACE.mask[rows],
        group=torch.arange(n).repeat_interleave(size),
        sampler=logprobs[rows],
        truncated=~(SPACE.ids[rows] == EOS).any(1),
        weight=probability * n,
    )


def _sampler_of(rollout: Rollout) -> Callable[..., Rollout]:
    """This rollout for whoever samples; who asks for the likeliest completions gets them from the real sampler."""

    def drawn(policy: Policy, prompts: Any, settings: Sampling, *rest: Any, **keys: Any) -> Rollout:
        return sample(policy, prompts, settings, *rest, **keys) if settings == settings.greedy else rollout

    return drawn


def run_step(
    setting: Setting,
    policy: Policy,
    reference: Policy | Several,
    rollout: Rollout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Spy:
    """One step of `kleash.training.online` with this rollout in the place of the sampler's."""
    monkeypatch.setattr(rolling, "sample", _sampler_of(setting.edit(rollout)))
    n = rollout.n_prompts
    tokenizer = small_tokenizer()
    reward = scores() if setting.reward is None else setting.reward
    by_text = {
        tokenizer.decode(SPACE.ids[i][SPACE.mask[i]], skip_special_tokens=True): float(reward[i]) for i in range(S)
    }
    assert len(by_text) == S
    spy = Spy(policy, setting.moves)
    config = parse_config({
        "out": str(tmp_path), "model": {"policy": "none"}, "data": {"prompts": "none"}, "rewards": [{"use": "table"}],
        "train": {"steps": 1, "prompts_per_step": n, "max_new_tokens": C, "warmup_updates": 0},
        "kl": {"beta": abs(setting.beta)}, "entropy": setting.entropy,
    })  # fmt: skip
    plan = Plan(groups=setting.groups_per_pass)
    job = Job(
        config=config,
        run_dir=tmp_path,
        loaded=Loaded(
            policy, tokenizer, "small", tmp_path, 64, Ends((EOS,), EOS, tokenizer), ("packed",), ("packed",), None
        ),
        reference=reference if isinstance(reference, Several) else Frozen(reference, {}),
        rewarders=[Rewarder("table", 1.0, lambda prompts, completions: [by_text[c.strip()] for c in completions], 0.0)],
        prompts=as_prompts([" ".join(f"t{i}" for i in PROMPT)] * n),
        sampling=Sampling(max_new_tokens=C),
        update=Update(
            algorithm=setting.algorithm,
            penalty=setting.penalty,
            length=C,
            token_weight=setting.token_weight,
            mismatch=setting.mismatch,
        ),
        controller=Constant(),
        optimizer=spy,
        learning_rate=1e-3,
        size=size_of(policy, ("packed",)),
        work=Work(prompts=n, groups=n, group_size=2, prompt=len(PROMPT), length=C),
        plan=plan,
    )
    with Writer(tmp_path / "events.jsonl") as events, Writer(tmp_path / "samples.jsonl") as samples:
        sinks = Sinks(events, samples, lambda *told: None, lambda text: None)
        controller = replace(Constant().init(abs(setting.beta)), beta=setting.beta)
        state = Progressing(step=0, controller=controller, plan=plan)
        counter = TokenCounter(policy, *job.reference.policies)
        online.take_step(job, state, sinks, counter)
        counter.close()
    return spy
