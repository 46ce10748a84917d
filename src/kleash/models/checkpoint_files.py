"""A model directory, read with suspicion: what is missing, cut short, pickled or foreign is said in a sentence."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

from kleash.errors import RunError, UsageError
from kleash.models.exhausted import is_out_of_memory
from kleash.models.free import free_bytes
from kleash.models.quiet import without_bars

INDEX = "model.safetensors.index.json"


def read_model(directory: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The causal language model in `directory`, every weight found and of the right shape.

    Raises:
        UsageError: no model there, or one of a kind that kleash does not read.
        RunError: the weights are not whole, or do not fit into the memory.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_config(directory, trust_remote_code)
    _check_room(directory, check_weights(directory), dtype)
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        _check_kind(config, directory)
        # sdpa has no soft-cap inside attention (Gemma 2)
        attention = "eager" if getattr(config.get_text_config(), "attn_logit_softcapping", None) else None
        with without_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                attn_implementation=attention,
                output_loading_info=True,
            )
    except UsageError:
        raise
    except Exception as error:  # what a model's own code may raise, nobody knows
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"the model in {directory} could not be loaded: {reason}") from None
    model, info = loaded
    if absent := sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"]):
        raise RunError(
            f"the checkpoint in {directory} lacks {len(absent)} of the model's weights ({absent[0]} first), which "
            "would have been random; it is not whole, or its config.json is of another model"
        )
    return model


def check_config(directory: Path, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING

    if not (directory / "config.json").is_file():
        inside = sorted(found.parent.name for found in directory.glob("*/config.json"))
        hint = f"; its folder {inside[0]} does" if inside else ""
        raise UsageError(f"{directory} holds no config.json, so it is not a model{hint}")
    try:
        config = json.loads((directory / "config.json").read_text())
    except json.JSONDecodeError:
        raise RunError(f"{directory / 'config.json'} is not JSON; the checkpoint was cut short or edited") from None
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING and not trust_remote_code:
        raise UsageError(
            f"the model in {directory} runs Python code of its own; read that code, then set "
            "model.trust_remote_code = true if you trust it"
        )
    if config.get("is_encoder_decoder"):
        raise UsageError(f"the model in {directory} is an encoder-decoder; kleash trains causal language models")


def _check_kind(config: Any, directory: Path) -> None:
    """Models that also see or hear are trained on text alone, where transformers loads them as language models."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and "AutoModelForCausalLM" not in getattr(
        config, "auto_map", {}
    ):
        raise UsageError(
            f"the model in {directory} is of the kind {config.model_type!r}, which transformers does not load as a "
            "causal language model; kleash trains those, also with eyes or ears where they load as one (Gemma 3), on "
            "text alone. Save this one's language model on its own and name that directory"
        )


def is_adapter(directory: Path) -> bool:
    """True for a peft adapter, False for a full model.

    Raises:
        UsageError: it is both, and which one is meant cannot be told.
    """
    if not (directory / "adapter_config.json").is_file():
        return False
    if any((directory / name).is_file() for name in ("model.safetensors", INDEX)):
        raise UsageError(f"{directory} holds a full model and an adapter; move one of them to a directory of its own")
    return True


def _check_room(directory: Path, weights: int, dtype: torch.dtype) -> None:
    """Before anything is read: the system ends a process that takes more than there is, without a word."""
    needed, free = weights * dtype.itemsize, free_bytes(torch.device("cpu"))
    if free is None or needed <= free:
        return
    half = (
        ""
        if dtype.itemsize < 4
        else (', or train an adapter over half the bytes (model.adapter = { rank = 16 } with model.dtype = "bfloat16")')
    )
    raise RunError(
        f"the model in {directory} has {weights / 1e9:.3g} billion weights, which take {needed / 1e9:.1f} GB, and "
        f"{free / 1e9:.1f} GB of this machine's memory are free; choose a smaller model{half}"
    )


def check_weights(directory: Path, single: str = "model.safetensors") -> int:
    """That the safetensors file, or every part the index lists, is there and as long as its header says.

    Returns:
        How many weights there are.
    """
    if (directory / INDEX).is_file():
        expected = sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))
    elif (directory / single).is_file():
        expected = [single]
    else:
        pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt"))
        raise UsageError(
            f"{directory} holds no {single}"
            + ("; kleash reads no pickled weights, save the model again with transformers" if pickled else "")
        )
    return sum(_check_length(directory / name) for name in expected)


def _check_length(file: Path) -> int:
    """A safetensors file is 8 bytes of header length, the header, and the tensors it lists; how many numbers."""
    cut = RunError(f"{file} is cut short or damaged; copy or download it again, or take an earlier checkpoint")
    if not file.is_file():
        raise RunError(f"{file} is missing; the checkpoint is not whole")
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8 or (length := struct.unpack("<Q", start)[0]) > size - 8:
            raise cut
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise cut from None
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    ends = [entry["data_offsets"][1] for entry in entries]
    if size != 8 + length + max(ends, default=0):
        raise cut
    return sum(math.prod(entry["shape"]) for entry in entries)
