"""The parts of `benchmarks.gpu`: each checks something on a device and times it."""

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.leash import held
from benchmarks.sampler import ours
from benchmarks.shared_prompt import differences, frozen, rollout, update
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from kleash.demo.run import write_prompts
from kleash.kl.fused import fused
from kleash.models import ledger
from kleash.models.catalog import resolve
from kleash.models.load import Loaded, load
from kleash.models.policy import Policy
from kleash.models.spec import Adapter, ModelSpec
from kleash.records import Step
from kleash.tensors import Head, Rollout
from kleash.training.api import train

#: Largest differences from float64, relative: fp32, and bf16 inputs with results in bf16.
FP32, BF16 = 2e-5, 4e-3
#: log-probs of two fp32 paths through the same model.
PATHS = 1e-4
#: SmolLM2-135M's sizes, and those that a test tries the script with.
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
           "num_key_value_heads": 3}  # fmt: skip
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """good: None where nothing is judged."""

    what: str
    found: str
    wanted: str
    good: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """tokens, hidden, vocab: of the head's problem. steps: of a run, and of one that is timed. random: a directory."""

    device: torch.device
    scratch: Path
    random: Path
    tokens: int
    hidden: int
    vocab: int
    prompt: int
    steps: int
    timed: int
    rounds: int


