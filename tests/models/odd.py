"""A model that transformers does not know, in a directory with its own code, as hubs are full of."""

import json
from pathlib import Path

from tests.models import build

#: One layer of attention that fades with distance. No position_ids, an older name for the cache, no other arguments.
CODE = """
import torch
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast


class OddConfig(PretrainedConfig):
    model_type = "odd"

    def __init__(self, vocab_size=37, hidden_size=16, num_hidden_layers=1, fault="", **rest):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.fault = fault
        super().__init__(**rest)


class OddBase(PreTrainedModel):
    config_class = OddConfig
    base_model_prefix = "body"
    supports_gradient_checkpointing = True

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0.0, 0.5)


class OddModel(OddBase):
    def __init__(self, config):
        super().__init__(config)
        if config.fault == "noisy":
            self.gradient_checkpointing = False
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.q, self.k, self.v = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3))
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=False):
        if self.config.fault == "raises":
            raise ArithmeticError("the flux is out of range")
        if self.config.fault == "no padding" and attention_mask is not None and not attention_mask.all():
            raise ArithmeticError("the flux has a hole")
        x = self.embed(input_ids)
        q, k, v = (part(x)[:, None] for part in (self.q, self.k, self.v))
        if past_key_values is not None and self.config.fault != "forgets":
            k, v = past_key_values.update(k, v, 0)
        L, K = q.shape[2], k.shape[2]
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        distance = torch.arange(K - L, K)[:, None] - torch.arange(K)
        allowed = (distance >= 0)[None] & (seen[:, None, -K:] > 0)
        scores = (q @ k.transpose(-1, -2))[:, 0] / 4 - 0.3 * distance
        if self.config.fault != "sees padding":
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        noise = torch.rand(()) if self.training and self.config.fault == "noisy" else 0.0
        out = x + torch.softmax(scores, -1) @ v[:, 0] + noise
        return BaseModelOutputWithPast(last_hidden_state=out, past_key_values=past_key_values)


class OddForCausalLM(OddBase, GenerationMixin):
    def __init__(self, config):
        super().__init__(config)
        self.body = OddModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=False):
        out = self.body(input_ids, attention_mask, past_key_values, use_cache)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state), past_key_values=past_key_values)
"""


def write(directory: Path, *, fault: str = "") -> Path:
    """The model with random weights; a fault is a way in which it cannot be trained."""
    directory.mkdir()
    (directory / "modeling_odd.py").write_text(CODE)
    names = {"AutoConfig": "modeling_odd.OddConfig", "AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}
    config = {"model_type": "odd", "architectures": ["OddForCausalLM"], "auto_map": names, "fault": fault}
    (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    build.tokenizer().save_pretrained(directory)
    from transformers import AutoConfig, AutoModelForCausalLM

    AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(directory, trust_remote_code=True), trust_remote_code=True
    ).save_pretrained(directory)
    return directory
