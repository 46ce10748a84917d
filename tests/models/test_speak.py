"""Token by token: the tokens of the batch sampler, their text, and a KL that full float64 distributions give."""

from contextlib import nullcontext

import pytest
import torch
from tests.models import build
from tests.tolerances import FP32

from kleash.models import adapters
from kleash.models.draw import keyed_noise
from kleash.models.load import load
from kleash.models.prompts import decode
from kleash.models.sampling import Sampling, sample
from kleash.models.speak import speak
from kleash.models.spec import Adapter, ModelSpec

PROMPT = [3, 5, 7, 4]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    directory = build.checkpoint(tmp_path_factory.mktemp("speak") / "model", hidden_size=32, num_attention_heads=2)
    found = load(ModelSpec(policy=str(directory), adapter=Adapter(rank=4)))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in found.policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return found


def spoken(loaded, settings, *, reader=None, seed=0):
    noise = keyed_noise(seed, 0, [0], 1, settings.max_new_tokens)[0]
    return list(speak(lambda: nullcontext(loaded.policy), PROMPT, settings, loaded.ends, noise, reader))


@pytest.mark.parametrize(
    "settings", [Sampling(max_new_tokens=12), Sampling(max_new_tokens=12, top_p=0.7, temperature=1.3)]
)
@pytest.mark.parametrize("seed", [0, 3])
def test_the_tokens_are_the_samplers(loaded, settings, seed) -> None:
    batch = sample(loaded.policy, [PROMPT], settings, loaded.ends, group_size=1, seed=seed, step=0, prompt_index=[0])
    tokens = spoken(loaded, settings, seed=seed)
    assert [token.token for token in tokens] == batch.completion_ids[0][batch.mask[0]].tolist()
    assert "".join(token.text for token in tokens) == decode(batch, loaded.tokenizer)[0]


def test_kl_and_log_prob_are_those_of_whole_rows(loaded) -> None:
    """The adapter against its base, read along token by token, against one float64 forward each of the whole row."""

    def base():
        return base_context(loaded)

    temperature = 0.8
    tokens = spoken(loaded, Sampling(max_new_tokens=10, temperature=temperature, top_p=0.9), reader=base)
    row = torch.tensor([PROMPT + [token.token for token in tokens]])
    model = loaded.policy.causal.double()
    try:
        with torch.no_grad():
            p = (model(input_ids=row).logits[0, len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
            with loaded.policy.model.disable_adapter():
                q = (model(input_ids=row).logits[0, len(PROMPT) - 1 : -1] / temperature).log_softmax(-1)
    finally:
        loaded.policy.causal.float()
    expected = (p.exp() * (p - q)).sum(-1)
    assert expected.max() > 0.05
    for t, token in enumerate(tokens):
        assert token.kl == pytest.approx(float(expected[t]), abs=FP32)
        assert token.logprob == pytest.approx(float(p[t, token.token]), abs=FP32)


def base_context(loaded):
    from contextlib import contextmanager

    @contextmanager
    def running():
        with adapters.switched_off(loaded.policy.model):
            yield loaded.policy

    return running()


def test_a_model_beside_itself_is_at_zero(loaded) -> None:
    tokens = spoken(loaded, Sampling(max_new_tokens=6), reader=lambda: nullcontext(loaded.policy))
    assert [token.kl for token in tokens] == [0.0] * len(tokens)


def test_a_stop_string_ends_it(loaded) -> None:
    free = spoken(loaded, Sampling(max_new_tokens=12))
    word = free[2].text.strip()
    stopped = spoken(loaded, Sampling(max_new_tokens=12, stop=(word,)))
    first = next(t for t in range(len(free)) if word in "".join(token.text for token in free[: t + 1]))
    assert [token.token for token in stopped] == [token.token for token in free[: first + 1]]
