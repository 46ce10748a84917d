"""The audit in Markdown: a block for a model card, and the summary of a CI step."""

from kleash.drift.records import Audit
from kleash.report.drift import words

#: What Markdown would read as markup, a table's border among it.
SPECIAL = "\\`*_{}[]<>#|~"


def card(audit: Audit) -> str:
    """For the README of a model: what was measured, on what, and how to measure it again."""
    quoted = words.yardsticks(audit)
    made = f"Measured by kleash {audit.versions.get('kleash', '')} on {audit.made[:10]}:"
    lines = [
        "## Drift from the base model",
        "",
        f"**{audit.judgement.verdict[:1].upper()}{audit.judgement.verdict[1:]}**: {text(audit.judgement.because)}.",
        *([f"Partial: {text(audit.partial)}.", ""] if audit.partial else [""]),
        *kl_table(audit),
        *([f"Yardsticks: {text('; '.join(quoted))}.", ""] if quoted else []),
        *([f"Predicts {text(predicted)}.", ""] if (predicted := words.predicted(audit)) else []),
        *score_table(audit),
        *[f"- {text(note)}" for note in words.warnings(audit)],
        *([""] if words.warnings(audit) else []),
        f"Base: {text(words.side_line(audit.base))}. Tuned: {text(words.side_line(audit.tuned))}. "
        f"{text(words.measured_on(audit))}. {made}",
        "",
        fenced(audit.command),
    ]
    return "\n".join(lines) + "\n"


def summary(audit: Audit) -> str:
    """For $GITHUB_STEP_SUMMARY: the gates before all else."""
    gates = [f"- **{words.gate_mark(gate.passed)}** {text(gate.text)}" for gate in audit.gates]
    head = [f"### kleash drift: {words.gates_line(audit)}", "", *gates, ""] if gates else []
    return "\n".join(head) + card(audit)


def kl_table(audit: Audit) -> list[str]:
    measured = [each for each in audit.distributions if each.forward is not None or each.reverse is not None]
    if not measured:
        return []
    return [
        "| KL, nats per token (95 %, clustered by text) | base‖tuned | tuned‖base | same top-1 |",
        "|---|---|---|---|",
        *(
            f"| {text(each.name)}, {words.documents(each)} | {words.mean_kl(each.forward, each.kind)} "
            f"| {words.mean_kl(each.reverse, each.kind)} | {words.percent(each.same_top1)} |"
            for each in measured
        ),
        "",
    ]


def score_table(audit: Audit) -> list[str]:
    if not audit.scores:
        return []
    return [
        "| score, paired | base | tuned | change | |",
        "|---|---|---|---|---|",
        *(
            f"| {text(each.name)} ({each.role}) | {each.base:.3f} | {each.tuned:.3f} | {words.change(each)} "
            f"| {each.outcome} |"
            for each in audit.scores
        ),
        "",
    ]


def text(plain: str) -> str:
    """As it stands, on one line: no character of it is markup."""
    line = "".join(c if c.isprintable() else " " for c in plain)
    return "".join(f"\\{c}" if c in SPECIAL else c for c in line)


def fenced(code: str) -> str:
    """A code block, whose fence is longer than any run of backticks in it."""
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}\n{code}\n{fence}"
