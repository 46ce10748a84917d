"""The critic: what the rest of a completion will be worth, from the state before each token."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kleash.errors import UsageError
from kleash.models.anatomy import body_of, text_config
from kleash.models.checkpoint_files import check_weights
from kleash.models.spec import CriticKind

#: Its file in a checkpoint, beside the model's own.
CRITIC = "critic.safetensors"


class Critic(nn.Module):
    """One linear value head, in full precision, on the policy's hidden states or on those of a body of its own.

    Attributes:
        body: None where it reads the policy's own states ("head"); its gradient then moves the policy too.
        value: starts at 0, so that a fresh critic predicts 0 everywhere and repeats bit for bit.
    """

    def __init__(self, width: int, like: torch.Tensor, body: nn.Module | None) -> None:
        super().__init__()
        self.body = body
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.value = nn.Linear(width, 1, dtype=dtype, device=like.device)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, hidden: Float[Tensor, "*s H"]) -> Float[Tensor, "*s"]:
        """Values in units of reward. Call it outside autocast."""
        return self.value(hidden.to(self.value.weight.dtype))[..., 0]


def make_critic(kind: CriticKind, causal: Any, directory: Path) -> tuple[Critic, bool]:
    """The critic stored in `directory`, or a fresh one; and whether it is fresh.

    "separate" copies the policy's body as it stands, adapters included: what trains in the one trains in the other.

    Raises:
        UsageError: a critic is stored there, and it is not of this kind or shape.
    """
    body = deepcopy(body_of(causal)) if kind == "separate" else None
    critic = Critic(text_config(causal).hidden_size, next(causal.parameters()), body)
    if not (directory / CRITIC).is_file():
        return critic, True
    check_weights(directory, single=CRITIC)
    stored, trained = load_file(directory / CRITIC), _trained(critic)
    if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in trained.items()}:
        raise UsageError(
            f'the critic in {directory} is not one that model.critic = "{kind}" makes here; set it to the kind that '
            f"was trained, or move {CRITIC} away to start with a fresh one"
        )
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(stored[name])
    return critic, False


def save_critic(critic: Critic, directory: Path) -> None:
    """Writes what is trained of it."""
    save_file({name: p.detach().contiguous() for name, p in _trained(critic).items()}, directory / CRITIC)


def _trained(critic: Critic) -> dict[str, nn.Parameter]:
    return {name: p for name, p in critic.named_parameters() if p.requires_grad}
