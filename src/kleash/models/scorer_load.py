"""From a ModelSpec to a reward model, ready to train: a language model with a fresh head, or one that is there."""

import json
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.anatomy import body_of, text_config
from kleash.models.catalog import resolve
from kleash.models.classifier import limit_of, read_classifier
from kleash.models.dropout import switch_off_dropout
from kleash.models.heads import Recipe, is_adapted_layer
from kleash.models.load import (
    Loaded,
    checkpoint_activations,
    pick_device,
    read_tokenizer,
    recordable,
    refuse_nothing_to_train,
)
from kleash.models.policy import Policy
from kleash.models.probe import probe_paths
from kleash.models.quantised import recorded
from kleash.models.quantising import quantise, read_rounded
from kleash.models.scorer import HEAD, Scorer, probe_score
from kleash.models.spec import ModelSpec
from kleash.models.stopping import Ends

#: The name of the one label.
LABEL = "reward"


class Ready(NamedTuple):
    """loaded: what belongs to the scorer, whose trunk is its policy. head: whether it is fresh."""

    loaded: Loaded
    scorer: Scorer
    head: Literal["fresh", "loaded"]


def load_scorer(spec: ModelSpec, *, seed: int = 0) -> Ready:
    """The reward model that starts at `spec.policy`. `seed` draws a fresh head and a fresh adapter's A.

    A fresh head is drawn with standard deviation 1/√(width + 1), as OpenAI's were (Huang et al. 2024, arXiv
    2403.17031); one drawn much smaller holds the body's gradient back for as long as it is small.

    Raises:
        UsageError: the spec cannot be meant, or its classifier has several labels or is no decoder.
        RunError: the model is there and is not whole, or not one that kleash can run exactly.
    """
    half, device = spec.dtype == "bfloat16", pick_device(spec.device)
    directory = resolve(spec.policy, code=spec.trust_remote_code)
    stored = torch.bfloat16 if half and spec.adapter is not None else torch.float32
    model, base, head = _model(spec, directory, stored, seed)
    tokenizer = read_tokenizer(directory, base, spec.trust_remote_code)
    pad_id = _padding(tokenizer, model, spec.policy)
    switch_off_dropout(model)
    adapted, quantised = model, None
    if spec.quantize is not None:
        refuse_nothing_to_train(spec, adapted=False)
        quantised = quantise(model, spec.quantize, tokenizer, passed_by=adapters.passed_by(model, HEAD))
    if spec.adapter is not None:
        adapted = adapters.attach(model, spec.adapter, recordable(spec.policy, directory), seed, head=HEAD)
        if is_adapted_layer(getattr(model, HEAD)):
            raise UsageError(f"model.adapter.targets names the head ({HEAD}), which is trained whole; leave it out")
    getattr(model, HEAD).float().requires_grad_(True)
    adapted.to(device)
    rows = model.get_input_embeddings().weight.shape[0]
    recipe = Recipe(min(rows, max(tokenizer.get_vocab().values()) + 1))
    trunk = Policy(adapted, recipe, compute=torch.bfloat16 if half else None).eval()
    trunk.quantised = quantised
    scorer = Scorer(trunk).eval()
    probe_score(scorer, pad_id)
    if spec.gradient_checkpointing:
        checkpoint_activations(trunk)
    ways = probe_paths(trunk)
    end = tokenizer.eos_token_id
    loaded = Loaded(
        policy=trunk,
        tokenizer=tokenizer,
        name=spec.policy,
        source=directory,
        context=limit_of(text_config(model), tokenizer) or sys.maxsize,
        ends=Ends((pad_id if end is None else end,), pad_id, tokenizer),
        paths=ways.training,
        reading=ways.reading,
        adapter=None if spec.adapter is None else "fresh",
    )
    return Ready(loaded, scorer, head)


def _model(
    spec: ModelSpec, directory: Path, stored: torch.dtype, seed: int
) -> tuple[Any, Path, Literal["fresh", "loaded"]]:
    """The classifier on the CPU, without an adapter; the directory of its base; where its head is from."""
    code = spec.trust_remote_code
    if _is_classifier(directory):
        model = read_classifier(directory, stored)
        labels, head = model.config.num_labels, getattr(model, HEAD, None)
        if labels != 1:
            raise UsageError(
                f"{spec.policy} is a classifier with {labels} labels, and a reward model has one; start from a "
                "language model, or from a reward model"
            )
        if not isinstance(head, nn.Linear):
            raise UsageError(f"{type(model).__name__} is no decoder; start from a language model")
        return model, directory, "loaded"
    base = directory
    if checkpoint_files.is_adapter(directory):
        base = resolve(adapters.recorded_base(directory), code=code)
        over = recorded(directory)
        if over is None:
            causal = checkpoint_files.read_model(base, stored, code)
        else:  # merged into the numbers that it was trained over, which are whole from here on
            causal = read_rounded(base, over, read_tokenizer(directory, base, code), code)[0].to(stored)
        merged = adapters.load_adapter(causal, directory).merge_and_unload()
        causal = merged.requires_grad_(True)  # peft had frozen it, and it is a whole model from here on
    else:
        causal = checkpoint_files.read_model(directory, stored, code)
    return _with_head(causal, seed), base, "fresh"


def _is_classifier(directory: Path) -> bool:
    try:
        named = json.loads((directory / "config.json").read_text()).get("architectures") or []
    except (OSError, ValueError):  # said by whoever reads the model
        return False
    return any(str(name).endswith("ForSequenceClassification") for name in named)


def _with_head(causal: Any, seed: int) -> Any:
    """The body of a language model in the classifier of its family.

    Raises:
        RunError: transformers has none that reads its score by one product.
    """
    from transformers import AutoModelForSequenceClassification

    body, config = body_of(causal), causal.config
    config.num_labels, config.id2label, config.label2id = 1, {0: LABEL}, {LABEL: 0}
    model: Any = None
    try:
        with torch.device("meta"):  # its own weights are not used
            model = AutoModelForSequenceClassification.from_config(config)
    except ValueError:  # none for this family
        pass
    place = str(getattr(model, "base_model_prefix", ""))
    if type(getattr(model, place, None)) is not type(body) or not isinstance(getattr(model, HEAD, None), nn.Linear):
        raise RunError(
            f"transformers has no sequence classifier with one product on the states of {type(causal).__name__}, so "
            "kleash cannot make a reward model of it"
        )
    setattr(model, place, body)
    width = text_config(causal).hidden_size
    head = nn.Linear(width, 1, bias=False, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(0, (width + 1) ** -0.5, generator=generator)
    setattr(model, HEAD, head)
    # The body reads its config while it runs: the classifier must be described by the very same one.
    model.config = config
    config.architectures = [type(model).__name__]
    return model.eval()


def _padding(tokenizer: Any, model: Any, name: str) -> int:
    """The padding token, in tokenizer and config: the classifier's own forward takes the last token that is not it.

    It goes through the model like any other, so one that the model has no embedding for is replaced by the end token.
    """
    rows, config = model.get_input_embeddings().weight.shape[0], model.config
    if not _within(tokenizer.pad_token_id, rows):
        if not _within(tokenizer.eos_token_id, rows):
            raise UsageError(f"the tokenizer of {name} has neither a padding nor an end token that the model has too")
        tokenizer.pad_token = tokenizer.eos_token
    config.get_text_config().pad_token_id = config.pad_token_id = tokenizer.pad_token_id
    return tokenizer.pad_token_id


def _within(token: int | None, rows: int) -> bool:
    return token is not None and token < rows
