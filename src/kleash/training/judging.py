"""What the judges among a run's rewards did, as events of its log."""

from collections.abc import Iterator, Sequence

from kleash.rewards import Rewarder
from kleash.rewards.judge.report import Report
from kleash.rewards.judge.reward import JudgeReward
from kleash.runlog.judged import Judged
from kleash.training.job import Sinks


def tell_judges(rewarders: Sequence[Rewarder], step: int, sinks: Sinks) -> None:
    """One event for each judge that was asked since the last call, and a notice where it gave no verdict."""
    for name, report in _reports(rewarders):
        sinks.events.write(_event(name, step, report))
        if report.failed:
            reasons = ", ".join(f"{count} × {reason}" for reason, count in report.failures.items())
            said = f"{name}: {report.failed} of {report.questions} questions have no verdict: {reasons}"
            sinks.notice("judge_failed", said, step)


def _reports(rewarders: Sequence[Rewarder]) -> Iterator[tuple[str, Report]]:
    for rewarder in rewarders:
        if isinstance(rewarder.fn, JudgeReward) and (report := rewarder.fn.report()) is not None:
            yield rewarder.name, report
        yield from _reports(rewarder.members)


def _event(name: str, step: int, report: Report) -> Judged:
    bias = report.bias
    return Judged(
        step=step,
        name=name,
        questions=report.questions,
        remembered=report.remembered,
        failures=report.failures,
        mass=report.mass,
        bias=None if bias is None else bias.value,
        bias_error=None if bias is None else bias.standard_error,
        bias_pairs=0 if bias is None else bias.n,
        consistent=None if report.consistent is None else report.consistent.value,
        ties=report.ties,
        requests=report.requests,
        retries=report.retries,
        tokens_in=report.tokens_in,
        tokens_out=report.tokens_out,
        seconds=round(report.seconds, 4),
        cost=report.cost,
    )
