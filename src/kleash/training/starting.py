"""`kleash new`: from what a person says to a starting config and what it is based on."""

import time
from dataclasses import replace
from typing import Any

import torch

from kleash.errors import UsageError
from kleash.models.free import free_bytes
from kleash.models.load import pick_device
from kleash.models.unloaded import Unloaded, look
from kleash.training.prompt_files import read_rows
from kleash.training.starter import PLACEHOLDER, Wishes, starter
from kleash.training.suggest import Machine, Start, suggest

#: Where a person named no model: one of a size that any machine trains.
_STAND_IN = Unloaded(
    parameters=135_000_000, linear=106_000_000, ends=210 * 1_700, layers=30, hidden=576, inner=1536, vocab=49_152,
    cached=11_520, context=8192, chat=True, adapter=False,
)  # fmt: skip


def new(wishes: Wishes) -> tuple[str, list[str]]:
    """The TOML, and lines for people: the model, what it would take, and what was chosen for it.

    Raises:
        UsageError: there is no such model, the data cannot be read, or the model cannot read them.
        RunError: no start fits into this machine's memory; with what would be needed.
    """
    rows = None if wishes.data is None else _rows(wishes.data)
    model = _STAND_IN if wishes.model is None else look(wishes.model)
    machine = this_machine()
    start = suggest(model, machine, critic=wishes.kind == "ppo")
    if rows is not None and wishes.kind != "dpo":
        start = replace(start, prompts=min(start.prompts, len(rows)))  # a step takes no prompt twice
    messages = rows is not None and _conversations(rows)
    if messages and wishes.model is not None and not model.chat:
        raise UsageError(
            f"the first prompt of {wishes.data} is a list of chat messages, and the tokenizer of {wishes.model} has no "
            "chat template; give prompts as text, or use a chat model"
        )
    wishes = replace(wishes, chat=model.chat and not messages, is_adapter=model.adapter)
    lines = (
        []
        if wishes.model
        else [f"model    {PLACEHOLDER} stands for yours; values are for one of 0.1 billion parameters"]
    )
    return starter(wishes, start), [*lines, *_based_on(model, machine, start)]


def this_machine() -> Machine:
    """The default device, its free memory, and its speed in a matrix product of a fraction of a second."""
    device = pick_device("auto")
    gpu = device.type != "cpu"
    a = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16 if gpu else torch.float32)
    a @ a
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 0.1:
        (a @ a)[0, 0].item()
        done += 1
    return Machine(gpu=gpu, free=free_bytes(device), flops=2 * 1024**3 * done / (time.perf_counter() - began))


def _rows(data: str) -> list[Any]:
    rows = read_rows(data)
    if not rows:
        raise UsageError(f"{data} holds no rows")
    return rows


def _conversations(rows: list[Any]) -> bool:
    """Whether the first prompt is one already."""
    return not isinstance(rows[0] if isinstance(rows[0], str) else rows[0].get("prompt", ""), str)


def _based_on(model: Unloaded, machine: Machine, start: Start) -> list[str]:
    free = "free memory unknown" if machine.free is None else f"{machine.free / 1e9:.1f} GB free"
    how = "an adapter" if start.adapter else "all weights"
    precision = f"{'bf16' if start.bf16 else 'fp32'}{', the base in 4 bits' if start.quantised else ''}"
    lines = [
        f"model    {model.parameters / 1e6:,.0f} million parameters, context {model.context:,}, "
        f"{'with' if model.chat else 'without'} a chat template",
        f"machine  {'GPU' if machine.gpu else 'CPU'}, {free}, {machine.flops / 1e9:,.0f} GFLOP/s in a matrix product",
        f"chosen   {how}, {precision}, {start.prompts} prompts × {start.group} answers of {start.tokens} tokens",
        f"about    {start.size / 1e9:.1f} GB or more, {start.seconds:.1f} s a step; `--check-only` measures both",
    ]
    if not start.fits:
        lines.append(
            "warning  even this may not fit, or takes long: a smaller model, a machine with more memory, or fewer and "
            "shorter answers"
        )
    return lines
