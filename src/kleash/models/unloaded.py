"""A model's sizes, from its config alone: nothing of its weights is read, so it costs no memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kleash.errors import RunError
from kleash.models import adapters, checkpoint_files
from kleash.models.anatomy import text_config
from kleash.models.catalog import resolve
from kleash.models.load import context_of, read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """What can be known of a model before it is loaded.

    parameters: a tied weight once. linear: of them those that can be kept in few bits. ends: inputs + outputs, summed
    over the layers that "all-linear" adapts, so that an adapter of rank r has r × ends parameters. cached: numbers that
    attention keeps of a token. chat: it has a template. adapter: the directory is itself an adapter.
    """

    parameters: int
    linear: int
    ends: int
    layers: int
    hidden: int
    inner: int
    vocab: int
    cached: int
    context: int
    chat: bool
    adapter: bool


def look(name: str, *, trust_remote_code: bool = False) -> Unloaded:
    """The sizes of the model called `name`, as `model.policy` names it.

    Raises:
        UsageError: there is no such model.
        RunError: its config cannot be read, or builds no causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    directory = resolve(name, code=trust_remote_code)
    adapted = checkpoint_files.is_adapter(directory)
    base = resolve(adapters.recorded_base(directory)) if adapted else directory
    checkpoint_files.check_config(base, trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # what a model's own code may raise, nobody knows
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"the config of {name} builds no causal language model: {reason}") from None
    text = text_config(model)
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    heads = getattr(text, "num_attention_heads", None) or 1
    shared = getattr(text, "num_key_value_heads", None) or heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Unloaded(
        parameters=sum(p.numel() for p in model.parameters()),
        linear=sum(module.in_features * module.out_features for module in linear if type(module) is nn.Linear),
        ends=sum(module.in_features + module.out_features for module in linear),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocab=text.vocab_size,
        cached=2 * shared * width * text.num_hidden_layers,
        context=context_of(text),
        chat=bool(read_tokenizer(directory, base, trust_remote_code).chat_template),
        adapter=adapted,
    )
