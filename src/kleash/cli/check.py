"""`kleash check`: what a config's KL is, for any trainer."""

from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, Overrides, say


def check(
    config: Annotated[Path, typer.Argument(help="A TRL script, a YAML, JSON or TOML config, or a shell script.")],
    overrides: Overrides = None,
    version: Annotated[str | None, typer.Option(help="The library's version, whose defaults count.")] = None,
    method: Annotated[str | None, typer.Option(help="grpo, rloo, dpo, …, where TRL's arguments do not tell.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens of a usual answer, instead of the limit.")] = None,
    to: Annotated[str | None, typer.Option(help="Convert beta and target: trl, verl, openrlhf or kleash.")] = None,
    length: Annotated[float | None, typer.Option(help="With --to: tokens of an answer there.")] = None,
    reward_std: Annotated[float | None, typer.Option(help="The reward's spread within a group of answers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell which KL a config charges, with what gradient and price, and which traps it falls into.

    Reads TRL, verl, OpenRLHF, LLaMA-Factory, ms-swift and kleash; runs nothing of them.
    """
    from kleash.check import check as judge
    from kleash.check.convert import convert
    from kleash.check.words import converted_text, failed, text, told
    from kleash.errors import UsageError

    if (length is not None or reward_std is not None) and not all(n is None or n > 0 for n in (length, reward_std)):
        raise UsageError("--length and --reward-std must be above 0")
    if length is not None and to is None:
        raise UsageError("--length is of the library that beta is converted to: say --to as well")
    runs = judge(config, overrides, version=version, method=method, tokens=tokens)
    others = [None if to is None else convert(run, to, length, reward_std) for run in runs]
    pages = [text(run, reward_std) for run in runs] + [converted_text(other) for other in others if other is not None]
    out = [told(run, reward_std, other) for run, other in zip(runs, others, strict=True)]
    say(as_json, {"runs": out}, "\n\n".join(pages))
    if failed(runs):
        raise typer.Exit(1)
