"""Export round trips: how far a model is from itself once merged, cast, saved and loaded: docs/runs/export.md."""

import shutil
import tempfile
from pathlib import Path

import torch
from benchmarks.runs import machine

from kleash.models.export import SAME, Difference, Onto, read, write
from kleash.models.load import load
from kleash.models.spec import Adapter, Bits, ModelSpec

MODELS = ("kleash:tiny", "kleash:smollm2")
#: Standard deviation of the drawn B of an adapter: about what 100 steps at 1e-4 make.
SIZE = 5e-3
TEXTS = (
    "The soup at this place was warm, and those who brought it were kind to all who came in from the rain.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))\n",
    "Q: What is the capital of France?\nA: The capital of France is Paris, on the river Seine.",
)


def adapted(name: str, into: Path, quantize: Bits | None = None) -> str:
    """An adapter on the model whose B is drawn, saved as a run saves one."""
    loaded = load(ModelSpec(policy=name, adapter=Adapter(rank=16), quantize=quantize))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in loaded.policy.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=SIZE)
    loaded.policy.save(into, loaded.tokenizer)
    return str(into)


def main() -> None:
    rows: list[tuple[str, str, str, Difference]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            lora, over = (
                adapted(name, Path(scratch) / f"{name.replace(':', '-')}-{bits}", bits) for bits in (None, "4bit")
            )
            ways: list[tuple[str, str, Onto]] = [
                ("full", name, "trained"),
                ("LoRA, merged", lora, "trained"),
                ("LoRA over 4 bits, merged into them", over, "trained"),
                ("LoRA over 4 bits, merged into the base as stored", over, "stored"),
            ]
            for what, source, onto in ways:
                for dtype in SAME:
                    into = Path(scratch) / f"{len(rows)}"
                    found = write(read(source, onto=onto), into, dtype, "5GB", TEXTS, lambda _: "")
                    rows.append((name, what, dtype, found))
                    shutil.rmtree(into)
    print("# Export round trips\n")
    print("Made by `python -m benchmarks.export > docs/runs/export.md` (`make bench-export`).\n")
    print(machine() + "\n")
    print(
        "The model as it was trained (fp32, its adapter on) against what `kleash export` wrote, read back as a\n"
        f"stranger reads it, on the first 64 tokens of {len(TEXTS)} texts. The adapter has rank 16; its B is drawn\n"
        f"with a standard deviation of {SIZE:g}. An export whose KL is above the limit is refused and not kept.\n"
        "Merged into the base as it is stored, an adapter that was trained over a quantised one is another model:\n"
        "*moved* is its mean KL(trained‖exported), and the KL beside it is that from the same adapter on that base.\n"
    )
    kl = "mean KL(model‖exported), nats/token"
    print(f"| model | trained | exported as | {kl} | largest \\|Δ log-prob\\| | its limit | moved |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, what, dtype, found in rows:
        moved = "–" if found.moved is None else f"{found.moved:.2g}"
        print(f"| {name} | {what} | {dtype} | {found.kl:.2g} | {found.largest:.2g} | {SAME[dtype]:g} | {moved} |")


if __name__ == "__main__":
    main()
