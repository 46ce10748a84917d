"""The KL budget: above it a run saves and stops, its best is below it, and it goes on only with a raised one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.training.small import events, settings, toml
from typer.testing import CliRunner

from kleash.cli import app
from kleash.errors import UsageError
from kleash.records import Reading, Step, Target
from kleash.report.run import write_report
from kleash.runlog import Checkpoint, Notice, RunEnd
from kleash.training.api import start
from kleash.training.budget import exceeded
from kleash.training.kl_config import KLSpec
from kleash.training.loosening import loosened
from kleash.training.run import Run
from kleash.training.toml import parse_config

BUDGET = "0.3 nats/sequence"
FREE = {"train__learning_rate": 3e-2, "train__steps": 12, "train__checkpoint_every": 1, "train__keep": "all"}


def free(directory: Path, budget: str | None = BUDGET, **changes: Any) -> dict[str, Any]:
    """A run without a penalty, which leaves its reference within a few steps."""
    tree = settings(directory, **FREE | changes)
    tree["kl"] = {"penalty": "none"} | ({} if budget is None else {"budget": budget})
    return tree


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("budget")
    start(parse_config(free(directory)))
    return directory


def test_above_the_budget_a_run_saves_and_stops(stopped):
    run = Run(stopped / "run")
    values = [step.kl_ref.value for step in run.steps if step.kl_ref]
    assert values[-1] > 0.3
    assert max(values[:-1]) <= 0.3
    assert len(values) < 12, "it did not come to its last step"
    assert (run.ended, run.finished) == ("budget", False)
    (end,) = events(run.path, RunEnd)
    assert (end.reason, end.step) == ("budget", len(values))
    assert events(run.path, Checkpoint)[-1].step == len(values)
    (notice,) = [n for n in events(run.path, Notice) if n.what == "budget"]
    error = run.steps[-1].kl_ref.standard_error  # type: ignore[union-attr]
    assert notice.text == (
        f"the run ends here: kl_ref is {values[-1]:.4g} ± {error:.2g} nats/sequence at step {len(values) - 1}, above "
        "kl.budget = 0.3 nats/sequence"
    )


def test_the_best_is_within_the_budget(stopped):
    """The checkpoint after step k − 1 is judged by that step's reading; the last one lies beyond."""
    run = Run(stopped / "run")
    best = int(run.best.path.resolve().name.removeprefix("step-"))
    assert best < len(run.steps)
    assert run.steps[best - 1].kl_ref.value <= 0.3  # type: ignore[union-attr]


def test_it_goes_on_only_with_a_raised_budget(stopped, tmp_path):
    shutil.copytree(stopped / "run", tmp_path / "run", symlinks=True)

    def again(budget: str | None, steps: int = 12, loosen: bool = False) -> Run:
        tree = free(stopped, budget, out=str(tmp_path / "run"), train__steps=steps)
        return start(parse_config(tree), resume=True, loosen=loosen)

    with pytest.raises(UsageError, match=r"no budget left to go on with: kl_ref is .* above kl.budget = 0.3 nats/seq"):
        again(BUDGET)
    with pytest.raises(UsageError, match=r"the KL budget goes from 0.3 .* to 0.301 .*--loosen"):
        again("0.301 nats/sequence")
    with pytest.raises(UsageError, match=r"the KL budget of 0.3 nats/sequence is dropped.*--loosen"):
        again(None)
    before = len(Run(tmp_path / "run").steps)
    run = again("999 nats/sequence", steps=before + 1, loosen=True)
    assert run.finished
    assert len(run.steps) == before + 2, "the steps, and the measurement of the finished policy"
    assert [s.budget for s in run.steps][-2:] == ["999 nats/sequence"] * 2
    page = write_report(run.path).read_text()
    assert 'class="limit"' in page
    assert '<i class="key limit"></i>budget' in page


def test_a_stopped_run_and_one_never_stopped_are_the_same(stopped, tmp_path):
    """Until the budget; what it does besides measuring is to stop."""
    tree = free(tmp_path, "999 nats/sequence")
    tree["model"], tree["rewards"] = free(stopped)["model"], free(stopped)["rewards"]
    whole = [s.kl_ref for s in start(parse_config(tree)).steps]
    cut = [s.kl_ref for s in Run(stopped / "run").steps]
    assert cut == whole[: len(cut)]


def test_exit_code_and_last_reading(tmp_path):
    """The finished policy is measured once more, and may be above where the steps were not."""
    path = toml(tmp_path, train__steps=1, train__learning_rate=3e-2, train__warmup_updates=0)
    quiet = [str(path), "kl.target=0.0001 nats/sequence", "kl.budget=0.0002 nats/sequence"]
    done = CliRunner().invoke(app, ["train", *quiet, "--json"])
    assert done.exit_code == 1
    assert '"ended": "budget"' in done.output
    assert len(Run(tmp_path / "run").steps) == 2


def reading(value: float, unit: Any = "nats/sequence") -> Reading:
    return Reading(kind="kl_ref", value=value, unit=unit, estimator="exact", n_prompts=2, n_sequences=4, n_tokens=20)


def test_the_reading_in_the_budgets_unit_is_compared():
    step = Step(step=3, beta=0.1, kl_ref=reading(5.0), kl_ref_token=reading(0.2, "nats/token"))
    assert exceeded(None, step) is None
    assert exceeded(Target(5.0, "nats/sequence"), step) is None, "at the budget is not above it"
    assert exceeded(Target(4.9, "nats/sequence"), step) == (
        "kl_ref is 5 nats/sequence at step 3, above kl.budget = 4.9 nats/sequence"
    )
    assert exceeded(Target(0.2, "nats/token"), step) is None
    assert "0.2 nats/token" in (exceeded(Target(0.1, "nats/token"), step) or "")
    assert exceeded(Target(0.1, "nats/token"), Step(step=0, beta=0.1)) is None


@pytest.mark.parametrize(
    ("budget", "kl", "said"),
    [
        ("0.5 nats/sequence", {}, r"budget = 0.5 nats/sequence is not above the target of 0.5 nats/sequence: holding"),
        ("0.06 nats/token", {}, r"target of 0.5 nats/sequence, at least 0.0625 nats/token over 8 tokens"),
        ("0.02 nats/token", {"target": "0.02 nats/token"}, "is not above the target"),
        ("1 nats/sequence", {"target": "2 nats/token"}, "target of 2 nats/token, at least 2 nats/sequence"),
        ("3", {}, r"the KL budget '3' has no unit"),
        ("0 nats/token", {}, "must be a positive number"),
    ],
)
def test_a_budget_that_the_target_spends_is_refused(tmp_path, budget, kl, said):
    tree = settings(tmp_path)
    tree["kl"] |= kl | {"budget": budget}
    with pytest.raises(UsageError, match=said):
        parse_config(tree)


def test_a_budget_in_another_unit_is_no_comparison():
    before, now = KLSpec(budget="3 nats/sequence"), KLSpec(budget="9 nats/token")
    assert loosened(before, now) == [
        "the budget's unit changes from nats/sequence to nats/token, which cannot be compared"
    ]
    assert loosened(KLSpec(), before) == []
    assert loosened(before, KLSpec(budget="2 nats/sequence")) == []
