"""What to begin a run with: values for a model and a machine, before anything is loaded. Arithmetic only.

The bytes are estimates to choose by. `--check-only` measures what the loaded model takes.
"""

from dataclasses import dataclass, replace

from kleash.models.unloaded import Unloaded

#: Share of the free memory that a start may plan with: an estimate made without the model is no better than that.
COUNTED_ON = 0.6
#: Share of a matrix product's speed at which a model samples and trains; measured with SmolLM2 on a CPU.
EFFICIENCY = 0.3
#: Seconds a step should take at most on the machine, where the smallest step is not longer than that itself.
STEP_SECONDS = 60.0
#: Of an adapter.
RANK = 16
#: Parameters from which on the default learning rate is meant; a smaller model takes a higher one, by these powers.
#: They stay at a quarter to all of the rates that held 4 nats/sequence in recipes/ and docs/runs (1.1 million
#: parameters 1e-3, an adapter 3e-3; 135 million 5e-5 and 5e-4): a start is held tighter than that.
LARGE = 1e9
FULL_POWER, ADAPTER_POWER = 1 / 2, 1 / 3

#: Numbers that a layer keeps of a token for its backward pass, in hidden and in inner widths: as measured with SmolLM2.
KEPT_HIDDEN, KEPT_INNER = 12, 4
NF4 = 0.52  # bytes of a weight in 4 bits, its block's scale with it
_FULL = 4 + 4 + 8  # bytes of a trained fp32 weight: itself, its gradient, two moments
#: Prompts, group, tokens of a step, from the usual to the least that still has a baseline.
_STEPS = ((8, 8, 128), (8, 8, 64), (4, 8, 64), (4, 4, 64), (4, 4, 32), (2, 4, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """free: bytes to be had, None where that cannot be asked. flops: multiplications and additions a second."""

    gpu: bool
    free: int | None
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The values to begin with.

    size, seconds: what a step would take. fits: False where nothing smaller is left. faster: than the default learning
    rate, so many times.
    """

    adapter: bool
    bf16: bool
    checkpointing: bool
    quantised: bool
    prompts: int
    group: int
    tokens: int
    size: int
    seconds: float
    fits: bool
    faster: float


def suggest(model: Unloaded, machine: Machine, *, prompt: int = 128, critic: bool = False) -> Start:
    """The largest step, and the most of the model trained, that memory and patience allow.

    All weights are trained where they fit with room to spare; else an adapter; then the base in bf16; then activations
    recomputed; then the base in 4 bits. `prompt`: tokens of a prompt that are reckoned with. critic: a value head on
    the policy.
    """
    # On a CPU low precision is slower: only where memory asks for it.
    ways = [
        (False, machine.gpu, False, False),
        (True, machine.gpu, False, False),
        (True, True, False, False),
        (True, True, True, False),
        (True, True, True, True),
    ]
    if model.adapter:
        ways = ways[1:]
    best: Start | None = None
    for adapter, bf16, recomputed, quantised in dict.fromkeys(ways):
        for prompts, group, tokens in _STEPS:
            length = min(tokens, max(model.context - prompt, 16))
            start = Start(
                adapter=adapter, bf16=bf16, checkpointing=recomputed, quantised=quantised, prompts=prompts, group=group,
                tokens=length, size=0, seconds=_seconds(model, machine, prompts * group, prompt, length), fits=True,
                faster=faster(model.parameters, adapter),
            )  # fmt: skip
            size = step_bytes(model, start, prompt, critic=critic)
            if quantised and not machine.gpu:
                size = max(size, 2 * model.parameters)  # there is the whole base once, while it is read
            start = replace(start, size=size)
            small = (prompts, group, tokens) == _STEPS[-1]
            room = machine.free is None or start.size <= COUNTED_ON * machine.free
            if room and (small or start.seconds <= STEP_SECONDS):
                return start
            best = start
    assert best is not None
    return replace(best, fits=False)


def step_bytes(model: Unloaded, start: Start, prompt: int, *, critic: bool = False) -> int:
    """Bytes of weights, their training, and one prompt group's pass: the planner lets as little through at a time."""
    own = model.parameters
    if start.adapter:
        few = model.linear if start.quantised else 0
        weights = (own - few) * (2 if start.bf16 else 4) + NF4 * few + RANK * model.ends * _FULL
    else:
        weights = own * (_FULL + 4 + (2 if start.bf16 else 0))  # + 4: the reference, a second model
    number = 2 if start.bf16 else 4
    fed = prompt + start.group * start.tokens
    kept = model.layers * (KEPT_HIDDEN * model.hidden + KEPT_INNER * model.inner)
    if start.checkpointing:
        kept = model.layers * model.hidden + kept // model.layers
    heads = 2 * fed * model.hidden * number * (2 if critic else 1)
    sampling = start.group * ((prompt + start.tokens) * model.cached * number + 16 * model.vocab)
    return int(weights + max(fed * kept * number + heads, sampling))


def faster(parameters: int, adapter: bool) -> float:
    """By what the default learning rate is multiplied for a model of this size."""
    return max(1.0, LARGE / parameters) ** (ADAPTER_POWER if adapter else FULL_POWER)


def _seconds(model: Unloaded, machine: Machine, rows: int, prompt: int, tokens: int) -> float:
    """Sampling, the reference, and a forward and backward pass: five forwards' worth of every completion token."""
    fed = rows * tokens + rows * prompt / 4
    return 5 * 2 * model.parameters * fed / (EFFICIENCY * machine.flops)
