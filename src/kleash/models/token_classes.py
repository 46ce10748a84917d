"""Three classes of tokens, told apart by the token alone: end, format, content."""

import re
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kleash.models.stopping import Ends

#: In the order of their numbers.
CLASSES = ("content", "format", "eos")
#: The text of a format token: no letter and no digit in it.
FORMAT = r"[\W_]*"


def token_classes(tokenizer: Any, ends: Ends, size: int, pattern: str = FORMAT) -> Int[Tensor, " V"]:
    """The class of each of `size` token ids, as its number in CLASSES.

    eos: what ends a completion. format: tokens that were added to the vocabulary (special ones, tags, a template's),
    and those whose whole text `pattern` matches. content: all others; a piece of a character whose bytes are split
    over tokens is content.
    """
    known = min(size, len(tokenizer))
    texts = tokenizer.batch_decode(
        [[i] for i in range(known)], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    form = re.compile(pattern)
    found = [int("\ufffd" not in text and form.fullmatch(text) is not None) for text in texts]
    found += [0] * (size - known)
    for i in {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}:
        if i < size:
            found[i] = 1
    for i in ends.eos_ids:
        if i < size:
            found[i] = 2
    return torch.tensor(found)
