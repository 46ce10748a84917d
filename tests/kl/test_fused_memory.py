"""No pass of the fused head, the entropy's gradient among them, makes a tensor of tokens × vocabulary."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kleash.kl.fused import fused
from kleash.tensors import Head

TOKENS, VOCABULARY, HIDDEN, CHUNK = 96, 8192, 8, 1 << 15


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any result had of its own."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return found


@pytest.mark.parametrize("name", ["entropy", "logprobs", "kl"])
def test_nothing_grows_with_tokens_times_vocabulary(name):
    random = torch.Generator().manual_seed(1)
    hidden, other = (torch.randn(TOKENS, HIDDEN, generator=random) for _ in range(2))
    weight, targets = torch.randn(VOCABULARY, HIDDEN, generator=random), torch.arange(TOKENS)
    hidden.requires_grad_()
    weight.requires_grad_()
    head = Head(weight=weight, bias=None, vocab=VOCABULARY)
    reference = {"ref_hidden": other, "ref_head": Head(weight=weight.detach(), bias=None, vocab=VOCABULARY)}
    with Largest() as largest:
        seen = fused(hidden, head, targets, chunk_bytes=CHUNK, **(reference if name == "kl" else {}))
        getattr(seen, name).sum().backward()
    assert weight.grad is not None
    assert largest.numbers == weight.numel() < TOKENS * VOCABULARY / 8
