"""Writes the tables of docs/watch-logs.md from the importers' vocabularies: python tools/make_watch_logs_doc.py"""

import re
from pathlib import Path

from kleash.runlog.importers import others, trl, verl
from kleash.runlog.importers.vocabulary import KLSeries, Vocabulary
from kleash.runlog.series import COLUMNS

PAGE = Path(__file__).parents[1] / "docs" / "watch-logs.md"
MEANINGS = {
    "kl_ref": "drift from the reference",
    "kl_old": "size of an update",
    "kl_sampler": "sampler against trainer",
    "kl_kto": "KTO's baseline",
}
SHOWN: tuple[Vocabulary, ...] = (
    trl.GRPO, trl.ASYNC_GRPO, trl.RLOO, trl.PPO, trl.ONLINE_DPO, trl.LEGACY_PPO, trl.DPO, trl.KTO,
    verl.VERL, others.OPENRLHF, others.NEMO_RL, others.PRIME_RL, others.SLIME, others.MS_SWIFT,
)  # fmt: skip


def kl_table() -> str:
    lines = ["| log | key | what it is | estimator | unit | cut at | its gradient and its traps |", "|" + "---|" * 7]
    for vocabulary in SHOWN:
        lines += [_row(vocabulary, series) for series in vocabulary.kl]
        if not any(series.meaning == "kl_ref" for series in vocabulary.kl):
            lines.append(f"| {vocabulary.label} | none | drift from the reference | | | | {vocabulary.absent} |")
    return "\n".join(lines)


def _row(vocabulary: Vocabulary, series: KLSeries) -> str:
    key = f"`{series.key}`" + (f" − `{series.minus}`" if series.minus else "")
    cells = [
        vocabulary.label,
        key,
        MEANINGS[series.meaning],
        series.estimator or "not told",
        series.unit or "none",
        "" if series.clamp is None else f"±{series.clamp:g}",
        series.note.replace("|", "\\|"),
    ]
    return "| " + " | ".join(cells) + " |"


def column_table() -> str:
    lines = ["| column | meaning |", "|---|---|"]
    names = {name: f"`{name}NAME`" if name.endswith("/") else f"`{name}`" for name in COLUMNS}
    return "\n".join(lines + [f"| {names[name]} | {meaning} |" for name, meaning in COLUMNS.items()])


def render(page: str) -> str:
    """The page with both tables as they are now."""
    for name, table in {"kl": kl_table(), "columns": column_table()}.items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end of table: {name} -->"
        page = re.sub(f"{begin}.*?{end}", lambda _, t=table, b=begin, e=end: f"{b}\n{t}\n{e}", page, flags=re.S)
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
