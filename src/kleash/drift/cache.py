"""The base's final hidden states on disk, so that the next tuned model is compared without another forward of the base.

They are kept as the model computed them, bit by bit: what is read back gives the very numbers. A hidden state is 30 to
170 times smaller than the logits it stands for.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kleash.models.smollm2 import cache_root

#: What of a fingerprint decides hidden states.
_STATES = ("weights", "adapter", "dtype")
#: Bytes on disk of all cached states together; the oldest go first.
MOST_BYTES = 20 << 30


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
        draft = file.with_suffix(".part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({"hidden": hidden.detach().cpu().contiguous()}, draft)
            draft.replace(file)  # a killed process leaves no half file under the name
        except (OSError, SafetensorError):
            draft.unlink(missing_ok=True)
        self.prune()

    def prune(self) -> None:
        """Takes the longest unused files away until the rest fit."""
        found = sorted(self.root.glob("*/*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for path in found:
            total += path.stat().st_size
            if total > self.most_bytes:
                path.unlink(missing_ok=True)
