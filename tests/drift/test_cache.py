"""The cache of hidden states where processes are killed, or are two: what is read back is whole, or nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kleash.drift.cache import ABANDONED, StateCache
from kleash.models import tensor_files

FINGERPRINT = {"weights": "w", "adapter": None, "dtype": "float32"}
#: Writes states over and over until it is killed.
WRITER = """
import sys, torch
from pathlib import Path
from kleash.drift.cache import StateCache
cache = StateCache(root=Path(sys.argv[1]))
file = cache.file({"weights": "w", "adapter": None, "dtype": "float32"}, "cpu", [[1, 2]], 1)
print("ready", flush=True)
while True:
    cache.write(file, torch.full((500, 2000), 3.0))
"""


def place(cache: StateCache) -> Path:
    return cache.file(FINGERPRINT, "cpu", [[1, 2]], 1)


def test_a_writer_that_is_killed_leaves_whole_states_or_none(tmp_path: Path) -> None:
    cache = StateCache(root=tmp_path)
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    found = cache.read(place(cache))
    assert found is None or (found.shape == (500, 2000) and bool((found == 3).all()))
    cache.write(place(cache), torch.ones(1, 2))
    assert cache.read(place(cache)) is not None


def test_two_writers_of_the_same_states_do_not_take_each_others_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writes all of it while the first is half done; the first then goes on."""
    cache = StateCache(root=tmp_path)

    def interleaved(tensors: dict[str, torch.Tensor], draft: Path, metadata: None) -> None:
        monkeypatch.setattr(tensor_files, "save_file", save_file)
        with draft.open("wb") as half:
            half.write(b"half")
            cache.write(place(cache), torch.ones(2, 3))
            half.write(b"another quarter")
        seen.append(cache.read(place(cache)))
        save_file(tensors, draft)

    seen: list[torch.Tensor | None] = []
    monkeypatch.setattr(tensor_files, "save_file", interleaved)
    cache.write(place(cache), torch.ones(2, 3))
    for found in (*seen, cache.read(place(cache))):
        assert found is not None and found.tolist() == [[1.0] * 3] * 2
    assert [path.suffix for path in tmp_path.glob("*/*")] == [".safetensors"]


def test_drafts_that_nobody_writes_any_more_are_taken_away(tmp_path: Path) -> None:
    cache = StateCache(root=tmp_path)
    folder = place(cache).parent
    folder.mkdir()
    for name, age in (("old", ABANDONED + 60), ("new", 0)):
        (folder / f"{name}.part").write_bytes(b"half")
        os.utime(folder / f"{name}.part", (time.time() - age, time.time() - age))
    cache.write(place(cache), torch.ones(1, 2))
    assert [path.name for path in folder.glob("*.part")] == ["new.part"]


def test_what_another_audit_took_away_meanwhile_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = StateCache(root=tmp_path, most_bytes=0)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([tmp_path / "gone.safetensors", tmp_path / "gone.part"]))
    cache.prune()
