"""The exact KL of somebody else's model, on what it writes itself: its own samples after a few prompts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.kl.divergences import reverse
from kleash.kl.measure import measure
from kleash.plug.references import AdapterOff, Given, Kept
from kleash.records import Reading

#: Rows that go through the model at a time: logits of rows × tokens × vocabulary are made.
ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measurement. text: what was written after each prompt; kl: nats per sequence of each; length: its tokens."""

    per_sequence: Reading
    per_token: Reading
    text: tuple[str, ...]
    kl: tuple[float, ...]
    length: tuple[int, ...]
    truncated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Samples after fixed prompts, and the exact KL along them.

    prompts: token ids, each answered `each` times. temperature: that of the trainer, at which both are compared.
    """

    prompts: tuple[tuple[int, ...], ...]
    each: int
    tokenizer: Any
    new_tokens: int
    temperature: float
    seed: int

    def read(self, policy: Any, reference: AdapterOff | Kept | Given, step: int) -> Seen:
        """With the noise of `step`. Leaves the model's mode and all random states as they were."""
        with torch.no_grad(), quiet(policy, self.seed + step):
            ids, attention, mask = self._write(policy)
            kl = self._compare(policy, reference, ids, attention, mask)
        group = torch.arange(len(self.prompts)).repeat_interleave(self.each)
        readings = [
            measure(kl, mask, group, kind="kl_ref", estimator="exact", unit=unit)
            for unit in ("nats/sequence", "nats/token")
        ]
        written = ids[:, -mask.shape[1] :]
        end = set(ends(policy, self.tokenizer))
        stopped = [any(int(t) in end for t in row[m]) for row, m in zip(written, mask, strict=True)]
        return Seen(
            per_sequence=readings[0],
            per_token=readings[1],
            text=tuple(
                self.tokenizer.decode(row[m], skip_special_tokens=True) for row, m in zip(written, mask, strict=True)
            ),
            kl=tuple((kl * mask).sum(1).tolist()),
            length=tuple(mask.sum(1).tolist()),
            truncated=1 - sum(stopped) / len(stopped),
        )

    def plain(self, ids: Any) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def _write(self, policy: Any) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], Bool[Tensor, "B T"]]:
        from transformers import GenerationConfig

        device = next(policy.parameters()).device
        stop, pad = ends(policy, self.tokenizer), _pad(self.tokenizer)
        asked = [p for p in self.prompts for _ in range(self.each)]
        longest = max(map(len, asked))
        ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in asked], device=device)
        attention = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in asked], device=device)
        how = GenerationConfig(
            max_new_tokens=self.new_tokens, do_sample=True, temperature=self.temperature, top_k=0, top_p=1.0,
            eos_token_id=list(stop) or None, pad_token_id=pad, use_cache=True,
        )  # fmt: skip
        whole = policy.generate(input_ids=ids, attention_mask=attention, generation_config=how)
        written = whole[:, longest:]
        mask = counted(written, stop)
        return whole, torch.cat([attention, mask.long()], 1), mask.cpu()

    def _compare(
        self,
        policy: Any,
        reference: AdapterOff | Kept | Given,
        ids: Int[Tensor, "B L"],
        attention: Int[Tensor, "B L"],
        mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        parts = []
        for at in range(0, len(ids), ROWS):
            rows = slice(at, at + ROWS)
            own = self._logprobs(policy, ids[rows], attention[rows], mask.shape[1])
            with reference.model() as other:
                ref = self._logprobs(other, ids[rows], attention[rows], mask.shape[1])
            parts.append(reverse(own, ref).cpu())
        return torch.cat(parts)

    def _logprobs(
        self, model: Any, ids: Int[Tensor, "b L"], attention: Int[Tensor, "b L"], new: int
    ) -> Float[Tensor, "b T V"]:
        positions = (attention.cumsum(1) - 1).masked_fill(attention == 0, 0)
        out = model(
            input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False, logits_to_keep=new + 1
        )
        return (out.logits[:, -new - 1 : -1].float() / self.temperature).log_softmax(-1)


def counted(written: Int[Tensor, "B T"], stop: Sequence[int]) -> Bool[Tensor, "B T"]:
    """True up to the first end token, that one included."""
    ended = torch.isin(written, torch.tensor(list(stop), device=written.device)) if stop else written < 0
    return (ended.long().cumsum(1) - ended.long()) == 0


def ends(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The model's end tokens, else the tokenizer's."""
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    found = tokenizer.eos_token_id if found is None else found
    return tuple(found) if isinstance(found, list | tuple) else () if found is None else (int(found),)


def _pad(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0)


@contextmanager
def quiet(model: Any, seed: int) -> Iterator[None]:
    """eval() and random numbers of one's own inside; outside everything is as it was."""
    training, devices = model.training, [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.eval()
        try:
            yield
        finally:
            model.train(training)
            for module, mode in modes.items():
                module.training = mode
