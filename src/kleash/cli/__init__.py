"""The command line. Thin: a file per verb, each of which imports what it needs when it is called: `--help` is quick.

Exit codes: 0 good, 1 a gate or finding failed, 2 it could not be done, 64 the command line or config is wrong and
nothing was started, 130 Ctrl-C, 128 + the signal's number after SIGTERM (143) and SIGHUP (129).
"""

import logging
import os
import sys
import warnings
from typing import Annotated

import typer

import kleash
from kleash.cli.check import check
from kleash.cli.demo import demo
from kleash.cli.drift import drift
from kleash.cli.export import export
from kleash.cli.label import label
from kleash.cli.new import new
from kleash.cli.offline import dpo, reward, sft
from kleash.cli.report import report
from kleash.cli.sample import sample
from kleash.cli.train import train
from kleash.cli.verify import verify
from kleash.cli.version import environment
from kleash.cli.watch import watch
from kleash.errors import KleashError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fine-tune language models with reinforcement learning, on a leash: an exact, controlled and watched KL.",
)

#: In the order in which `--help` shows them.
VERBS = (new, train, sft, label, dpo, reward, check, watch, report, sample, export, drift, verify, demo)
for _verb in VERBS:
    app.command()(_verb)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --version: all that a bug report needs.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")] = False,
) -> None:
    if version:
        typer.echo("\n".join(environment()) if verbose else f"kleash {kleash.__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: errors become one sentence and an exit code."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Deprecations inside the libraries are for kleash's authors, whose tests show them.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
    for name in ("torchao", "torch.utils._pytree"):  # said at import, of parts that nothing here uses
        logging.getLogger(name).setLevel(logging.ERROR)
    debug = "--debug" in sys.argv[1:]
    try:
        app(args=[a for a in sys.argv[1:] if a != "--debug"])
    except KleashError as error:
        if debug:
            raise
        typer.echo(f"kleash: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as done:  # 2 is how the parser says that the command line is wrong; the verbs never use it
        sys.exit(64 if done.code == 2 else done.code)
