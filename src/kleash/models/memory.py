"""What memory there is, and what a model takes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kleash.models.measured import kept
from kleash.models.paths import PathName
from kleash.models.plan import Size
from kleash.models.policy import Policy
from kleash.models.quantised import quantised_layers

_CGROUP = Path("/sys/fs/cgroup")


def size_of(policy: Policy, paths: Sequence[PathName]) -> Size:
    """The policy's widths, from its config and its weights, and what its layers keep by some of these paths."""
    config: Any = policy.config.get_text_config()
    hidden = config.hidden_size
    heads = _most(config, "num_attention_heads") or 1  # a recurrent model has none: as wide as its state
    width = _most(config, "head_dim") or hidden // heads
    embedding = policy.causal.get_input_embeddings().weight
    matrices = {id(p): p.numel() for p in policy.body.parameters() if p.ndim > 1 and p is not embedding}
    packed = sum(layer.in_features * layer.out_features for layer in quantised_layers(policy.body))
    return Size(
        layers=config.num_hidden_layers,
        hidden=hidden,
        attention=heads * width,
        vocab=policy.recipe.vocab,
        weights=packed + sum(matrices.values()),
        kept=kept(policy, shares="cached" in paths),
        element=(policy.compute or policy.causal.dtype).itemsize,
        stream=policy.causal.dtype.itemsize,
        bodies=2 if policy.critic is not None and policy.critic.body is not None else 1,
        gradients=sum(p.nbytes for p in policy.parameters() if p.requires_grad),
        recomputed=any(getattr(module, "gradient_checkpointing", False) for module in policy.body.modules()),
    )


def _most(config: Any, name: str) -> int | None:
    """A size that may differ from layer to layer: the largest; None where the config has none."""
    value: Any = getattr(config, name, None)
    several: list[int] = list(value) if isinstance(value, list | tuple) else [value or 0]
    return max(several) or None


def free_bytes(device: torch.device, *, proc: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Memory that is there for the taking on this device; None where it cannot be asked for."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    known = [size for size in (_available(proc), _below_limit(cgroup)) if size is not None]
    return min(known, default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _below_limit(cgroup: Path) -> int | None:
    """What a container's limit leaves. The page cache counts as used and is given back when it is needed."""
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return int(limit) - int(used) + int(cache["inactive_file"])  # "max" is no number: no limit
    except (OSError, KeyError, ValueError):
        return None
