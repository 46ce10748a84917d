"""The ledger's figures against what is there: bytes of live tensors in an update, of caches, of an optimizer."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models import build
from tests.models.ruler import Ruler
from tests.tolerances import LEDGER
from tools.zoo.families import FAMILIES
from transformers import AutoModelForCausalLM

from kleash.models import adapters
from kleash.models.anatomy import text_config
from kleash.models.heads import recipe_from
from kleash.models.ledger import entries, held, peak, planned
from kleash.models.memory import size_of
from kleash.models.paths import PathName, prefill
from kleash.models.plan import Plan, Size, Work
from kleash.models.policy import Policy
from kleash.models.probe import probe_paths
from kleash.models.spec import Adapter
from kleash.tensors import ReferenceStates

N, G, P, T = 2, 3, 40, 20
WORK = Work(prompts=N, groups=N, group_size=G, prompt=P, length=T)
PLANS = [
    Plan("packed"),
    Plan("packed", groups=1),
    Plan("cached"),
    Plan("two_stage", 1, 1),
    Plan("plain"),
    Plan("plain", None, 2),
]
#: Larger than the other tests' models, so that a step's bytes are not those of its smallest tensors.
WIDER: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "head_dim": 16}


def policy(family: str, how: str, *, checkpointing: bool = False) -> Policy:
    own = FAMILIES[family]
    config = replace(own, sizes=own.sizes | (WIDER if family in ("Llama", "Qwen3-MoE") else {})).build()
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    model = model.to(torch.bfloat16 if how == "lora, bf16" else torch.float32)
    if "lora" in how:
        model = adapters.attach(model, Adapter(rank=4), "base", seed=0)
    compute = torch.bfloat16 if "bf16" in how else None
    made = Policy(model, recipe_from(text_config(model), build.VOCAB), compute=compute).eval()
    if checkpointing:
        made.causal.activation_checkpointing_enable({"use_reentrant": False})
        made.train()
    return made


def measured(own: Policy, plan: Plan) -> int:
    """The most bytes of tensors at once in an update, beside the weights and the reference's states."""
    rollout = build.rollout([P] * N, [[T] * G] * N)
    with torch.no_grad():
        head = own.head()
        states = ReferenceStates(
            1.01 * own.hidden(rollout, "plain"), replace(head, weight=head.weight.detach().clone())
        )
    size = plan.groups or N
    with Ruler() as ruler:
        for first in range(0, N, size):
            part, rows = rollout.groups(first, first + size), rollout.rows(first, first + size)
            look = own(part, reference=states.rows(rows, T), path=plan.path, rows=plan.rows)
            assert look.kl is not None
            (look.kl - look.logprobs).sum().backward()
            del look, part
    return ruler.peak


def figures(own: Policy, paths: tuple[PathName, ...], plan: Plan) -> tuple[dict[str, int], Size]:
    size = size_of(own, paths)
    found = [*entries(own, [own], size, WORK), *planned(size, WORK, plan)]
    return {entry.what: entry.size for entry in found}, size


def check(own: Policy, plan: Plan, paths: tuple[PathName, ...] = ("packed", "cached", "two_stage", "plain")) -> None:
    found, _ = figures(own, paths, plan)
    while_it_lasts = [
        "activations",
        "gradients of a pass, gathered",
        "weights in the compute dtype",
        "head, fused",
    ]
    kept, gradients = sum(found.get(name, 0) for name in while_it_lasts), found["gradients"]
    there = measured(own, plan)
    assert gradients == sum(p.grad.nbytes for p in own.parameters() if p.grad is not None)
    assert there <= (1 + LEDGER) * (kept + gradients)
    # Gradients come as activations go, so the smaller of the two may never be there beside the other.
    assert max(kept, gradients) <= (1 + LEDGER) * there


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("how", ["full", "full, bf16", "lora", "lora, bf16"])
def test_an_update_takes_what_the_ledger_says(how: str, plan: Plan) -> None:
    check(policy("Llama", how), plan)


@pytest.mark.parametrize("how", ["full", "lora, bf16"])
def test_of_a_model_without_rotary_positions(how: str) -> None:
    for plan in (Plan("packed"), Plan("cached")):
        check(policy("GPT-2", how), plan)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_with_activation_checkpointing(plan: Plan) -> None:
    for how in ("full", "lora, bf16"):
        check(policy("Llama", how, checkpointing=True), plan)


@pytest.mark.parametrize("family", ["Gemma 3, window", "Qwen3-MoE", "gpt-oss, window", "DeepSeek-V3", "Bamba"])
def test_families_that_no_formula_foresees(family: str) -> None:
    """Experts, scores that are kept, keys of another width, recurrent layers."""
    own = policy(family, "full")
    paths = probe_paths(own).training
    for path in paths:
        check(policy(family, "full"), Plan(path, rows=G if path == "two_stage" else None), paths)


@pytest.mark.parametrize("family", ["Llama", "GPT-2", "DeepSeek-V3", "Mamba"])
@pytest.mark.parametrize("how", ["full", "full, bf16"])
def test_the_cache_of_the_sampler(family: str, how: str) -> None:
    own = policy(family, how)
    kept = size_of(own, ("plain",)).kept
    ids = torch.zeros(3, 31, dtype=torch.long)
    with torch.no_grad(), own.autocast():
        _, cache = prefill(own.body, own.config, ids, torch.ones_like(ids, dtype=torch.bool))
    there = sum(t.nbytes for layer in cache.layers for t in vars(layer).values() if isinstance(t, torch.Tensor))
    assert there == pytest.approx(3 * (31 * kept.position + kept.state))


@pytest.mark.parametrize("how", ["full", "full, bf16", "lora, bf16"])
def test_what_is_held(how: str) -> None:
    """Weights, gradients, the optimizer's state and the reference's states, to the byte; two groups' states differ."""
    own = policy("Llama", how)
    reference = policy("Llama", how).requires_grad_(False)
    found = {e.what: e.size for e in entries(own, [reference], size_of(own, ("plain",)), WORK)}
    optimizer = torch.optim.AdamW(own.trainable(), fused=True)
    rollout = build.rollout([P] * N, [[T] * G] * N)
    look = own(rollout)
    look.logprobs.sum().backward()
    optimizer.step()
    state = [t for s in optimizer.state.values() for t in s.values()]
    assert found["optimizer state"] == sum(t.nbytes for t in state)
    assert found["gradients"] == sum(p.grad.nbytes for p in own.parameters() if p.grad is not None)
    weights = found["weights that are trained"] + found.get("weights that are not", 0)
    assert weights == held([*own.parameters(), *own.buffers()])
    assert found["reference's own weights"] == held([*reference.parameters(), *reference.buffers()])
    with torch.no_grad():
        assert found["reference's hidden states"] == reference.hidden(rollout).nbytes


def test_the_peak_is_an_update_s_or_the_sampler_s() -> None:
    own = policy("Llama", "full")
    found, size = figures(own, ("packed", "plain"), Plan())
    long = replace(WORK, length=4000)
    rows = [*entries(own, [own], size, WORK), *planned(size, WORK, Plan())]
    assert peak(rows) == sum(found.values()) - found["keys and values of the sampler"]
    sampling = [e for e in planned(size, long, Plan()) if e.when == "sampling"]
    held_and_run = sum(e.size for e in rows if e.when in ("held", "run"))
    assert peak([e for e in rows if e.when != "sampling"] + sampling) == held_and_run + sampling[0].size
