"""A reward model: any sequence classifier. It reads the text with its own tokenizer, never the policy's ids."""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from kleash.errors import RunError, UsageError
from kleash.models.classifier import Classifier, load_classifier
from kleash.models.spec import DType
from kleash.records import Prompt
from kleash.rewards.arguments import conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgs:
    """args of `use = "model:…"`. label: which output is the score, by number or name, where there are several.

    batch_tokens: the most token positions that go through the model together.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    label: int | str | None = None
    dtype: DType = "float32"
    batch_tokens: int = 16384

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise UsageError(f"reward model: batch_tokens = {self.batch_tokens} must be at least 1")


_ARGS = TypeAdapter(ModelArgs)


@dataclass(frozen=True, slots=True)
class RewardModel:
    """The raw output (logit) at one label. Messages go through the reward model's own chat template, answer included;
    for a text prompt it reads prompt + completion, with the special tokens its tokenizer puts around a text.
    """

    name: str
    classifier: Classifier
    label: int
    args: ModelArgs

    @classmethod
    def load(cls, name: str, args: dict[str, Any], device: str) -> "RewardModel":
        """The reward model of a directory or hub id.

        Raises:
            UsageError: no such model, unknown args, or several labels and none chosen.
            RunError: its weights are not whole.
        """
        try:
            settings = _ARGS.validate_python(args)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"reward model {name}: args.{place}: {first['msg']}; it takes label, dtype and batch_tokens"
            ) from None
        dtype = torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
        classifier = load_classifier(name, dtype, device)
        return cls(name, classifier, _label(name, settings.label, classifier.labels), settings)

    def __call__(self, prompts: list[Prompt], completions: list[str], **_: list[Any]) -> list[float]:
        rows = [self._encode(i, p, c) for i, (p, c) in enumerate(zip(prompts, completions, strict=True))]
        return self.classifier.logits(rows, self.args.batch_tokens)[:, self.label].tolist()

    def _encode(self, i: int, prompt: Prompt, completion: str) -> list[int]:
        limit = self.classifier.limit
        ids = read_ids(self.classifier.tokenizer, prompt, completion, f"reward model {self.name}")
        if not ids:
            raise RunError(f"reward model {self.name}: sample {i} has no tokens, so there is nothing to judge")
        if limit is not None and len(ids) > limit:
            raise RunError(
                f"reward model {self.name}: sample {i} has {len(ids)} of its tokens with the prompt, and it takes "
                f"{limit}; nothing is cut off in silence: shorten the prompts, or lower train.max_new_tokens"
            )
        return ids


def read_ids(tokenizer: Any, prompt: Prompt, completion: str, whose: str) -> list[int]:
    """What a reward model reads of a prompt and its completion, in training as in use.

    Raises:
        UsageError: messages, and no template for them; it says `whose`.
    """
    if isinstance(prompt, str):
        return tokenizer(prompt + completion, truncation=False, verbose=False)["input_ids"]
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(conversation(prompt, completion), return_dict=False)
    raise UsageError(
        f"{whose}: the prompts are chat messages, and its tokenizer has no chat template; "
        "give prompts as text, or use a chat reward model"
    )


def _label(name: str, asked: int | str | None, labels: tuple[str, ...]) -> int:
    if asked is None and len(labels) == 1:
        return 0
    if isinstance(asked, str) and asked in labels:
        return labels.index(asked)
    if isinstance(asked, int) and 0 <= asked < len(labels):
        return asked
    given = "no label is chosen" if asked is None else f"it has no label {asked!r}"
    raise UsageError(
        f"reward model {name}: {given}; it has {len(labels)}: {', '.join(labels)}. "
        "Name the one that is the score, as in args = { label = 1 }"
    )
