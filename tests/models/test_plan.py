"""Which plan is chosen, its arithmetic by hand, and what a process has left, from files made for it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models import build

from kleash.models.exhausted import is_out_of_memory
from kleash.models.free import free_bytes
from kleash.models.measured import Kept
from kleash.models.memory import size_of
from kleash.models.plan import (
    Plan,
    Size,
    Work,
    activations,
    candidates,
    choose,
    decoding,
    halvings,
    less_sampled,
    lowered,
    operations,
)

ALL = ("packed", "cached", "two_stage", "plain")
#: SmolLM2-135M in fp32, as `size_of` measures it.
KEPT = Kept(token=1_434_932.0, pair=120.0, key=138_240.0, fixed=0.0, position=46_080.0, state=0.0)
SMOLLM2 = Size(layers=30, hidden=576, attention=576, vocab=49152, weights=106_168_320, kept=KEPT)


def work(**changes: int) -> Work:
    return Work(**{"prompts": 8, "groups": 8, "group_size": 8, "prompt": 200, "length": 32} | changes)


def test_packed_is_left_where_its_attention_dominates():
    """By hand: 2·106e6 operations a token, 4·30·576 for each pair of tokens."""
    P, G, T = 200, 8, 32
    linear = 2 * 106_168_320 * (P + G * T)
    assert operations(SMOLLM2, work(), "packed") == linear + 4 * 30 * 576 * (P + G * T) ** 2
    assert operations(SMOLLM2, work(), "cached") == linear + 4 * 30 * 576 * (P * P + G * T * (P + T))
    assert choose(SMOLLM2, work(), ALL, None) == Plan("packed")
    assert choose(SMOLLM2, work(length=1024), ALL, None) == Plan("cached")
    assert choose(SMOLLM2, work(length=1024), ("packed", "plain"), None) == Plan("packed")
    assert choose(SMOLLM2, work(), ("plain",), None) == Plan("plain")


def test_less_memory_means_less_at_a_time():
    """Every plan in turn is chosen by the memory that it takes, and the last of them where nothing fits."""
    big = activations(SMOLLM2, work(), Plan("packed"))
    found = [replace(choose(SMOLLM2, work(), ALL, int(big * 1.3 / 2**k)), sampled=None) for k in range(9)]
    assert found[0] == Plan("packed")
    assert found[1] == Plan("packed", groups=4)
    assert found[3] == Plan("packed", groups=1)
    assert found[5].path == "two_stage"
    assert found[5].groups == 1
    assert choose(SMOLLM2, work(), ALL, 0) == Plan("two_stage", 1, 1, 1)
    sizes = [activations(SMOLLM2, work(), plan) for plan in found]
    assert sizes == sorted(sizes, reverse=True)
    assert choose(SMOLLM2, work(asked=3), ALL, 0).groups == 3


def test_few_prompts_are_sampled_at_a_time_where_their_keys_do_not_fit():
    whole = decoding(SMOLLM2, work(), None)
    assert choose(SMOLLM2, work(length=4096), ALL, 2 * whole).sampled is not None
    assert choose(SMOLLM2, work(), ALL, 200 * whole).sampled is None


@given(
    groups=st.integers(1, 9),
    group_size=st.integers(1, 9),
    start=st.sampled_from([Plan("packed"), Plan("cached", 3), Plan("plain"), Plan("two_stage", 1, 4)]),
    paths=st.sampled_from([ALL, ("packed", "plain"), ("plain",), ("cached", "two_stage", "plain")]),
)
def test_halving_ends_at_one_row(groups, group_size, start, paths):
    asked = work(prompts=groups, groups=groups, group_size=group_size)
    plan: Plan | None = start if start.rows is None else replace(start, rows=group_size)
    seen = []
    while plan is not None:
        seen.append((plan.groups or groups, plan.rows or group_size, plan.rows is None))
        last, plan = plan, lowered(plan, asked, paths)
        assert len(seen) < 20
    assert last.groups == last.rows == 1
    assert last.path in ("two_stage", "plain")
    assert len(set(seen)) == len(seen)


def test_halvings_and_samples():
    assert halvings(9) == [5, 3, 2, 1]
    assert halvings(1) == []
    plan: Plan | None = Plan()
    seen = []
    while (plan := less_sampled(plan, work())) is not None:
        seen.append(plan.sampled)
    assert seen == [4, 2, 1]
    assert Plan(groups=3, sampled=1).for_groups_of(2, 8) == Plan(groups=12, sampled=4)
    assert Plan().for_groups_of(2, 8) == Plan()
    assert {plan.path for plan in candidates(SMOLLM2, work(), ALL)} == {"packed", "cached", "two_stage"}


def test_the_size_of_a_model():
    policy = build.policy()
    size = size_of(policy, ALL)
    assert (size.layers, size.hidden, size.attention) == (2, 32, 32)
    attention, mlp = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 48
    assert size.weights == 2 * (attention + mlp)
    assert size.gradients == sum(4 * p.numel() for p in policy.parameters())
    gpt2 = size_of(build.policy("gpt2"), ALL)
    assert (gpt2.layers, gpt2.hidden, gpt2.attention) == (2, 32, 32)


def test_free_memory_is_the_machine_s_or_a_container_s(tmp_path):
    cpu = torch.device("cpu")
    proc = tmp_path / "meminfo"
    nowhere = tmp_path / "nowhere"
    proc.write_text("MemTotal:  1000 kB\nMemAvailable:   600 kB\n")
    assert free_bytes(cpu, proc=proc, cgroup=nowhere) == 600 * 1024
    assert free_bytes(cpu, proc=nowhere, cgroup=nowhere) is None
    for limit, free in (("500000", 150_000), ("max", 600 * 1024)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("400000\n")
        (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 50000\n")
        assert free_bytes(cpu, proc=proc, cgroup=tmp_path) == free


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:78] data. DefaultCPUAllocator: not enough memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_what_running_out_looks_like(error, is_it):
    assert is_out_of_memory(error) is is_it


def test_a_real_allocation_that_fails_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
