"""Random tiny models and rollouts for the tests: Llama-family architectures, exact in float64 if asked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from kleash.models.heads import recipe_from
from kleash.models.policy import Policy
from kleash.tensors import Rollout

VOCAB = 37
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda **o: LlamaConfig(**SIZES | {"tie_word_embeddings": True} | o),
    "qwen2": lambda **o: Qwen2Config(**SIZES | o),
    "qwen3": lambda **o: Qwen3Config(**SIZES | o),
    "mistral": lambda **o: MistralConfig(**SIZES | {"sliding_window": 32} | o),
    "gpt2": lambda **o: GPT2Config(
        **{"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": 2} | o
    ),
}
LLAMA_FAMILY = ["llama", "qwen2", "qwen3", "mistral"]


class ExactNorm(nn.Module):
    """RMSNorm in the dtype it is given: the library's own goes through fp32 and caps float64 at 1e-8."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def model(kind: str = "llama", dtype: torch.dtype = torch.float32, *, seed: int = 0, **overrides: Any) -> Any:
    """A random causal language model; in float64 every operation is float64."""
    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_config(CONFIGS[kind](**overrides)).eval().to(dtype)
    if dtype == torch.float64:
        for parent in list(built.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__.endswith("RMSNorm"):
                    setattr(parent, name, ExactNorm(child.weight, child.variance_epsilon))
    return built


def policy(kind: str = "llama", dtype: torch.dtype = torch.float32, *, seed: int = 0, **overrides: Any) -> Policy:
    built = model(kind, dtype, seed=seed, **overrides)
    return Policy(built, recipe_from(built.config, VOCAB)).eval()


def rollout(
    prompt_lengths: Sequence[int] = (5, 2, 7),
    completion_lengths: Sequence[Sequence[int]] = ((4, 6, 1), (6, 6, 2), (3, 5, 6)),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Rollout:
    """Left-padded prompts and right-padded completions of these lengths; garbage under every mask."""
    random = torch.Generator().manual_seed(seed)
    N, P = len(prompt_lengths), max(prompt_lengths)
    lengths = torch.tensor([n for group in completion_lengths for n in group])
    B, T = len(lengths), int(lengths.max())
    return Rollout(
        prompt_ids=torch.randint(VOCAB, (N, P), generator=random),
        prompt_mask=torch.arange(P) >= P - torch.tensor(prompt_lengths)[:, None],
        completion_ids=torch.randint(VOCAB, (B, T), generator=random),
        mask=torch.arange(T) < lengths[:, None],
        group=torch.repeat_interleave(torch.arange(N), torch.tensor([len(g) for g in completion_lengths])),
        sampler=torch.zeros(B, T, dtype=dtype),
        truncated=torch.zeros(B, dtype=torch.bool),
    )


def without_row(sample: Rollout, row: int) -> Rollout:
    """The rollout without one completion."""
    keep = torch.arange(sample.mask.shape[0]) != row
    rows = ("completion_ids", "mask", "group", "sampler", "truncated")
    return replace(sample, **{name: getattr(sample, name)[keep] for name in rows})


def single_rows(body: nn.Module, sample: Rollout) -> Tensor:
    """The oracle: hidden states that predict the counted tokens, each row alone, without padding, mask or position.

    [M, H] in the order of `x[mask]`. Independent of kleash's paths.
    """
    rows = []
    for i, n in enumerate(sample.group.tolist()):
        prompt = sample.prompt_ids[n][sample.prompt_mask[n]]
        last = int(sample.mask[i].nonzero().max()) + 1
        ids = torch.cat([prompt, sample.completion_ids[i, :last]])[None]
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state[0]
        at = len(prompt) - 1 + sample.mask[i].nonzero()[:, 0]
        rows.append(hidden[at])
    return torch.cat(rows)


def tokenizer(size: int = VOCAB, *, eos: str | None = "t2") -> PreTrainedTokenizerFast:
    """Words t0 … t{size−1}, separated by spaces; the end token is t2 and there is no pad token."""
    inner = Tokenizer(WordLevel({f"t{i}": i for i in range(size)}, unk_token="t0"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, unk_token="t0")


def checkpoint(directory: Path, kind: str = "llama", *, seed: int = 0, words: int = VOCAB, **overrides: Any) -> Path:
    """A model directory in Hugging Face format."""
    model(kind, seed=seed, **overrides).save_pretrained(directory)
    tokenizer(words).save_pretrained(directory)
    return directory
