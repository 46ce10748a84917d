"""A language model as a judge: the probability of a few words as the very next token. No gradients, no sampling."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kleash.errors import UsageError
from kleash.models.adapters import POLICY_ADAPTER, is_adapted
from kleash.models.anatomy import run_body
from kleash.models.fingerprint import fingerprint
from kleash.models.heads import apply
from kleash.models.load import load
from kleash.models.policy import Policy
from kleash.models.prompts import TEMPLATE_ERRORS, bare_ids, encode_texts
from kleash.models.spec import DType, ModelSpec

#: What a question ends with where no template opens the answer.
OPENING = "\n\nVerdict:"


@dataclass(frozen=True)
class NextWord:
    """A frozen model and its tokenizer. context: the most tokens that it takes."""

    policy: Policy
    tokenizer: Any
    context: int

    @cached_property
    def special(self) -> dict[int, str]:
        """Tokens that are no plain text, by number: those of the template and the like.

        White space is text, and so is the token that stands for whatever the tokenizer does not know.
        """
        added, unknown = self.tokenizer.added_tokens_decoder, self.tokenizer.unk_token_id
        return {n: token.content for n, token in added.items() if token.content.strip() and n != unknown}

    def encode(self, question: str) -> list[int]:
        """As a user's message with the answer opened, or as text where there is no template."""
        if not self.tokenizer.chat_template:
            return encode_texts([question + OPENING], self.tokenizer)[0]
        messages = [{"role": "user", "content": question}]
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TEMPLATE_ERRORS as error:
            raise UsageError(f"the judge's chat template refuses a user's message: {error}") from None
        return bare_ids([text], self.tokenizer)[0]

    def ids_of(self, word: str) -> list[int]:
        """Every token that is this word, with or without white space before it.

        Raises:
            UsageError: there is none, so the word cannot be a verdict.
        """
        found = self._by_text.get(word, [])
        if not found:
            raise UsageError(f"the judge's tokenizer has no single token {word!r}, so it cannot give that verdict")
        return found

    @cached_property
    def _by_text(self) -> dict[str, list[int]]:
        rows = [[number] for number in range(self.policy.recipe.vocab)]
        texts = self.tokenizer.batch_decode(rows, clean_up_tokenization_spaces=False)
        found: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            if number not in self.special:
                found.setdefault(text.strip(), []).append(number)
        return found

    @torch.no_grad()
    def shares(
        self, rows: Sequence[list[int]], words: Sequence[Sequence[str]], batch_tokens: int
    ) -> Iterator[tuple[list[int], list[dict[str, float]]]]:
        """Numbers of rows, and of each the probability of its words as the next token, by batches.

        Rows of similar length go together, longest first, at most `batch_tokens` positions of them.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        while order:
            batch = [order.pop()]
            while order and (len(batch) + 1) * len(rows[batch[0]]) <= batch_tokens:
                batch.append(order.pop())
            probabilities = self._next([rows[i] for i in batch])
            found = [
                {word: float(row[self.ids_of(word)].sum()) for word in words[i]}
                for i, row in zip(batch, probabilities, strict=True)
            ]
            yield batch, found

    def _next(self, rows: list[list[int]]) -> Tensor:
        """[rows, vocabulary], float32 on the CPU. Padded on the right, where nothing that counts looks."""
        device, width = self.policy.device, len(rows[0])
        lengths = torch.tensor([len(row) for row in rows], device=device)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
        positions = torch.arange(width, device=device).expand(len(rows), width)
        with self.policy.autocast():
            hidden = run_body(self.policy.body, ids, positions < lengths[:, None], positions).last_hidden_state
            last = hidden[torch.arange(len(rows), device=device), lengths - 1]
            logits = apply(last.to(self.policy.head().weight.dtype), self.policy.head())
        return logits.float().softmax(-1).cpu()

    def fingerprint(self) -> dict[str, Any]:
        adapter = POLICY_ADAPTER if is_adapted(self.policy.model) else None
        return fingerprint(self.policy, self.tokenizer, temperature=1.0, adapter=adapter)


def load_next_word(name: str, dtype: DType, device: str) -> NextWord:
    """The model of a directory, a hub id, or one of kleash's own; an adapter on its base.

    Raises:
        UsageError, RunError: as `kleash.models.load.load`.
    """
    loaded = load(ModelSpec(policy=name, dtype=dtype, device=device))
    loaded.policy.requires_grad_(False).eval()
    return NextWord(loaded.policy, loaded.tokenizer, loaded.context)
