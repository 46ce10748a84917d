"""Dropout is off in train() too: in nn.Dropout, in numbers kept on modules, in configs read at every call."""

import torch
from tests.models import build
from torch import nn
from transformers import AutoModelForCausalLM, MixtralConfig

from kleash.models.dropout import switch_off_dropout


def noisy(model: nn.Module) -> bool:
    ids = torch.arange(12)[None]
    model.train()
    with torch.no_grad():
        first, second = (model(input_ids=ids, use_cache=False).logits for _ in range(2))
    return not torch.equal(first, second)


def test_functional_attention_dropout() -> None:
    """Llama keeps the rate as a float on each attention module and calls F.dropout with it."""
    model = build.model("llama", attention_dropout=0.5, attn_implementation="eager")
    assert noisy(model)
    assert switch_off_dropout(model) > 0
    assert not noisy(model)
    assert model.config.attention_dropout == 0.0


def test_gpt2() -> None:
    model = build.model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    assert noisy(model)
    switch_off_dropout(model)
    assert not noisy(model)
    assert (model.config.resid_pdrop, model.config.embd_pdrop, model.config.attn_pdrop) == (0.0, 0.0, 0.0)


def test_train_and_eval_agree_afterwards() -> None:
    model = build.model("gpt2", resid_pdrop=0.5, attn_pdrop=0.3)
    switch_off_dropout(model)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        train, evaluate = (model.train(mode)(input_ids=ids).logits for mode in (True, False))
    assert torch.equal(train, evaluate)


def test_a_rate_in_a_nested_config_read_at_call_time() -> None:
    class Inner:
        hidden_dropout_prob = 0.0

        def __init__(self) -> None:
            self.hidden_dropout_prob = 0.4
            self.dropped_tokens = 3  # not a rate

    class Outer:
        def __init__(self) -> None:
            self.text_config = Inner()
            self.own_config = self  # configs may point back

    module = nn.Module()
    module.config = Outer()  # type: ignore[assignment]
    assert switch_off_dropout(module) == 1
    assert module.config.text_config.hidden_dropout_prob == 0.0
    assert module.config.text_config.dropped_tokens == 3
    assert switch_off_dropout(module) == 0


def test_noise_of_a_router_of_experts() -> None:
    torch.manual_seed(0)
    sizes = build.SIZES | {"num_local_experts": 4}
    model = AutoModelForCausalLM.from_config(MixtralConfig(**sizes, router_jitter_noise=0.5))
    assert noisy(model)
    switch_off_dropout(model)
    assert not noisy(model)
