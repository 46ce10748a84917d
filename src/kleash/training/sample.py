"""`kleash sample`: what models say to the same prompts, side by side, and how far each word is from another model."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from kleash.errors import UsageError
from kleash.models.draw import keyed_noise
from kleash.models.load import Loaded, load
from kleash.models.policy import Policy
from kleash.models.prompts import encode
from kleash.models.reference import build_reference
from kleash.models.runs import model_of
from kleash.models.sampling import Sampling
from kleash.models.speak import Running, Spoken, speak
from kleash.models.spec import DType, ModelSpec
from kleash.records import Prompt


@dataclass(frozen=True)
class Speaker:
    """A model that answers. reader: the one its KL is taken to; None: it is that one itself, or there is none."""

    name: str
    loaded: Loaded
    running: Running
    reader: Running | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion to come, token by token."""

    prompt: Prompt
    speaker: str
    sample: int
    tokens: Iterator[Spoken]


def speakers(names: Sequence[str], beside: str | None, dtype: DType = "float32") -> list[Speaker]:
    """The models, loaded, `beside` last. "base" is an adapter's own base, which is then not loaded a second time.

    Raises:
        UsageError, RunError: a model is not there, not whole, or has another tokenizer than `beside`.
    """
    found: list[Speaker] = []
    beside = None if beside is None else beside if beside == "base" else model_of(beside)
    last: Speaker | None = None
    for name in names:
        spec = ModelSpec(policy=model_of(name), reference=beside or "start", dtype=dtype)
        loaded = load(spec)
        if beside is None:
            found.append(Speaker(name, loaded, _itself(loaded.policy), None))
            continue
        if beside == "base" and loaded.adapter is None:
            raise UsageError(f"--beside base means the model without its adapter, and {name} has none; name a model")
        reference = build_reference(spec, loaded)
        found.append(Speaker(name, loaded, _itself(loaded.policy), reference.running))
        last = Speaker(beside, loaded, reference.running, None)
    return found if last is None else [*found, last]


def _itself(policy: Policy) -> Running:
    def running() -> AbstractContextManager[Policy]:
        return nullcontext(policy)

    return running


def turns(
    voices: Sequence[Speaker], prompts: Sequence[Any], settings: Sampling, *, samples: int, seed: int, raw: bool = False
) -> Iterator[Turn]:
    """Prompt after prompt, every model's answers. The same seed draws the same noise for every model.

    Args:
        raw: a text is gone on with, also by a model that has a chat template.

    Raises:
        UsageError: a prompt that a model cannot be asked.
    """
    noise = keyed_noise(seed, 0, list(range(len(prompts))), samples, settings.max_new_tokens)
    asked = [
        encode(
            [_asked(prompt, voice.loaded.tokenizer, raw) for prompt in prompts],
            voice.loaded.tokenizer,
            context=voice.loaded.context,
            max_new_tokens=settings.max_new_tokens,
        )
        for voice in voices
    ]
    for n, prompt in enumerate(prompts):
        for voice, ids in zip(voices, asked, strict=True):
            for g in range(samples):
                tokens = speak(voice.running, ids[n], settings, voice.loaded.ends, noise[n * samples + g], voice.reader)
                yield Turn(prompt, voice.name, g, tokens)


def _asked(prompt: Any, tokenizer: Any, raw: bool) -> Any:
    """A text is a user's message where the model has a chat template."""
    if isinstance(prompt, str) and tokenizer.chat_template and not raw:
        return [{"role": "user", "content": prompt}]
    return prompt
