"""The policy: one nn.Module whose single forward does the body and the fused head."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kleash.errors import UsageError
from kleash.kl.fused import Fused, fused
from kleash.kl.moments import Also
from kleash.models.adapters import POLICY_ADAPTER, is_adapted
from kleash.models.anatomy import body_of, text_config
from kleash.models.critic import Critic, save_critic
from kleash.models.heads import Recipe, head_of
from kleash.models.paths import PathName, hidden_states
from kleash.models.quantised import Quantised
from kleash.models.quiet import without_bars
from kleash.tensors import Head, Look, ReferenceStates, Rollout


class Policy(nn.Module):
    """A language model as kleash sees it. Only `forward` is called under gradients; nothing reaches inside.

    Attributes:
        model: the transformers model with its head, or the peft model around it.
        critic: the value function, for algorithms that have one.
        recipe: what its head does.
        compute: the dtype of autocast, None to compute in the dtype of the weights.
        quantised: how its base was put into few bits, None if it was not.
    """

    critic: Critic | None
    quantised: Quantised | None

    def __init__(self, model: Any, recipe: Recipe, *, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.compute = compute
        self.critic = None
        self.quantised = None

    def forward(
        self,
        rollout: Rollout,
        *,
        reference: ReferenceStates | None = None,
        temperature: float = 1.0,
        path: PathName = "packed",
        rows: int | None = None,
        order: float | None = None,
        valued: bool = True,
    ) -> Look:
        """Log-probs, entropy, the critic's values and, given the reference's states, exact KL of each counted token.

        `order`: of a Rényi divergence to the reference, measured besides. `valued`: whether the critic looks too.

        Only counted positions go through the head; the rest of each result is 0. `rows`: how many completions go
        through the body at a time, by the paths that can; it changes memory and time only.
        """
        mask = rollout.mask
        hidden = self.hidden(rollout, path, rows)[mask]
        values = None
        if valued and self.critic is not None:
            values = _spread(self.critic(self._critics(hidden, rollout, path, rows)), mask)
        with self.autocast():
            seen = fused(
                hidden,
                self.head(),
                rollout.completion_ids[mask],
                ref_hidden=None if reference is None else reference.hidden[mask],
                ref_head=None if reference is None else reference.head,
                temperature=temperature,
                also=Also(order=order),
            )
        kl, ref = seen.kl, seen.ref_logprobs
        if reference is not None and reference.others:
            kl, ref = self._weighed(seen, reference, hidden, rollout, temperature)
        origin = None if reference is None else reference.origin
        return Look(
            logprobs=_spread(seen.logprobs, mask),
            entropy=_spread(seen.entropy, mask),
            ref=None if ref is None else _spread(ref, mask),
            kl=None if kl is None else _spread(kl, mask),
            values=values,
            renyi=None if seen.renyi is None else _spread(seen.renyi, mask),
            kl_origin=None if origin is None else self._kl_to(origin, hidden, rollout, temperature),
        )

    def _weighed(
        self,
        first: Fused,
        reference: ReferenceStates,
        hidden: Float[Tensor, "M H"],
        rollout: Rollout,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Σ w_i KL_i, live, and Σ w_i log ref_i over several references; `first` has looked at the first of them."""
        sides = (reference, *reference.others)
        seen = [first, *(self._against(other, hidden, rollout, temperature) for other in reference.others)]
        kl, ref = torch.zeros_like(first.logprobs), torch.zeros_like(first.logprobs)
        for side, one in zip(sides, seen, strict=True):
            assert one.kl is not None, "each has a reference"
            assert one.ref_logprobs is not None, "each has a reference"
            kl, ref = kl + side.weight * one.kl, ref + side.weight * one.ref_logprobs
        return kl, ref

    def _against(
        self, other: ReferenceStates, hidden: Float[Tensor, "M H"], rollout: Rollout, temperature: float
    ) -> Fused:
        mask = rollout.mask
        with self.autocast():
            return fused(
                hidden,
                self.head(),
                rollout.completion_ids[mask],
                ref_hidden=other.hidden[mask],
                ref_head=other.head,
                temperature=temperature,
            )

    @torch.no_grad()
    def _kl_to(
        self, other: ReferenceStates, hidden: Float[Tensor, "M H"], rollout: Rollout, temperature: float
    ) -> Float[Tensor, "B T"]:
        """Exact KL to another model, measured only."""
        seen = self._against(other, hidden, rollout, temperature)
        assert seen.kl is not None, "it has a reference"
        return _spread(seen.kl, rollout.mask)

    def hidden(self, rollout: Rollout, path: PathName = "packed", rows: int | None = None) -> Float[Tensor, "B T H"]:
        """The final hidden state that predicts each completion token, by one of the exact paths."""
        with self.autocast():
            return self.rounded(hidden_states(self.body, self.config, rollout, path, rows))

    def rounded(self, hidden: Float[Tensor, "*s H"]) -> Float[Tensor, "*s H"]:
        """Final hidden states in the dtype of autocast, in which a model's own head would take them.

        Policy, reference and sampler alike, so that the reference's can be kept so without another KL.
        """
        return hidden if self.compute is None else hidden.to(self.compute)

    def _critics(
        self, own: Float[Tensor, "M H"], rollout: Rollout, path: PathName, rows: int | None
    ) -> Float[Tensor, "M H"]:
        """The states that the critic reads: the policy's own, or those of its body by the same path."""
        if self.critic is None or self.critic.body is None:
            return own
        with self.autocast():
            return self.rounded(hidden_states(self.critic.body, self.config, rollout, path, rows))[rollout.mask]

    def head(self) -> Head:
        """The head with its weight live."""
        return head_of(self.causal, self.recipe)

    @property
    def causal(self) -> Any:
        """The transformers model with its head, adapters (if any) inside its layers."""
        return self.model.get_base_model() if is_adapted(self.model) else self.model

    @property
    def body(self) -> nn.Module:
        """The model without its head: it never computes logits. Without eyes and ears too, if it has them."""
        return body_of(self.causal)

    @property
    def config(self) -> Any:
        """That of the part that reads and writes text."""
        return text_config(self.causal)

    @property
    def rows(self) -> int:
        """Tokens that it can read: the rows of its embedding."""
        return self.causal.get_input_embeddings().weight.shape[0]

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision every forward of this policy and of its reference runs in."""
        return nullcontext() if self.compute is None else torch.autocast(self.device.type, self.compute)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """eval() meanwhile, then each module in the mode it had.

        Dropout is off in either mode, but in train() activation checkpointing loses the cache.
        """
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training moves.

        Raises:
            UsageError: some are stored in half precision, which cannot hold a small step.
        """
        chosen = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in chosen):
            raise UsageError(
                "the weights to train are stored in half precision: at lr 1e-5 an Adam step is lost to rounding in "
                'nearly all of them. Load the policy in fp32 (dtype = "bfloat16" computes in bf16 over fp32 weights), '
                "or train an adapter"
            )
        return chosen

    def save(self, directory: Path, tokenizer: Any) -> None:
        """Writes what is trained: the model (in Hugging Face format) or the policy's own adapter, and the critic."""
        with without_bars():
            if is_adapted(self.model):
                # without the flag peft asks the hub whether the base's embeddings have grown
                self.model.save_pretrained(directory, selected_adapters=[POLICY_ADAPTER], save_embedding_layers=False)
                if self.quantised is not None:
                    self.quantised.record(directory)
            else:
                self.model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
        if self.critic is not None:
            save_critic(self.critic, directory)


def _spread(values: Float[Tensor, " M"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Values of the counted positions back on [B,T], 0 elsewhere; differentiable."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
