"""What memory there is."""

from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


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
