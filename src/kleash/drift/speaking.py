"""The models' answers to a task's prompts, as `kleash.drift.scores` asks for them; kept, for they are read as well."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kleash.drift import words
from kleash.drift.stages import Work
from kleash.drift.style import said
from kleash.drift.table import Document
from kleash.drift.texts import Text
from kleash.records import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """One side of the pair, answering: `kleash.drift.scores.task.Generate`.

    Both sides draw with the same noise. A prompt that leaves no room in the context gets no answer, "". name: of the
    task. greedy: the likeliest answers, of which none is drawn. heard: the answers as documents.
    """

    work: Work
    side: str
    name: str
    greedy: bool = False
    heard: list[Document] = field(default_factory=list)

    def __call__(self, prompts: Sequence[Prompt], *, max_new_tokens: int) -> list[str]:
        self.work.show.stage(f"{self.name}, {self.side}")
        texts = [
            Text(id=f"{self.name}-{n}", domain=None, prompt=turns(prompt), answer="")
            for n, prompt in enumerate(prompts)
        ]
        self.heard[:] = words.samples(
            self.work.pair,
            texts,
            self.side,
            max_new_tokens=max_new_tokens,
            seed=self.work.question.seed,
            greedy=self.greedy,
            progress=self.work.show.progress,
        )
        found = {document.id: said(document) for document in self.heard}
        return [found.get(text.id, "") for text in texts]


def turns(prompt: Prompt) -> str | tuple[tuple[str, str], ...]:
    """A prompt as `Text` has it."""
    if isinstance(prompt, str):
        return prompt
    return tuple((str(message["role"]), str(message["content"])) for message in prompt)


def shown(prompt: Prompt) -> str:
    """A prompt as a person reads it."""
    return Text(id="", domain=None, prompt=turns(prompt), answer="").shown
