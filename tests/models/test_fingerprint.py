"""A fingerprint changes when, and only when, something that decides the distribution changes."""

from pathlib import Path

import torch
from tests.models import build

from kleash.models import adapters
from kleash.models.fingerprint import differences, fingerprint
from kleash.models.policy import Policy
from kleash.models.spec import Adapter


def taken(policy: Policy | None = None, *, temperature: float = 1.0, words: int = build.VOCAB) -> dict:
    return fingerprint(policy or build.policy(), build.tokenizer(words), temperature=temperature, adapter=None)


def changed(before: dict, now: dict) -> list[str]:
    return [line.split(" changed: ")[0] for line in differences(before, now)]


def test_the_same_model_has_the_same_fingerprint() -> None:
    assert differences(taken(), taken()) == []


def test_one_weight_by_one_ulp() -> None:
    policy = build.policy()
    weight = policy.causal.model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        weight[3, 4] = torch.nextafter(weight[3, 4], torch.tensor(torch.inf))
    assert changed(taken(), taken(policy)) == ["the weights"]


def test_each_field_is_told_in_words() -> None:
    assert changed(taken(), taken(temperature=0.7)) == ["the temperature"]
    assert differences(taken(), taken(temperature=0.7)) == ["the temperature changed: 1.0 before, 0.7 now"]
    assert changed(taken(), taken(words=30)) == ["the tokenizer"]
    half = build.policy()
    assert changed(taken(), taken(Policy(half.model, half.recipe, compute=torch.bfloat16))) == ["the precision"]
    assert changed(taken(), taken(build.policy("llama", torch.float64))) == ["the weights", "the precision"]
    talkative = build.tokenizer()
    talkative.chat_template = "{{ messages }}"
    now = fingerprint(build.policy(), talkative, temperature=1.0, adapter=None)
    assert changed(taken(), now) == ["the chat template"]
    assert differences(taken(), now)[0].startswith("the chat template changed: none before, ")


def test_using_a_tokenizer_does_not_change_it() -> None:
    tokenizer = build.tokenizer()
    before = fingerprint(build.policy(), tokenizer, temperature=1.0, adapter=None)
    tokenizer.pad_token = "t0"
    tokenizer(["t1 t2", "t3"], padding=True, truncation=True, max_length=4)
    after = fingerprint(build.policy(), tokenizer, temperature=1.0, adapter=None)
    assert differences(before, after) == []


def test_an_adapter_is_apart_from_its_base_and_the_same_under_another_name(tmp_path: Path) -> None:
    plain = taken()
    policy = build.policy()
    adapted = Policy(adapters.attach(policy.model, Adapter(rank=2), "base", seed=0), policy.recipe)
    adapters.snapshot(adapted.model)

    def of(adapter: str | None) -> dict:
        return fingerprint(adapted, build.tokenizer(), temperature=1.0, adapter=adapter)

    assert differences(plain, of(None)) == []
    assert changed(plain, of(adapters.POLICY_ADAPTER)) == ["the adapter"]
    assert differences(of(adapters.POLICY_ADAPTER), of(adapters.SNAPSHOT_ADAPTER)) == []
    with torch.no_grad():
        adapted.trainable()[0].add_(1)
    assert changed(of(adapters.POLICY_ADAPTER), of(adapters.SNAPSHOT_ADAPTER)) == ["the adapter"]
