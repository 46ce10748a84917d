"""The base's final hidden states on disk, so that the next tuned model is compared without another forward of the base.

They are kept as the model computed them, bit by bit: what is read back gives the very numbers. A hidden state is 30 to
170 times smaller than the logits it stands for.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kleash.models.smollm2 import cache_root
from kleash.models.tensor_files import save_whole
from kleash.whole import DRAFT

#: What of a fingerprint decides hidden states.
_STATES = ("weights", "adapter", "dtype")
#: Bytes on disk of all cached states together; the oldest go first.
MOST_BYTES = 20 << 30
#: Seconds after which a draft is left over: one is written in less than a minute.
ABANDONED = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """A directory of hidden states, a file for each batch of tokens of each model.

    The key is the model's fingerprint (weights, adapter, precision), the device's kind, and the tokens of the batch.
    """

    root: Path
    most_bytes: int = MOST_BYTES

    @staticmethod
    def default() -> "StateCache":
        """In kleash's cache directory, under drift-states."""
        return StateCache(root=cache_root() / "drift-states")

    def file(self, fingerprint: dict[str, Any], device: str, rows: Sequence[Sequence[int]], counts: int) -> Path:
        """Where the states of `counts` scored positions of these rows lie, or would."""
        model = json.dumps([device, *(fingerprint.get(name) for name in _STATES)]).encode()
        tokens = hashlib.sha256()
        for row in rows:
            tokens.update(np.asarray([len(row), *row], dtype="<i8").tobytes())
        tokens.update(str(counts).encode())
        return self.root / hashlib.sha256(model).hexdigest()[:16] / f"{tokens.hexdigest()[:32]}.safetensors"

    def read(self, file: Path) -> Tensor | None:
        """The states, or None where there are none or they cannot be read."""
        try:
            states = load_file(file)["hidden"]
            file.touch()
        except (OSError, KeyError, SafetensorError):
            return None
        return states

    def write(self, file: Path, hidden: Tensor) -> None:
        """Keeps states; where the disk takes none, they are computed again the next time."""
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            save_whole(file, {"hidden": hidden})  # a killed process leaves no half file under the name
        self.prune()

    def prune(self) -> None:
        """Takes the longest unused files away until the rest fit, and drafts that nobody is writing any more."""
        found = [(*used, path) for path in self.root.glob("*/*.safetensors") if (used := _used(path))]
        total = 0
        for _, size, path in sorted(found, reverse=True):
            total += size
            if total > self.most_bytes:
                _take_away(path)
        for path in self.root.glob(f"*/*{DRAFT}"):
            if (used := _used(path)) and used[0] < time.time() - ABANDONED:
                _take_away(path)


def _take_away(path: Path) -> None:
    with suppress(OSError):  # a cache that may only be read is one too
        path.unlink()


def _used(path: Path) -> tuple[float, int] | None:
    """When it was last used, and its size; None if another audit has taken it away meanwhile."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime, found.st_size
