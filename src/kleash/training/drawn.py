"""Pairs for `kleash label --sample`: two answers of a model to each prompt, drawn by a seed, kept as they come."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.models.adapters import POLICY_ADAPTER
from kleash.models.fingerprint import fingerprint
from kleash.models.load import Loaded, load
from kleash.models.prompts import decode, encode
from kleash.models.runs import model_of
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import ModelSpec
from kleash.training.data import as_prompts, conversations, digest
from kleash.training.prompt_files import read_rows

#: Prompts that are sampled together: what is kept of a stopped drawing are whole rounds of so many, so that its answers
#: go on to be those of one that was not stopped.
AT_ONCE = 32
#: Columns that the two answers are to have.
SIDES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """How the answers are drawn. chat: a prompt's text is a user's message, for a model with a chat template."""

    model: str
    tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    chat: bool = False


def place_of(out: str | Path) -> Path:
    """Where the drawn pairs of a labelling lie, beside the labelled ones."""
    return Path(out).with_suffix(".drawn.jsonl")


def draw_pairs(
    source: str | Path, out: str | Path, how: Drawing, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Rows of prompt, a and b, with the prompts' other columns; where they lie. What is there is not drawn again.

    Raises:
        UsageError: a prompt the model cannot be asked, or rows there that were drawn otherwise.
        RunError: the file cannot be written.
    """
    path = place_of(out)
    settings = Sampling(max_new_tokens=how.tokens, temperature=how.temperature)
    rows = as_prompts(read_rows(source))
    if taken := [name for name in SIDES if name in rows.columns]:
        raise UsageError(f"the prompts have a column {taken[0]!r} already; label them without --sample, or rename it")
    loaded = load(ModelSpec(policy=model_of(how.model)))
    asked = conversations(rows, chat=how.chat).prompts
    ids = encode(asked, loaded.tokenizer, context=loaded.context, max_new_tokens=how.tokens, rows=loaded.policy.rows)
    adapter = None if loaded.adapter is None else POLICY_ADAPTER
    drawn_by = {
        "weights": fingerprint(loaded.policy, loaded.tokenizer, temperature=how.temperature, adapter=adapter),
        "prompts": digest(rows),
        **asdict(how),
    }
    try:
        done = _begun(path, drawn_by)
        with path.open("a", encoding="utf-8") as file:
            for first in range(done, len(ids), AT_ONCE):
                numbers = list(range(first, min(first + AT_ONCE, len(ids))))
                texts = _answers(loaded, [ids[i] for i in numbers], numbers, settings, how.seed)
                lines = [
                    {
                        "prompt": rows.prompts[number],
                        "a": texts[2 * i],
                        "b": texts[2 * i + 1],
                        **{name: column[number] for name, column in rows.columns.items()},
                    }
                    for i, number in enumerate(numbers)
                ]
                file.write("".join(json.dumps(line, default=str) + "\n" for line in lines))
                file.flush()
                if progress is not None:
                    progress(numbers[-1] + 1, len(ids))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _answers(loaded: Loaded, ids: list[list[int]], numbers: list[int], settings: Sampling, seed: int) -> list[str]:
    """Two for each prompt, one after the other. A token's noise is a function of seed, prompt, answer and position."""
    rollout = sample(loaded.policy, ids, settings, loaded.ends, group_size=2, seed=seed, step=0, prompt_index=numbers)
    return decode(rollout, loaded.tokenizer)


def _begun(path: Path, drawn_by: dict[str, Any]) -> int:
    """How many rows are there already, in whole rounds; the rest of the file, as after a kill, is cut off.

    Raises:
        UsageError: they were drawn by another model, seed or setting, or of other prompts.
    """
    note = path.with_suffix(".json")
    plain = json.loads(json.dumps(drawn_by, default=str))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(plain, indent=1), encoding="utf-8")
        path.touch()
        return 0
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    if found != plain:
        other = [name for name in plain if not isinstance(found, dict) or found.get(name) != plain[name]]
        raise UsageError(
            f"the pairs in {path} were drawn otherwise ({', '.join(other)} differ); take another --out, or delete that "
            "file to draw them anew"
        )
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    kept = len(whole) if len(whole) == drawn_by["prompts"]["number"] else len(whole) // AT_ONCE * AT_ONCE
    if kept < len(lines):
        with path.open("r+b") as file:
            file.truncate(sum(map(len, lines[:kept])))
    return kept