def setting(device: torch.device, scratch: Path) -> Setting:
    """In full on a GPU, in small on a CPU."""
    full = device.type == "cuda"
    random = scratch / "random"
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve("kleash:tiny"))
    sizes = SMOLLM2 if full else SMALL
    config = LlamaConfig(
        vocab_size=49_152 if full else len(tokenizer), tie_word_embeddings=True, max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **sizes,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(random)
    tokenizer.save_pretrained(random)
    numbers = (1024, 1024, 65_536, 192, 110, 6, 5) if full else (64, 32, 999, 16, 4, 2, 1)
    names = ("tokens", "hidden", "vocab", "prompt", "steps", "timed", "rounds")
    return Setting(device=device, scratch=scratch, random=random, **dict(zip(names, numbers, strict=True)))


def _seconds(run: Callable[[], object], own: Setting) -> float:
    """The median of some rounds after one to warm up, the device's queue empty before and after each."""

    def wait() -> float:
        if own.device.type == "cuda":
            torch.cuda.synchronize(own.device)
        return time.perf_counter()

    taken = []
    for _ in range(own.rounds + 1):
        start = wait()
        run()
        taken.append(wait() - start)
    return statistics.median(taken[1:])


def _peak(run: Callable[[], object], own: Setting) -> str:
    """Bytes at the peak above what was there; nothing on a CPU."""
    if own.device.type != "cuda":
        return "–"
    torch.cuda.reset_peak_memory_stats(own.device)
    before = torch.cuda.memory_allocated(own.device)
    run()
    return f"{(torch.cuda.max_memory_allocated(own.device) - before) / 2**20:.0f} MiB"


# ── the head ────────────────────────────────────────────────────────────────────────────────────────────


def fused_head(own: Setting) -> Iterator[Row]:
    """KL, log-probs and both gradients against float64 autograd through whole logits, on the same inputs."""
    torch.manual_seed(0)
    hidden, ref = torch.randn(2, own.tokens, own.hidden).unbind()
    weight = torch.randn(own.vocab, own.hidden) / own.hidden**0.5
    ref_weight = weight + 0.01 * torch.randn_like(weight)
    targets = torch.randint(own.vocab, (own.tokens,), device=own.device)
    for dtype, limit in ((torch.float32, FP32), (torch.bfloat16, BF16)):
        given = [x.to(own.device, dtype) for x in (hidden, weight, ref, ref_weight)]
        exact = _by_logits(targets, [x.double() for x in given])
        found = _by_tiles(targets, given)
        for name, a, b in zip(("KL", "log-probs", "d hidden", "d weight"), found, exact, strict=True):
            off = float((a.double() - b).norm() / b.norm())
            yield Row(f"{str(dtype)[6:]}, {name} against float64", f"{off:.1e}", f"≤ {limit:g}", off <= limit)
        del exact, found
        tiles, logits = partial(_by_tiles, targets, given), partial(_by_logits, targets, given)
        times = [_seconds(run, own) for run in (tiles, logits)]
        yield Row(
            f"{str(dtype)[6:]}, forward + backward, fused beside whole logits",
            f"{times[0] * 1e3:.1f} beside {times[1] * 1e3:.1f} ms, {_peak(tiles, own)} beside {_peak(logits, own)}",
            "", None,
        )  # fmt: skip


def _by_tiles(targets: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    hidden, weight = (x.detach().requires_grad_() for x in given[:2])
    heads = [Head(w, None, len(w)) for w in (weight, given[3])]
    seen = fused(hidden, heads[0], targets, ref_hidden=given[2], ref_head=heads[1])
    assert seen.kl is not None
    grads = torch.autograd.grad((seen.kl - seen.logprobs).sum(), (hidden, weight))
    return seen.kl.detach(), seen.logprobs.detach(), *grads


def _by_logits(targets: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    hidden, weight = (x.detach().requires_grad_() for x in given[:2])
    wide = torch.promote_types(hidden.dtype, torch.float32)
    logp = (hidden @ weight.T).to(wide).log_softmax(-1)
    with torch.no_grad():
        logq = (given[2] @ given[3].T).to(wide).log_softmax(-1)
    kl = (logp.exp() * (logp - logq)).sum(-1)
    logprobs = logp.gather(-1, targets[:, None])[:, 0]
    grads = torch.autograd.grad((kl - logprobs).sum(), (hidden, weight))
    return kl.detach(), logprobs.detach(), *grads


# ── a model's passes ────────────────────────────────────────────────────────────────────────────────────


def _work(policy: Policy, own: Setting) -> Rollout:
    """2 prompts × 8 completions of 32 tokens, on the device, of tokens that the model can say."""
    made = rollout(2, 8, own.prompt, 32)
    there = {field.name: getattr(made, field.name) for field in fields(made)}
    there = {name: tensor.to(own.device) for name, tensor in there.items() if tensor is not None}
    vocab = policy.recipe.vocab
    return replace(made, **there | {name: there[name] % vocab for name in ("prompt_ids", "completion_ids")})


def shared_prompt(own: Setting) -> Iterator[Row]:
    """The ways to share a prompt: equal to reading it again for every completion, and quicker."""
    made = load(ModelSpec(str(own.random), device=str(own.device)))
    work = _work(made.policy, own)
    reference = frozen(made.policy, work)
    runs = {way: partial(update, made.policy, work, reference, way) for way in ("plain", *made.paths[:-1])}
    off = differences(list(runs.values()), made.policy)
    plain = _seconds(runs["plain"], own)
    for (way, run), (logprob, gradient) in zip(runs.items(), off, strict=True):
        good = max(logprob, gradient) <= PATHS
        found = f"log-probs {logprob:.0e}, gradients {gradient:.0e} off; plain / it {plain / _seconds(run, own):.2f}"
        yield Row(f"{way}, {own.prompt} + 8 × 32 tokens, fp32", found, f"off ≤ {PATHS:g}", good)


def qlora(own: Setting) -> Iterator[Row]:
    """An adapter in bf16 over the base as it is, in 8 bits and in 4: bytes, times, and step 0."""
    if importlib.util.find_spec("torchao") is None:
        yield Row("not run: no torchao", "", "", None)
        return
    for bits in (None, "8bit", "4bit"):
        spec = ModelSpec(
            str(own.random), adapter=Adapter(rank=16), quantize=bits, dtype="bfloat16", device=str(own.device)
        )
        yield from _over(bits or "as it is", load(spec), own)


def _over(name: str, made: Loaded, own: Setting) -> Iterator[Row]:
    from kleash.models.reference import build_reference

    policy, work = made.policy, _work(made.policy, own)
    reference = build_reference(ModelSpec(str(own.random)), made)
    states = reference.states(work)
    look = policy(work, reference=states)
    assert look.kl is not None
    largest = float(look.kl.detach().abs().max())
    grads = torch.autograd.grad(-look.logprobs.sum(), policy.trainable())
    moves = all(bool(g.isfinite().all()) for g in grads) and any(bool(g.any()) for g in grads)
    yield Row(f"{name}: largest KL at step 0; the adapter's gradient", f"{largest:g}; {moves}", "0; True",
              largest == 0 and moves)  # fmt: skip
    kept = [t for t in (*policy.parameters(), *policy.buffers()) if not t.requires_grad]
    sampling = ours(policy, work.prompt_ids.tolist(), 0)
    found = (
        f"{ledger.held(kept) / 1e6:.3g} MB frozen; sampling {_seconds(sampling, own):.2f} s, update "
        f"{_seconds(partial(update, policy, work, states, 'packed'), own):.3f} s"
    )
    yield Row(f"{name}: bytes and times", found, "", None)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────


#: All weights of the random model move: an adapter on weights that mean nothing has little to turn. Tight at first,
#: for noise alone carries such a model away.
RANDOM = {"train.learning_rate": 3e-5, "model.dtype": "bfloat16", "kl.beta": 0.5}


def vowels(prompts: Sequence[Any], completions: Sequence[str], **_: Any) -> list[float]:
    """Ten times the share of vowels: what a model of random weights can be taught, in numbers that a nat is worth."""
    return [10 * sum(letter in "aeiou" for letter in text) / max(len(text), 1) for text in completions]


def tiny_run(own: Setting) -> Iterator[Row]:
    yield from _run(own, "kleash:tiny", "vader", "4 nats/sequence", {"train.learning_rate": 1e-3})


def random_run(own: Setting) -> Iterator[Row]:
    yield from _run(own, str(own.random), vowels, "2 nats/sequence", RANDOM)


def _run(own: Setting, policy: str, reward: Any, target: str, settings: dict[str, Any]) -> Iterator[Row]:
    settings = settings | {
        "model.device": str(own.device), "train.steps": own.steps, "train.prompts_per_step": 8,
        "train.max_new_tokens": 32, "train.checkpoint_every": own.steps,
    }  # fmt: skip
    out = own.scratch / f"run-{Path(policy).name.replace(':', '-')}"
    done = train(policy, write_prompts(own.scratch), reward, kl_target=target, out=out, settings=settings)
    first = done.steps[0].kl_ref
    start = None if first is None else first.value
    yield Row(f"{out.name}: KL at step 0", f"{start}", "0", start == 0)
    if own.device.type != "cuda":
        yield Row(f"{out.name}: {own.steps} steps, too few to judge a leash by", _told(done.steps), "", None)
        return
    (leash,) = held(done.steps)
    yield Row(f"{out.name}: KL, last third", f"{leash.kl:.2f}; {_told(done.steps)}", f"{target} ± 10 %", leash.good)


def _told(steps: Sequence[Step]) -> str:
    taken = statistics.median((step.seconds or {}).get("total", 0.0) for step in steps[1:-1])
    return f"score {steps[0].score:.2f} → {steps[-1].score:.2f}, {taken:.2f} s a step"


def drift(own: Setting) -> Iterator[Row]:
    """The tiny run audited: a model is at 0 from itself, and the run's is not."""
    import kleash

    tuned = own.scratch / "run-kleash-tiny"
    if not tuned.exists():
        list(tiny_run(own))
    effort = {"tokens": 4000, "builtin_tasks": False, "device": str(own.device)}
    for name, path in (("itself", "kleash:tiny"), ("the tiny run", str(tuned))):
        start = time.perf_counter()
        kl = kleash.audit("kleash:tiny", path, settings=effort).kl
        value = None if kl is None else kl.value
        good = value is not None and (abs(value) < FP32) == (name == "itself")
        taken = time.perf_counter() - start
        yield Row(f"KL of {name}, nats/token", f"{value}, {taken:.0f} s", "0" if name == "itself" else "above 0", good)
