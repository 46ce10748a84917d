"""`kleash export`: from a run to a model that can be served, with its card."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kleash.errors import RunError, UsageError
from kleash.models.catalog import resolve
from kleash.models.export import Difference, Onto, Trained, read, write
from kleash.models.runs import model_of
from kleash.report.card import Origin, card
from kleash.report.log import prompt_text
from kleash.runlog import Sample
from kleash.runlog import read as read_log
from kleash.training import shelf

#: Where there are no samples of the run's own to compare on.
_TEXT = "The soup at this place was warm, and those who brought it were kind to all who came in from the rain."
_SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    path: Path
    difference: Difference
    base: str | None
    over: str | None


def export(
    source: str, into: Path, *, dtype: str = "bfloat16", shard: str = "5GB", onto: Onto = "trained",
    drift: Path | None = None, trust_remote_code: bool = False,
) -> Exported:  # fmt: skip
    """Writes the model of `source` to a directory that is not there yet: merged, cast, in shards, with a card.

    Args:
        source: a run's directory (its best checkpoint, else its newest), "runs/x@step-200", a checkpoint, or any model.
        onto: of an adapter that was trained over a quantised base, "trained" merges it into that base, unpacked, and
            gives the model that was trained; "stored" into the base as it is stored, and says how far that moved it.
        drift: card.md of a `kleash drift` of this model.

    Raises:
        UsageError: nothing there, or `into` is there already.
        RunError: it could not be written, or read back it is another model.
    """
    if not re.fullmatch(r"\d+(\.\d+)?(KB|MB|GB)", shard):
        raise UsageError(f'--shard {shard} is no size; write it as "5GB" or "500MB"')
    block = None if drift is None else _block(drift)
    name = model_of(source)
    origin = origin_of(name)
    trained = read(name, onto=onto, trust_remote_code=trust_remote_code)

    def text(found: Difference) -> str:
        facts = {"exported as": f"{dtype}{_merged(trained, found)}", "against the trained model": words(found)}
        return card(into.resolve().name, base=trained.base, export=facts, origin=origin, drift=block)

    found = write(trained, into, dtype, shard, _texts(origin), text)
    return Exported(path=into, difference=found, base=trained.base, over=trained.over)


def words(found: Difference) -> str:
    """What reading it back showed."""
    if found.moved is not None:
        return f"mean KL(trained‖exported) {found.moved:.2g} nats/token, on {found.tokens} tokens: another base"
    return (
        f"mean KL(trained‖exported) {found.kl:.2g} nats/token, largest |Δ log-prob| {found.largest:.2g}, "
        f"on {found.tokens} tokens"
    )


def _merged(trained: Trained, found: Difference) -> str:
    if trained.base is None:
        return ""
    return ", adapter merged" + ("" if trained.over is None else f" into {onto_words(trained.over, found)}")


def onto_words(over: str, found: Difference) -> str:
    """Which base it was merged into. over: how the one that it was trained over was rounded."""
    if found.moved is None:
        return f"the base it was trained over ({over}, unpacked)"
    return f"the base as it is stored, not the one it was trained over ({over})"


def origin_of(name: str) -> Origin | None:
    """The run that a checkpoint lies in; None for any other model."""
    if name.startswith("kleash:"):
        return None
    path = resolve(name)
    step, run = shelf.step_of(path), path.parent.parent
    return Origin(run=run, step=step) if step is not None and (run / "events.jsonl").is_file() else None


def push(model: Path, repository: str) -> str:
    """Uploads an exported model to the hub, as a private repository where it is new; its address.

    Raises:
        RunError: the hub cannot be reached, or does not let us.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=model)
    except Exception as error:  # offline, not logged in, no right to it: the client has a dozen ways to say so
        first = (str(error).strip().splitlines() or [""])[0]
        raise RunError(
            f"{model} is written, and could not be pushed to {repository}: {type(error).__name__}: {first} "
            "(log in with `hf auth login`, then export again with another directory, or upload that one)"
        ) from None
    return str(address)


def _texts(origin: Origin | None) -> Sequence[str]:
    """What the run wrote last, for the comparison to be where the model lives."""
    log = None if origin is None else origin.run / "samples.jsonl"
    if log is None or not log.is_file():
        return [_TEXT]
    samples = [event for event in read_log(log) if isinstance(event, Sample)][-_SAMPLES:]
    return [_TEXT, *(prompt_text(sample.prompt) + sample.completion for sample in samples)]


def _block(path: Path) -> str:
    file = path / "card.md" if path.is_dir() else path
    try:
        return file.read_text()
    except OSError as error:
        raise UsageError(f"--drift {path} cannot be read: {error.strerror or error}") from None
