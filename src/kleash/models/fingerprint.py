"""What a model is, in a few hashes: taken when a run starts, verified when it resumes."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from kleash.models.policy import Policy

#: Field → how a person calls it; also the order in which differences are told.
FIELDS = {
    "weights": "the weights",
    "quantised": "the quantisation",
    "adapter": "the adapter",
    "dtype": "the precision",
    "tokenizer": "the tokenizer",
    "chat_template": "the chat template",
    "temperature": "the temperature",
}


def fingerprint(policy: Policy, tokenizer: Any, *, temperature: float, adapter: str | None) -> dict[str, Any]:
    """Hashes (sha256) and settings of everything that decides the policy's distribution.

    Args:
        policy: its weights are those of the model without any adapter.
        tokenizer: of that model.
        temperature: at which log-probs are taken.
        adapter: peft's name of the adapter that is switched on, None for none.
    """
    template = getattr(tokenizer, "chat_template", None)
    stored = str(policy.causal.dtype).removeprefix("torch.")
    quantised = policy.quantised
    return {
        "weights": weights_digest(policy),
        # what torchao made of them besides: another version of it may round otherwise
        **({} if quantised is None else {"quantised": f"{quantised.scheme}, {quantised.numbers[:12]}"}),
        "adapter": None if adapter is None else adapter_digest(policy, adapter),
        "dtype": stored if policy.compute is None else f"{str(policy.compute).removeprefix('torch.')} over {stored}",
        "tokenizer": tokenizer_digest(tokenizer),
        "chat_template": None if template is None else _digest(json.dumps(template).encode()),
        "temperature": temperature,
    }


def weights_digest(policy: Policy) -> str:
    """Of the weights without any adapter; of those in few bits, as they were before."""
    return model_digest(policy.causal) if policy.quantised is None else policy.quantised.weights


def model_digest(model: Any) -> str:
    """Of a model's weights without any adapter."""
    base = []
    for name, tensor in sorted(model.state_dict().items()):
        parts = name.split(".")
        if not any(part.startswith("lora_") for part in parts):
            base.append((".".join(part for part in parts if part != "base_layer"), tensor))
    return tensors_digest(base)


def adapter_digest(policy: Policy, adapter: str) -> str | None:
    """Of one adapter, the same under whatever name; None without one of this name."""
    own = []
    for name, tensor in sorted(policy.causal.state_dict().items()):
        parts = name.split(".")
        if adapter in parts and any(part.startswith("lora_") for part in parts):
            own.append((".".join(part for part in parts if part != adapter), tensor))
    return tensors_digest(own) if own else None


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for part in _plain(tensor):
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor itself; of one that wraps others (quantised: numbers, scales, zero points), those in their order."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:  # pyright: ignore[reportAttributeAccessIssue]
        yield from _plain(getattr(tensor, name))


def tokenizer_digest(tokenizer: Any) -> str:
    """Of what text becomes: the fast tokenizer's own description, or its vocabulary where there is none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else _unpadded(backend.to_str())
    return _digest(text.encode())


def _unpadded(description: str) -> str:
    # Padding and truncation are settings of a call, not of the tokenizer; using it changes them.
    fields = json.loads(description) | {"padding": None, "truncation": None}
    return json.dumps(fields, sort_keys=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, what of a model, or of several by name, has changed between two fingerprints; empty if nothing has."""
    names = [_names(side) for side in (before, now)]
    if names[0] != names[1]:
        return [f"the references changed: {names[0] or 'one model'} before, {names[1] or 'one model'} now"]
    if names[0]:
        return [f"{name}: {said}" for name in before for said in differences(before[name], now[name])]
    return [
        f"{words} changed: {_short(before.get(field))} before, {_short(now.get(field))} now"
        for field, words in FIELDS.items()
        if before.get(field) != now.get(field)
    ]


def _names(side: dict[str, Any]) -> str:
    """Of several models; empty for one."""
    return ", ".join(side) if any(isinstance(value, dict) for value in side.values()) else ""


def _short(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)
