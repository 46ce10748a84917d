"""An audit where one of the models is behind a server: what can be had of it, and nothing that is called exact.

Off the task a lower bound from the likeliest tokens that the server gives; of the server's own samples an estimate
without bias. The model at hand lends its tokenizer and template. Scores, the floor and yardsticks need both models.
"""

from kleash.drift.builtin import SET_ID
from kleash.drift.compare import Hooks
from kleash.drift.distribution import Author, distribution
from kleash.drift.question import Question, Show
from kleash.drift.records import Parity, Side
from kleash.drift.served import Served, connect
from kleash.drift.server import estimate_served, measure_served, reading_of, served_samples
from kleash.drift.sources import Asked, Model, open_one
from kleash.drift.stages import BASES, OFF, OWN, EndedError, Found, sampled_prompts
from kleash.drift.table import TokenTable
from kleash.drift.texts import builtin_texts, prepared
from kleash.errors import UsageError

Sides = tuple[Model | Served, Model | Served]


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def open_sides(question: Question) -> Sides:
    """Base and tuned model, one of them at hand.

    Raises:
        UsageError: both are served: no tokenizer is known then; or something is asked for that takes both models.
        RunError: the server does not answer.
    """
    names = question.base, question.tuned
    if all(map(is_url, names)):
        raise UsageError("one of the two must be a model at hand: the server's texts are read in its tokens")
    if question.tasks:
        raise UsageError("--task needs both models at hand; scores of served models: --lm-eval BASE_DIR TUNED_DIR")
    asked = Asked(device=question.device, template=question.template, trust_remote_code=question.trust_remote_code)
    base, tuned = (connect(name) if is_url(name) else open_one(name, asked) for name in names)
    return base, tuned


def measure(question: Question, sides: Sides, found: Found, show: Show) -> None:
    """The bound off the task, then the estimate from the server's own words. Raises EndedError as stages do."""
    base, tuned = sides
    reading = reading_of(at_hand(sides).reader)
    hooks = Hooks(progress=show.progress)
    show.stage(OFF)
    documents = prepared(builtin_texts(), reading, question.effort.tokens)
    add(found, measure_served(base, tuned, documents, hooks=hooks), OFF, SET_ID, None, question.seed)
    if not question.effort.samples:
        return
    author: Author = "tuned" if isinstance(tuned, Served) else "base"
    server = next(side for side in sides if isinstance(side, Served))
    source, prompts = sampled_prompts(question)
    show.stage(f"samples of {server.model}")
    drawn = served_samples(server, reading, prompts, max_new_tokens=question.effort.max_new_tokens, seed=question.seed)
    show.stage("its own words")
    table = estimate_served(base, tuned, drawn, drawn_by=author, hooks=hooks)
    name = OWN if author == "tuned" else BASES
    add(found, table, name, f"samples, prompts of {source}", author, question.seed)


def add(found: Found, table: TokenTable, name: str, source: str, author: Author | None, seed: int) -> None:
    found.distributions.append(distribution(table, name=name, source=source, author=author, seed=seed))
    if table.partial is not None:
        raise EndedError(f"{name}: {table.partial}")


def at_hand(sides: Sides) -> Model:
    return next(side for side in sides if isinstance(side, Model))


def record(side: Model | Served) -> Side:
    """What a report says of it; a served model has no fingerprint but its name."""
    if isinstance(side, Model):
        return side.record
    named = {"server": side.url, "model": side.model}
    return Side(name=f"{side.url}#{side.model}", kind="served", dtype="precision not known", fingerprint=named)


def parity(sides: Sides) -> Parity:
    """Nothing of the server's is known but that it read the other's tokens without complaint."""
    reader = at_hand(sides).reader
    tokens = len(reader.tokenizer)
    own = at_hand(sides).record.name
    return Parity(
        tokenizer=f"that of {own}",
        vocabulary=(tokens, tokens),
        template=f"that of {own}" if reader.tokenizer.chat_template else "none",
        special_tokens="not known",
        used_template="same" if reader.tokenizer.chat_template else "none",
        notes=["one model is behind a server: lower bounds and sampled estimates, no exact KL"],
    )
