"""The guest's KL on a transformers model, against a float64 loop over single rows without padding."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.tolerances import PATHS
from transformers import AutoModelForCausalLM, AutoTokenizer

from kleash.errors import RunError, UsageError
from kleash.models.catalog import resolve
from kleash.plug import references
from kleash.plug.gauge import Gauge, counted, ends

PROMPTS = ["The film", "We booked the hotel and", "My first phone"]


@pytest.fixture(scope="module")
def start() -> Any:
    return AutoModelForCausalLM.from_pretrained(str(resolve("kleash:tiny")), dtype=torch.float32).eval()


def gauge(**changed: Any) -> Gauge:
    tokenizer = AutoTokenizer.from_pretrained(str(resolve("kleash:tiny")))
    prompts = tuple(tuple(tokenizer(text)["input_ids"]) for text in PROMPTS)
    made = {"prompts": prompts, "each": 2, "tokenizer": tokenizer, "new_tokens": 12, "temperature": 0.8, "seed": 3}
    return Gauge(**made | changed)


def moved(start: Any, scale: float = 0.02) -> Any:
    model = deepcopy(start)
    torch.manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn_like(weight))
    return model


def slowly(policy: Any, reference: Any, text: str, answer: list[int], how: Gauge) -> float:
    """Σ_t Σ_v p (log p − log q) of one answer, one unpadded row, float64 from the logits on."""
    prompt = how.tokenizer(text)["input_ids"]
    row = torch.tensor([prompt + answer])
    with torch.no_grad():
        p, q = ((m(input_ids=row).logits[0].double() / how.temperature).log_softmax(-1) for m in (policy, reference))
    return sum(float((p[t].exp() * (p[t] - q[t])).sum()) for t in range(len(prompt) - 1, len(prompt) + len(answer) - 1))


def test_equals_a_slow_loop(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, how = moved(start), gauge()
    written: list[torch.Tensor] = []
    generate = policy.generate
    monkeypatch.setattr(policy, "generate", lambda **given: written.append(generate(**given)) or written[-1])
    seen = how.read(policy, references.Given(start), step=0)
    longest = max(map(len, how.prompts))
    expected = []
    for at, row in enumerate(written[0][:, longest:]):
        answer = row[counted(row[None], ends(policy, how.tokenizer))[0]].tolist()
        expected.append(slowly(policy, start, PROMPTS[at // 2], answer, how))
        assert seen.length[at] == len(answer)
    assert list(seen.kl) == pytest.approx(expected, rel=PATHS, abs=PATHS)
    assert seen.per_sequence.value == pytest.approx(sum(expected) / 6, rel=PATHS)
    assert seen.per_token.value == pytest.approx(sum(expected) / sum(seen.length), rel=PATHS)
    assert seen.per_sequence.n_prompts == 3 and seen.per_sequence.n_sequences == 6
    assert seen.per_sequence.value > 0.01


def test_leaves_no_trace(start: Any) -> None:
    policy = deepcopy(start).train()
    policy.model.layers[0].eval()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    gauge().read(policy, references.Given(start), step=0)
    assert torch.equal(torch.rand(3), expected)
    assert policy.training and not policy.model.layers[0].training and policy.model.layers[1].training


def test_the_noise_is_the_steps(start: Any) -> None:
    how = gauge()
    first, again, other = (how.read(start, references.Given(start), step=s).text for s in (4, 4, 5))
    assert first == again != other


def test_the_start_is_kept_and_put_in(start: Any, tmp_path: Path) -> None:
    policy, how = deepcopy(start), gauge()
    kept = references.build("start", policy, tmp_path, resumed=False)
    assert how.read(policy, kept, 0).per_token.value == 0
    with torch.no_grad():
        for mine, theirs in zip(policy.parameters(), moved(start).parameters(), strict=True):
            mine.copy_(theirs)
    before = {name: weight.clone() for name, weight in policy.named_parameters()}
    apart = how.read(policy, kept, 0)
    assert apart.kl == how.read(policy, references.Given(start), 0).kl
    assert all(torch.equal(weight, before[name]) for name, weight in policy.named_parameters())
    again = references.build("start", policy, tmp_path, resumed=True)
    assert how.read(policy, again, 0).kl == apart.kl


def test_a_fresh_adapter_is_switched_off(start: Any, tmp_path: Path) -> None:
    policy = get_peft_model(deepcopy(start), LoraConfig(r=2, target_modules="all-linear"))
    reference = references.build("start", policy, tmp_path, resumed=False)
    assert isinstance(reference, references.AdapterOff) and not (tmp_path / references.WEIGHTS).exists()
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_B." in name:
                weight.add_(0.1)
    how = gauge()
    assert how.read(policy, reference, 0).kl == pytest.approx(
        how.read(policy, references.Given(start), 0).kl, rel=PATHS, abs=PATHS
    )
    assert isinstance(references.build("start", policy, tmp_path, resumed=True), references.AdapterOff)


def test_an_adapter_that_was_trained_before_is_the_start(start: Any, tmp_path: Path) -> None:
    """Adapters off would be the base, and the KL at step 0 would not be 0."""
    policy = get_peft_model(deepcopy(start), LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if ".lora_B." in name:
                weight.add_(0.1)
    reference = references.build("start", policy, tmp_path, resumed=False)
    assert isinstance(reference, references.Kept)
    assert gauge().read(policy, reference, 0).per_token.value == 0


def test_what_cannot_be_a_reference(start: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="would pass for the reference"):
        references.build("start", start, tmp_path, resumed=True)
    with pytest.raises(UsageError, match="is no reference"):
        references.build(3, start, tmp_path, resumed=False)
    wider = deepcopy(start)
    wider.resize_token_embeddings(start.config.vocab_size + 8)
    with pytest.raises(UsageError, match="cannot be compared"):
        references.build(wider, start, tmp_path, resumed=False)


def test_end_tokens_that_were_not_sampled_do_not_count() -> None:
    written = torch.tensor([[5, 2, 2, 2], [5, 6, 7, 8], [2, 0, 0, 0]])
    assert counted(written, (2,)).tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert counted(written, ()).all()
