"""fused never makes the plane of tokens × vocabulary, and saves nothing of its size."""

import weakref

import torch
from tests.kl.fused_cases import LIVE, make
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The largest storage any operation makes or touches, and the most elements of new storage alive at once."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.largest, self.operations, self.alive, self.peak = 0, 0, 0, 0
        self.seen = {x.untyped_storage()._cdata for x in given}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self.seen:
                self.count(x)
        return result

    def count(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self.seen.add(key)
        self.alive += size
        self.peak, self.largest = max(self.peak, self.alive), max(self.largest, size)

        def gone() -> None:
            self.alive -= size
            self.seen.discard(key)

        weakref.finalize(storage, gone)


def test_the_plane_is_never_made() -> None:
    V, H, chunk = 2000, 4, 1 << 14
    peaks = {}
    for M in (100, 400):
        case = make(M, H, V, H, softcap=5.0)
        with Largest([*case.leaves(), case.ref_hidden, case.ref_head.weight, case.targets]) as seen:
            found = case.run(forward_kl=True, chunk_bytes=chunk)
            forward = seen.operations
            (found.kl + found.kl_forward - found.logprobs + found.entropy).sum().backward()
        tiles = M * V * 4 / chunk
        assert forward > tiles and seen.operations - forward > tiles  # it saw both passes
        assert seen.largest <= max(chunk, 4 * V * H, 8 * 11 * M)
        peaks[M] = seen.peak
    gradients = 4 * (V * H + V)
    assert peaks[100] < 8 * chunk + 2 * gradients + 100 * 60 * 8
    # 300 more tokens cost sixty numbers each: vectors per token, not rows of a plane of 2,000.
    assert peaks[400] - peaks[100] < 300 * 60 * 8 < 300 * V * 4 / 16


def test_nothing_but_inputs_and_moments_is_saved() -> None:
    case = make(M=50, V=900)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        case.run(forward_kl=True)
    given = {x.untyped_storage().data_ptr() for x in [*case.leaves(), case.ref_hidden, case.ref_head.weight]}
    extra = sum(x.numel() for x in saved if x.untyped_storage().data_ptr() not in given)
    assert extra <= 12 * 50  # eleven moments and the target
    with torch.no_grad():
        assert not any(getattr(case.run(forward_kl=True), name).requires_grad for name in LIVE)
