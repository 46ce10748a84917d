"""`kleash drift`: how far a fine-tune moved, and whether it was worth it."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from kleash.cli.options import AsJson

Several = list[str] | None
Outputs = Annotated[
    tuple[str, str] | None, typer.Option(metavar="BASE_DIR TUNED_DIR", help="Outputs of lm-evaluation-harness.")
]


def drift(
    base: Annotated[str, typer.Argument(help="The model before: a directory, a hub id, kleash:smollm2, …")],
    tuned: Annotated[list[str], typer.Argument(help="The model after, or a run; several are ranked.")],
    task: Annotated[str | None, typer.Option(help="Prompts of what it was tuned for.")] = None,
    score: Annotated[str | None, typer.Option(help="What judges an answer: ./reward.py:polite, exact, …")] = None,
    sibling: Annotated[Several, typer.Option(help="A task like it: SCORE, or FILE=SCORE.")] = None,
    lm_eval: Outputs = None,
    prompts: Annotated[str | None, typer.Option(help="Texts of your own, or prompts with or without answers.")] = None,
    template: Annotated[Literal["base", "tuned", "each"], typer.Option(help="Whose chat template is used.")] = "tuned",
    tokens: Annotated[int | None, typer.Option(help="Of each set of texts, at most; left out, all.")] = None,
    samples: Annotated[int, typer.Option(help="Of each model; 0: none.")] = 96,
    max_new_tokens: Annotated[int, typer.Option(help="Of a sample.")] = 64,
    max_kl: Annotated[Several, typer.Option(metavar="off=0.05", help="Gate: the KL's upper 95 % bound.")] = None,
    max_p99: Annotated[Several, typer.Option(metavar="off=1.5", help="Gate: the 99 % quantile's upper bound.")] = None,
    min_top1: Annotated[Several, typer.Option(metavar="off=0.9", help="Gate: same likeliest token.")] = None,
    no_regression: Annotated[bool, typer.Option("--no-regression", help="Gate: no score is lost.")] = False,
    against: Annotated[str | None, typer.Option(help="Gate: no further than this earlier drift.json.")] = None,
    no_tasks: Annotated[bool, typer.Option("--no-tasks", help="Leave the built-in tasks out.")] = False,
    items: Annotated[int | None, typer.Option(help="Of each built-in task, at most; left out, all.")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="All checkpoints of a run.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="2,000 tokens (or --tokens), no samples, no built-in task.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("drift"),
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the hub.")] = False,
    seed: Annotated[int, typer.Option(help="Of samples and intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how far a fine-tune moved from its base, and whether it was worth it.

    kleash drift kleash:smollm2 ./my-lora --task heldout.jsonl --score ./reward.py:polite --max-kl off=0.05
    """
    from kleash.cli import auditing
    from kleash.drift.question import QUICK, Effort, Gates, Question, tasks

    effort = Effort(
        tokens=tokens, samples=samples, max_new_tokens=max_new_tokens, builtin_tasks=not no_tasks, items=items
    )
    question = Question(
        base=base,
        tuned="",
        tasks=tasks(task, score, sibling or []),
        lm_eval=lm_eval,
        texts=prompts,
        template=template,
        device=device,
        trust_remote_code=trust_remote_code,
        seed=seed,
        effort=replace(QUICK, tokens=tokens or QUICK.tokens) if quick else effort,
        gates=Gates(**auditing.limits(max_kl, max_p99, min_top1), no_regression=no_regression, against=against),
        command=shlex.join(["kleash", *sys.argv[1:]]),
    )
    auditing.run(question, tuned, out=out, curve=curve, as_json=as_json)
