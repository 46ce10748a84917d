"""A reward model in training: a language model's body, and one number read at the last token of a text.

It is saved as the sequence classifier that transformers knows, and gives the numbers of that classifier's own forward;
texts that begin alike share that beginning's forward here, as completions share their prompt's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kleash.errors import RunError, UsageError
from kleash.models.adapters import POLICY_ADAPTER, is_adapted
from kleash.models.checkpoint_files import check_weights
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.quantised import in_full
from kleash.models.quiet import without_bars
from kleash.models.sampling import left_padded
from kleash.tensors import Rollout

#: The trained weights by themselves, where the model is saved with its adapter merged into it.
TRAINED = "trained.safetensors"
#: How transformers calls the head of a classifier on a decoder.
HEAD = "score"
#: Largest difference from the classifier's own forward, relative to the largest score.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2}


class Scorer(nn.Module):
    """Scores texts.

    Attributes:
        trunk: body and head in one classifier, whose paths, precision and adapters it keeps.
    """

    def __init__(self, trunk: Policy) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, rollout: Rollout, *, path: PathName = "packed", rows: int | None = None) -> Float[Tensor, " B"]:
        """The score of each row of a rollout of `as_rollout`, in full precision."""
        hidden = self.trunk.hidden(rollout, path, rows)
        last = rollout.mask.sum(1) - 1
        read = hidden[torch.arange(len(last), device=hidden.device), last]
        weight = self.head.weight
        return (read.to(weight.dtype) @ weight.T)[:, 0]

    @property
    def head(self) -> nn.Linear:
        return getattr(self.trunk.causal, HEAD)

    @property
    def device(self) -> torch.device:
        return self.trunk.device

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that training moves."""
        return self.trunk.trainable()

    def save(self, directory: Path, tokenizer: Any) -> None:
        """A checkpoint that AutoModelForSequenceClassification reads, an adapter merged into it.

        Beside a merged one lie the weights that were trained, which cannot be had back from it.
        """
        with without_bars():
            self.trunk.causal.save_pretrained(directory, state_dict=self._merged())
            tokenizer.save_pretrained(directory)
        if is_adapted(self.trunk.model):
            save_file({name: p.detach().contiguous() for name, p in self._trained().items()}, directory / TRAINED)

    def take(self, directory: Path) -> None:
        """Puts the trained weights of a checkpoint in place, whose model has its adapter merged into it.

        Raises:
            RunError: they are not whole, or of another model.
        """
        check_weights(directory, single=TRAINED)
        stored, own = load_file(directory / TRAINED), self._trained()
        if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in own.items()}:
            raise RunError(f"the trained weights in {directory} are of another model or adapter than this config's")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(stored[name])

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def _merged(self) -> dict[str, Tensor] | None:
        """The classifier's weights with the adapter's product added to each, in fp32; None without an adapter.

        Into copies: merging and taking back again would round the weights that go on training.
        """
        if not is_adapted(self.trunk.model):
            return None
        model = self.trunk.causal
        layers = {name: m for name, m in model.named_modules() if isinstance(m, BaseTunerLayer)}
        merged: dict[str, Tensor] = {}
        for name, tensor in in_full(model).items():
            owner, _, last = name.rpartition(".base_layer.")
            if owner in layers and last == "weight":
                merged[f"{owner}.weight"] = _with_adapter(layers[owner], tensor)
            elif owner in layers:
                merged[f"{owner}.{last}"] = tensor.float()
            elif not any(name.startswith(f"{own}.") for own in layers):
                merged[name] = tensor.float()
        return merged


def _with_adapter(layer: Any, weight: Tensor) -> Tensor:
    variant = layer.lora_variant.get(POLICY_ADAPTER)
    if variant is not None:  # DoRA also sets the length of each row
        return variant.merge_safe(layer, POLICY_ADAPTER, weight.float())
    return weight.float() + layer.get_delta_weight(POLICY_ADAPTER).float()


def as_rollout(groups: Sequence[Sequence[list[int]]], pad_id: int, device: torch.device | str) -> Rollout:
    """Texts as token ids, in groups that begin alike: what all of a group share is its prompt, computed once.

    Every text ends with one more token that is never fed: the state that would predict it is that of the text's own
    last token. Texts of a group that do not even share their first token are groups of one. Rows are in their order.
    """
    apart: list[Sequence[list[int]]] = []
    for texts in groups:
        apart += [texts] if _shared(texts) else [[text] for text in texts]
    lengths = [_shared(texts) if len(texts) > 1 else 1 for texts in apart]
    prompt_ids, prompt_mask = left_padded([t[0][:n] for t, n in zip(apart, lengths, strict=True)], pad_id, device)
    rows = [[*text[n:], pad_id] for texts, n in zip(apart, lengths, strict=True) for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], device=device)
    counts = torch.tensor([len(row) for row in rows], device=device)
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=ids,
        mask=torch.arange(width, device=device) < counts[:, None],
        group=torch.arange(len(apart), device=device).repeat_interleave(
            torch.tensor([len(texts) for texts in apart], device=device)
        ),
        sampler=torch.zeros(ids.shape, device=device),
        truncated=torch.zeros(len(rows), dtype=torch.bool, device=device),
    )


def _shared(texts: Sequence[list[int]]) -> int:
    """Tokens that all texts begin with; all of the shortest, at most."""
    first = texts[0]
    return next(
        (i for i in range(len(first)) if any(len(text) <= i or text[i] != first[i] for text in texts)), len(first)
    )


@torch.no_grad()
def probe_score(scorer: Scorer, pad_id: int) -> None:
    """Compares two texts' scores with the classifier's own forward, each text alone.

    Raises:
        UsageError: they differ: this classifier reads its score from elsewhere (an encoder's first token, …).
    """
    vocab, device = scorer.trunk.recipe.vocab, scorer.device
    ids = [i for i in torch.linspace(0, vocab - 1, 14).long().tolist() if i != pad_id]
    texts = [ids[:8], [*ids[:4], *ids[8:]]]
    model, training = scorer.trunk.causal, scorer.training
    try:
        scorer.eval()
        ours = scorer(as_rollout([texts], pad_id, device), path="plain").float()
        with scorer.trunk.autocast():
            theirs = [model(input_ids=torch.tensor([text], device=device)).logits.float()[0, 0] for text in texts]
    except Exception as error:  # whatever a model of any make may raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{type(model).__name__} cannot score a row of tokens: {reason}") from error
    finally:
        scorer.train(training)
    error = float((ours - torch.stack(theirs)).abs().max() / torch.stack(theirs).abs().max().clamp(min=1.0))
    dtype = scorer.trunk.compute or scorer.head.weight.dtype
    if not error <= _ROUNDING[dtype]:
        raise UsageError(
            f"{type(model).__name__} does not read its score from the last token of a text, so kleash cannot train it; "
            "start from a language model (a decoder)"
        )
