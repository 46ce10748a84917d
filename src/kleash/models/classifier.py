"""Sequence classifiers, which is what reward models are: text in, one number per label out. No gradients.

A row's numbers are those of the model's own forward on that row alone. Rows of similar length go together, padded on
the right; which token of a padded row is its last is decided so that the answer is the one without padding.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kleash.errors import RunError, UsageError
from kleash.models.catalog import resolve
from kleash.models.checkpoint_files import check_weights
from kleash.models.dropout import switch_off_dropout
from kleash.models.quiet import without_bars


@dataclass(frozen=True)
class Classifier:
    """A model with a classification head, frozen, and its tokenizer. limit: the most tokens it takes, None: any."""

    model: Any
    tokenizer: Any
    labels: tuple[str, ...]
    limit: int | None

    @torch.no_grad()
    def logits(self, rows: Sequence[list[int]], batch_tokens: int) -> Tensor:
        """[rows, labels], float32 on the CPU, in the order of `rows`; at most `batch_tokens` positions go together."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = torch.zeros(len(rows), len(self.labels))
        while order:
            batch = [order.pop()]  # the longest left decides the width
            while order and (len(batch) + 1) * len(rows[batch[0]]) <= batch_tokens:
                batch.append(order.pop())
            found[batch] = self._forward([rows[i] for i in batch]).float().cpu()
        return found

    def _forward(self, rows: list[list[int]]) -> Tensor:
        width, device = len(rows[0]), self.model.device
        config = self.model.config.get_text_config()
        pad, own = config.pad_token_id, config.pad_token_id
        if pad is None:
            # Heads on decoders read the last token that is not padding, by its id: one that ends no row is safe.
            pad = next(i for i in range(config.vocab_size) if all(row[-1] != i for row in rows))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        config.pad_token_id = pad
        try:
            return self.model(input_ids=ids, attention_mask=mask).logits
        finally:
            config.pad_token_id = own


def load_classifier(name: str, dtype: torch.dtype, device: str) -> Classifier:
    """The classifier in a directory or on the hub: safetensors only, no code of its own, every weight found.

    Raises:
        UsageError: there is none, or it is a language model without a classification head, or it brings code.
        RunError: its weights are not whole.
    """
    from transformers import AutoTokenizer

    directory = resolve(name)
    model = read_classifier(directory, dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise RunError(_unread(directory, error)) from None
    switch_off_dropout(model)
    model.requires_grad_(False).eval().to(device)
    labels = tuple(str(model.config.id2label[i]) for i in range(model.config.num_labels))
    return Classifier(model, tokenizer, labels, limit_of(model.config, tokenizer))


def read_classifier(directory: Path, dtype: torch.dtype) -> Any:
    """The transformers model in a directory, as `load_classifier` wants it, on the CPU.

    Raises:
        UsageError, RunError: as `load_classifier`.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    _check(directory)
    check_weights(directory)
    config: Any = AutoConfig.from_pretrained(directory)
    try:
        with without_bars():
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                directory, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise RunError(_unread(directory, error)) from None
    model, info = loaded
    if absent := sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"]):
        raise UsageError(
            f"the model in {directory} lacks {len(absent)} weights of a classifier ({absent[0]} first), which would "
            "have been random; a reward model is saved by AutoModelForSequenceClassification"
        )
    return model


def _unread(directory: Path, error: Exception) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"the reward model in {directory} could not be loaded: {reason}"


def _check(directory: Path) -> None:
    """Refuses a model that brings code. A config of a known kind may name code too; its own class is then taken."""
    from transformers import CONFIG_MAPPING

    if not (directory / "config.json").is_file():
        raise UsageError(f"{directory} holds no config.json, so it is not a reward model")
    try:
        config = json.loads((directory / "config.json").read_text())
    except json.JSONDecodeError:
        raise RunError(f"{directory / 'config.json'} is not JSON; the checkpoint was cut short or edited") from None
    if config.get("model_type") not in CONFIG_MAPPING:
        raise UsageError(
            f"the reward model in {directory} is of a kind ({config.get('model_type')!r}) that transformers does not "
            "know without running the model's own code; kleash runs no code of a reward model"
        )


def limit_of(config: Any, tokenizer: Any) -> int | None:
    """The smaller of what the model has positions for and what its tokenizer says; RoBERTa's are not the same."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    known = [n for n in (positions, tokenizer.model_max_length) if n is not None and n < 10**9]
    return min(known, default=None)
