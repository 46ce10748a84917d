"""Gates compare the bound that is against them, name set and direction, and do not pass on what was not measured."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drift.tables import documents, spread, table
from tests.report.audits import SCORES, audit, score, side

from kleash.drift.distribution import distribution
from kleash.drift.gates import judge, parse
from kleash.drift.records import Distribution, Gate, Interval, Prediction
from kleash.errors import UsageError

OWNERS = documents(240)
KL = spread(OWNERS)


def measured(name: str, kl: np.ndarray = KL, **changes: object) -> Distribution:
    author = "tuned" if name == "its own words" else None
    return replace(distribution(table(kl, OWNERS), name=name, source="x", author=author), **changes)  # type: ignore[arg-type]


OFF, ON, OWN = measured("off task"), measured("on task", 3 * KL), measured("its own words")
AUDIT = audit(distributions=[OFF, ON, OWN])


def only(found: list[Gate]) -> Gate:
    [gate] = found
    return gate


def high(of: Distribution, direction: str = "forward") -> float:
    tail = getattr(of, direction)
    assert tail.mean.high is not None
    return tail.mean.high


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("off", high(OFF)),
        ("off.forward", high(OFF)),
        ("off.reverse", high(OFF, "reverse")),
        ("task", high(ON)),
        ("own", high(OWN, "reverse")),
    ],
)
def test_the_upper_bound_decides(name: str, bound: float) -> None:
    passing = only(judge(AUDIT, max_kl={name: bound * 1.001}))
    failing = only(judge(AUDIT, max_kl={name: bound * 0.999}))
    assert (passing.passed, failing.passed) == (True, False)
    assert f"upper bound {bound:.3g} >" in failing.text and f"upper bound {bound:.3g} ≤" in passing.text


def test_the_point_in_the_middle_does_not_pass() -> None:
    assert OFF.forward is not None
    assert only(judge(AUDIT, max_kl={"off": OFF.forward.mean.value * 1.001})).passed is False


def test_the_99_percent_quantile() -> None:
    assert OFF.forward is not None and OFF.forward.q99.high is not None
    bound = OFF.forward.q99.high
    assert only(judge(AUDIT, max_p99={"off": bound * 1.001})).passed is True
    gate = only(judge(AUDIT, max_p99={"off": bound * 0.999}))
    assert gate.passed is False and "off task: 99 % KL (base‖tuned) upper bound" in gate.text


def test_agreement_is_judged_by_its_lower_bound() -> None:
    share = OFF.same_top1
    assert share is not None and share.low is not None
    assert only(judge(AUDIT, min_top1={"off": share.low - 0.001})).passed is True
    assert only(judge(AUDIT, min_top1={"off": share.low + 0.001})).passed is False
    assert only(judge(audit(distributions=[replace(OFF, same_top1=None)]), min_top1={"off": 0.5})).passed is None


def test_what_was_not_measured_does_not_pass() -> None:
    for name in ("base", "own.forward"):
        gate = only(judge(AUDIT, max_kl={name: 10.0}))
        assert gate.passed is None and "was not measured" in gate.text
    few = distribution(table(KL[:400], OWNERS[:20]), name="off task", source="x")
    lacking = audit(distributions=[few])
    gates = judge(lacking, max_kl={"off": 10.0}, max_p99={"off": 10.0}, min_top1={"off": 0.0})
    assert [gate.passed for gate in gates] == [None] * 3
    assert all("too few documents" in gate.text for gate in gates)


def test_a_lower_bound_can_only_fail() -> None:
    served = audit(distributions=[replace(OFF, kind="lower bound")])
    assert only(judge(served, max_kl={"off": 10.0})).passed is None
    gate = only(judge(served, max_kl={"off": 0.001}))
    assert gate.passed is False and "is at least" in gate.text


def test_no_regression() -> None:
    gate = only(judge(AUDIT, no_regression=True))
    assert gate.passed is False and gate.text.startswith("regression: arithmetic -0.13")
    fine = audit(scores=SCORES[:2])
    assert only(judge(fine, no_regression=True)) == Gate(text="no regression in 2 tasks", passed=True)
    assert only(judge(audit(scores=[]), no_regression=True)).passed is None
    change = Interval(value=-0.3, low=-0.4, high=-0.2, n=100, clusters=60)
    off = replace(AUDIT.distributions[0], prediction=Prediction(base=0.7, tuned=0.4, change=change, letters=12.0))
    texts = only(judge(audit(scores=[], distributions=[off]), no_regression=True))
    assert texts == Gate(text="regression: the off-task texts -0.30 [-0.40, -0.20]", passed=False)


def test_against_the_last_audit() -> None:
    """Paired by document: the change is the difference of the means, and far surer than either of them."""
    more = audit(distributions=[measured("off task", KL * 1.05), ON])
    further, lost = judge(more, against=AUDIT)[0], judge(more, against=AUDIT)[-1]
    assert further.passed is False and lost.passed is True
    assert f"{float(KL.mean()) * 0.05:.3g} [" in further.text
    assert OFF.forward is not None and OFF.forward.mean.low is not None
    assert OFF.forward.mean.low < 0.95 * OFF.forward.mean.value, "the two intervals overlap widely"
    assert [gate.passed for gate in judge(AUDIT, against=AUDIT)] == [True] * 3
    assert judge(audit(distributions=[measured("off task", KL * 0.9)]), against=AUDIT)[0].passed is True


def test_two_lower_bounds_do_not_compare() -> None:
    """They may be of any two KLs above them."""
    served = audit(distributions=[replace(OFF, kind="lower bound")])
    gate = judge(served, against=served)[0]
    assert gate.passed is None and "lower bound" in gate.text


def test_a_new_loss_fails_against_the_last() -> None:
    before = audit(distributions=[OFF], scores=SCORES[:2])
    gate = judge(audit(distributions=[OFF]), against=before)[-1]
    assert gate.passed is False and "arithmetic" in gate.text and "polite" not in gate.text
    worse = audit(distributions=[OFF], scores=[*SCORES, score("json", "other", 0.5, 0.1, "LOST")])
    assert judge(worse, against=audit(distributions=[OFF]))[-1].text == "lost, and not in the last audit: json"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": side("other", fingerprint={"weights": "00" * 32})}, "the base"),
        ({"set_hash": "1" * 64}, "the built-in set"),
        ({"set_id": "builtin-2"}, "the built-in set"),
        ({"distributions": [replace(OFF, tokens=17)]}, "off task: documents, tokens, kind of KL"),
        ({"distributions": [replace(OFF, kind="lower bound")]}, "off task: documents, tokens, kind of KL"),
        ({"distributions": [replace(OFF, by_document={"a": (1, 2.0)})]}, "off task: the documents' tokens"),
    ],
)
def test_audits_that_do_not_compare_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=f"do not compare.*{said}"):
        judge(audit(**({"distributions": [OFF]} | changes)), against=audit(distributions=[OFF]))


def test_another_template_is_refused() -> None:
    other = audit(distributions=[OFF], parity=replace(AUDIT.parity, used_template="base"))
    with pytest.raises(UsageError, match=r"the template \(tuned there, base here\)"):
        judge(other, against=AUDIT)


def test_gates_are_written_as_name_and_number() -> None:
    assert parse("--max-kl", ["off=0.05", "own=1", "off.reverse=0"]) == {"off": 0.05, "own": 1.0, "off.reverse": 0.0}
    for wrong in ("off", "off=", "off=x", "off=-1", "off=nan", "off=inf", "=3"):
        with pytest.raises(UsageError, match=r"--max-kl"):
            parse("--max-kl", [wrong])
    with pytest.raises(UsageError, match=r"sets of texts are off, task, own, base"):
        parse("--max-kl", ["of=0.05"])
    with pytest.raises(UsageError, match=r"off\.reverse"):
        parse("--min-top1", ["off.sideways=0.05"])


def test_nothing_asked_is_nothing_judged() -> None:
    assert judge(AUDIT) == []
