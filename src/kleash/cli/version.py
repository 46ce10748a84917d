"""What a bug report needs to know of an environment."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Packages that decide what a run does.
PACKAGES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "datasets", "numpy", "pydantic", "torchao")


def environment() -> list[str]:
    """A line a fact; no name of a person, host or directory."""
    import torch

    import kleash

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    return [
        f"kleash        {kleash.__version__}",
        f"python        {platform.python_version()} ({platform.python_implementation()})",
        f"system        {platform.system()} {platform.release()}, {platform.machine()}",
        *(f"{name:<13} {_installed(name)}" for name in PACKAGES),
        f"devices       {', '.join(devices) or 'CPU only'}",
        f"cores         {os.cpu_count()}, torch uses {torch.get_num_threads()} threads",
        f"memory        {_memory()}",
    ]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    try:
        first = Path("/proc/meminfo").read_text().splitlines()[0]
        return f"{int(first.split()[1]) / 1e6:.1f} GB"
    except (OSError, ValueError, IndexError):
        return "not known"
