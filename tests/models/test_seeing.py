"""Models that also see: their text part is trained on text alone, or one sentence says that it cannot be loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.models import build
from tests.tolerances import PATHS

from kleash.errors import UsageError
from kleash.models.load import load
from kleash.models.paths import PathName
from kleash.models.spec import ModelSpec

EYE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def saved(model: Any, directory: Path) -> str:
    model.save_pretrained(directory)
    build.tokenizer().save_pretrained(directory)
    return str(directory)


def test_the_text_part_of_gemma_3_goes_every_way(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = transformers.Gemma3TextConfig(**build.SIZES, query_pre_attn_scalar=8).to_dict()
    eye = transformers.SiglipVisionConfig(**EYE).to_dict()
    config: Any = transformers.Gemma3Config(text_config=text, vision_config=eye, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    loaded = load(ModelSpec(saved(model, tmp_path), device="cpu"))
    assert loaded.paths == ("packed", "cached", "two_stage", "plain")
    sample = build.rollout()
    ways: tuple[PathName, ...] = loaded.paths
    with torch.no_grad():
        alone = build.single_rows(loaded.policy.body, sample)
        for path in ways:
            hidden = loaded.policy.hidden(sample, path)[sample.mask]
            assert float((hidden - alone).abs().max()) <= PATHS * float(alone.abs().max())


def test_one_that_transformers_does_not_load_so_is_refused(tmp_path: Path) -> None:
    text, eye = transformers.LlamaConfig(**build.SIZES).to_dict(), transformers.CLIPVisionConfig(**EYE).to_dict()
    config: Any = transformers.LlavaConfig(text_config=text, vision_config=eye, image_token_index=36)
    name = saved(transformers.LlavaForConditionalGeneration(config), tmp_path)
    with pytest.raises(UsageError, match="is of the kind 'llava'"):
        load(ModelSpec(name, device="cpu"))
