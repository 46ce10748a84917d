"""`kleash sample`: who answers what, in which order, and what is shown of it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.training.small import settings

from kleash.errors import UsageError
from kleash.models.sampling import Sampling
from kleash.training.api import start
from kleash.training.sample import speakers, turns
from kleash.training.spoken import show
from kleash.training.toml import parse_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = settings(tmp_path_factory.mktemp("run"), model__adapter={"rank": 4}, train__learning_rate=0.05)
    return start(parse_config(tree)).path


def asked(names, beside, prompts=("t3 t4", "t5"), samples=1, seed=0):
    console = Console(file=io.StringIO(), width=200)
    spoken = turns(speakers(names, beside), prompts, Sampling(max_new_tokens=6), samples=samples, seed=seed)
    return show(spoken, console, beside), console.file.getvalue()


def test_prompt_after_prompt_everyone_answers(run) -> None:
    found, shown = asked([str(run), f"{run}@step-2"], str(run.parent / "model"), samples=2)
    who = [(made["prompt"], made["model"], made["sample"]) for made in found]
    base = str(run.parent / "model")
    assert who == [(p, m, g) for p in ("t3 t4", "t5") for m in (str(run), f"{run}@step-2", base) for g in (0, 1)]
    assert all(made["kl"] > 0 for made in found if made["model"] != base)
    assert all(made["kl"] is None for made in found if made["model"] == base)
    assert all(made["text"] in shown for made in found)
    json.dumps(found)


def test_the_base_without_its_adapter_is_the_base_itself(run) -> None:
    """The same words and numbers by switching the adapter off as by loading the base."""
    by_switch, _ = asked([str(run)], "base")
    by_name, _ = asked([str(run)], str(run.parent / "model"))
    for a, b in zip(by_switch, by_name, strict=True):
        assert a["text"] == b["text"]
        assert a["kl"] == b["kl"]


def test_a_seed_repeats_and_another_differs(run) -> None:
    first, again, other = (asked([str(run)], None, seed=seed)[0] for seed in (0, 0, 1))
    assert first == again
    assert [made["text"] for made in first] != [made["text"] for made in other]


def test_base_needs_an_adapter(run) -> None:
    with pytest.raises(UsageError, match="means the model without its adapter"):
        speakers([str(run.parent / "model")], "base")


def test_control_codes_of_a_model_are_not_sent(run) -> None:
    from kleash.models.speak import Spoken
    from kleash.training.sample import Turn

    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    hostile = Turn("[bold]x[/bold]\x1b]0;t\x07", "m", 0, iter([Spoken(3, "\x1b[2Jgone [red]", -1.0, 2.0)]))
    show([hostile], console, "b")
    shown = console.file.getvalue()
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "[bold]x[/bold]" in shown
    assert "gone [red]" in shown
