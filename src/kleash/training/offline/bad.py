"""The rows of an update that was not finite, kept so that one can look at them afterwards."""

from pathlib import Path

from kleash.models.tensor_files import save_whole
from kleash.training.bad import MOST
from kleash.training.offline.job import Taught


def keep_bad(folder: Path, step: int, taught: Taught, grad_norm: float) -> str:
    """Writes the rows' tokens into `folder`; in words, what was skipped and where it is."""
    said = (
        f"step {step}: its update is not made, for it is not finite (loss {taught.loss:g}, gradient norm {grad_norm:g})"
    )
    file = folder / f"step-{step:06d}.safetensors"
    if not file.exists() and folder.exists() and len(list(folder.glob("step-*.safetensors"))) >= MOST:
        return f"{said}; {folder} holds {MOST} steps and takes no more"
    rollout = taught.rollout
    names = ("prompt_ids", "prompt_mask", "completion_ids", "mask", "group")
    tensors = {name: getattr(rollout, name) for name in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_whole(file, tensors)
    except OSError as error:
        return f"{said}; its rows could not be written to {folder}: {error.strerror}"
    return f"{said}; its rows are in {file}"
