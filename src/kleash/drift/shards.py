"""Checkpoints that are not models yet: what verl and OpenRLHF leave behind, and which of their commands makes one.

Source: verl's documentation ("Using Checkpoints to Support Fault Tolerance Training"), DeepSpeed's ("Model
Checkpointing").
"""

from pathlib import Path

from kleash.errors import UsageError


def refuse_shards(path: Path) -> None:
    """Names the command that merges a directory of shards.

    Raises:
        UsageError: it is one.
    """
    if not path.is_dir():
        return
    for inside in (path, path / "actor"):
        if any(inside.glob("model_world_size_*_rank_*.pt")):
            raise UsageError(_verl(inside, "fsdp"))
        if (inside / "dist_ckpt").is_dir() and not (inside / "config.json").is_file():
            raise UsageError(_verl(inside, "megatron"))
    for inside in (path, path.parent):
        if (inside / "zero_to_fp32.py").is_file() and not (path / "config.json").is_file():
            raise UsageError(
                f"{path} is a DeepSpeed checkpoint (OpenRLHF's, or a trainer's): shards, not a model. First run "
                f"`python {inside / 'zero_to_fp32.py'} {inside} MERGED --safe_serialization`, copy config.json and "
                "the tokenizer's files of the model that was trained into it, and name MERGED"
            )


def _verl(inside: Path, backend: str) -> str:
    return (
        f"{inside} is a verl checkpoint: shards, not a model. First run `python -m verl.model_merger merge "
        f"--backend {backend} --local_dir {inside} --target_dir MERGED`, and name MERGED"
    )
