"""Tensors on disk, whole or not at all."""

import errno
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from kleash.whole import whole


def save_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file. The tensors may lie on any device, and in any order of their numbers.

    Raises:
        OSError: it cannot be written; also where safetensors has an error of its own for that, as of a full disk.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with whole(path) as draft:
            save_file(plain, draft, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
