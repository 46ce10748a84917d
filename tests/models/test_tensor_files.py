"""Tensors on disk: what is written is read back, and a disk that fills up is an OSError that leaves nothing."""

import resource
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from kleash.models.tensor_files import save_whole


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    grid = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    save_whole(tmp_path / "a.safetensors", {"turned": grid.T}, {"key": "x"})
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.get_tensor("turned").tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
        assert file.metadata() == {"key": "x"}


def test_a_disk_that_fills_up_leaves_the_earlier_file(tmp_path: Path) -> None:
    """No file may grow beyond 4 kB: safetensors has an error of its own for that."""
    path = tmp_path / "a.safetensors"
    save_whole(path, {"x": torch.zeros(3)})
    earlier, before = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_whole(path, {"x": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.strerror
    assert [file.name for file in tmp_path.iterdir()] == [path.name] and path.read_bytes() == earlier
