"""What the tests of fused share: a random case, and float64 autograd through a plain log_softmax to hold it against."""

from dataclasses import dataclass, replace

import torch
from tests.tolerances import EXACT, FP32
from torch import Tensor

from kleash.kl.fused import Fused, fused
from kleash.kl.moments import Also
from kleash.tensors import Head

TOLERANCE = {torch.float64: EXACT, torch.float32: FP32, torch.bfloat16: FP32, torch.float16: FP32}
LIVE = ("logprobs", "entropy", "kl", "kl_forward")  # the outputs that carry a gradient
CONSTANT = ("ref_logprobs", "ref_entropy")


@dataclass(frozen=True)
class Case:
    """A policy, a reference with another hidden size, and targets."""

    hidden: Tensor
    head: Head
    ref_hidden: Tensor
    ref_head: Head
    targets: Tensor
    temperature: float = 1.0

    def run(self, forward_kl: bool = False, order: float | None = None, **options) -> Fused:
        return fused(
            self.hidden,
            self.head,
            self.targets,
            also=Also(forward_kl, order),
            **{"ref_hidden": self.ref_hidden, "ref_head": self.ref_head, "temperature": self.temperature, **options},
        )

    def leaves(self) -> list[Tensor]:
        return [x for x in (self.hidden, self.head.weight, self.head.bias) if x is not None]


def make(
    M=41, H=37, V=1271, K=29, *, extra=0, dtype=torch.float32, bias=True, scale=1.0, softcap=None, **options
) -> Case:
    def leaf(*shape: int, size: float = 1.0) -> Tensor:
        return (torch.randn(*shape) * size).to(dtype).requires_grad_()

    head = Head(leaf(V + extra, H, size=2 / H**0.5), leaf(V + extra) if bias else None, V, scale, softcap)
    ref_head = Head(leaf(V, K, size=2 / K**0.5).detach(), None, V, 0.9, softcap)
    return Case(leaf(M, H), head, torch.randn(M, K).to(dtype), ref_head, torch.randint(V, (M,)), **options)


def log_probs(case: Case) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Log-probs of both sides over the whole vocabulary, float64, and the float64 leaves they depend on."""
    leaves = [x.detach().double().requires_grad_() for x in case.leaves()]
    head = replace(case.head, weight=leaves[1], bias=leaves[2] if len(leaves) == 3 else None)
    ref_bias = case.ref_head.bias
    ref_head = replace(
        case.ref_head,
        weight=case.ref_head.weight.detach().double(),
        bias=None if ref_bias is None else ref_bias.detach().double(),
    )
    p = log_softmax(leaves[0], head, case.temperature)
    return p, log_softmax(case.ref_hidden.detach().double(), ref_head, case.temperature), leaves


def log_softmax(hidden: Tensor, head: Head, temperature: float) -> Tensor:
    logits = hidden @ head.weight[: head.vocab].T
    logits = head.scale * (logits if head.bias is None else logits + head.bias[: head.vocab])
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return (logits / temperature).log_softmax(-1)


def expected(case: Case) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Every output in float64, from the whole plane of log-probs, and the float64 leaves they depend on."""
    p, q, leaves = log_probs(case)
    at = case.targets[..., None]
    outputs = {
        "logprobs": p.gather(-1, at).squeeze(-1),
        "entropy": -(p.exp() * p).sum(-1),
        "kl": (p.exp() * (p - q)).sum(-1),
        "kl_forward": (q.exp() * (q - p)).sum(-1),
        "ref_logprobs": q.gather(-1, at).squeeze(-1),
        "ref_entropy": -(q.exp() * q).sum(-1),
    }
    return outputs, leaves


def error(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, relative to the largest value; a bfloat16 or float16 result is forgiven its last rounding.

    Nothing else is forgiven them: low-precision inputs are widened, never computed in, and owe float32's tolerance.
    """
    if wanted.numel() == 0:
        return 0.0
    found, wanted = found.detach(), wanted.detach()
    difference = (found.double() - wanted).abs()
    if found.dtype in (torch.bfloat16, torch.float16):
        kind = torch.finfo(found.dtype)
        difference = (difference - wanted.abs() * kind.eps / 2 - kind.smallest_normal * kind.eps).clamp(min=0)
    return float(difference.max() / wanted.abs().max().clamp(min=1e-300))


def check(case: Case, live: tuple[str, ...] = LIVE, **options) -> None:
    """Values of all outputs, and the gradient of a random combination of `live`, against float64."""
    tolerance = TOLERANCE[case.hidden.dtype]
    found = case.run(forward_kl=True, **options)
    wanted, leaves = expected(case)
    for name in LIVE + CONSTANT:
        value = getattr(found, name)
        assert value.dtype == (torch.float64 if case.hidden.dtype == torch.float64 else torch.float32)
        assert error(value, wanted[name]) < tolerance, name
        assert value.requires_grad == (name in LIVE)
    weights = {name: torch.randn(case.targets.shape, dtype=torch.float64) for name in live}
    found_loss = sum((weights[name].to(getattr(found, name).dtype) * getattr(found, name)).sum() for name in live)
    gradients = torch.autograd.grad(found_loss, case.leaves())
    truth = torch.autograd.grad(sum((weights[name] * wanted[name]).sum() for name in live), leaves)
    for gradient, true, leaf in zip(gradients, truth, case.leaves(), strict=True):
        assert gradient.dtype == leaf.dtype
        assert error(gradient, true) < tolerance
