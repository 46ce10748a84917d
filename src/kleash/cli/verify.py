"""`kleash verify`: is this the model that a report of drift is about?"""

from dataclasses import asdict
from typing import Annotated

import typer

from kleash.cli.options import AsJson, say


def verify(
    report: Annotated[str, typer.Argument(help="A drift.json.")],
    model: Annotated[str, typer.Argument(help="A model, as for kleash drift.")],
    device: Annotated[str, typer.Option(help="Where it is loaded.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code from the hub.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a model against a report of drift by its fingerprint; exit 1 if it is another one.

    kleash verify drift/drift.json ./my-lora
    """
    from kleash.drift import store
    from kleash.drift.verify import verify as compare

    audit = store.read(report)
    found = compare(audit, model, device=device, trust_remote_code=trust_remote_code)
    verdict = audit.judgement.verdict
    if found.is_model == "tuned":
        text = f"{model} is the model of {report} ({audit.tuned.name}: {verdict})"
    elif found.is_model == "base":
        text = f"{model} is not the tuned model of {report} but its base, {audit.base.name}"
    else:
        text = f"{model} is not the model of {report} ({audit.tuned.name}): {'; '.join(found.differences)}"
    say(as_json, asdict(found) | {"verdict": verdict, "model": model}, text)
    raise typer.Exit(0 if found.is_model == "tuned" else 1)
