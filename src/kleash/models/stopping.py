"""What ends a completion: end tokens, and stop strings found in the decoded text."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kleash.errors import UsageError


@dataclass(frozen=True, slots=True)
class Ends:
    """The tokens that end a completion and the one that fills the room after it.

    `pad_id` may be one of `eos_ids`: what counts is always said by a mask, never by the pad token. `tokenizer` is
    used for stop strings only.
    """

    eos_ids: tuple[int, ...]
    pad_id: int
    tokenizer: Any = None

    def __post_init__(self) -> None:
        if not self.eos_ids:
            raise UsageError(
                "no end token is known, so no completion could end by itself; "
                "give the tokenizer an eos_token or the model's generation_config an eos_token_id"
            )

    @classmethod
    def of(cls, tokenizer: Any, generation_config: Any = None) -> "Ends":
        """The tokenizer's end token and all of generation_config's (one or a list); pad falls back to the first.

        Nothing else of generation_config is ever used. Raises UsageError when there is no end token at all.
        """
        ids: list[int] = []
        for given in (tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)):
            ids += given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        pad = tokenizer.pad_token_id
        first = ids[0] if ids else -1  # refused by __post_init__
        return cls(tuple(dict.fromkeys(ids)), first if pad is None else pad, tokenizer)


def stopped(ids: Int[Tensor, "B t"], stop: tuple[str, ...], tokenizer: Any) -> Bool[Tensor, " B"]:
    """Rows whose text contains a stop string that the last token completes.

    Only the tail is decoded: a token is at least one byte of text when special tokens are written out (so these may
    serve as stop strings too), and four tokens more keep a decoder's treatment of the first token out of the match.
    """
    width = max(len(s.encode()) for s in stop) + 4
    texts = tokenizer.batch_decode(ids[:, -width:], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return torch.tensor([any(s in text for s in stop) for text in texts], device=ids.device)
