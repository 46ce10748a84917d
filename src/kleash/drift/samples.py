"""What each model writes on the same prompts: which prompts, and the two side by side."""

from collections.abc import Mapping, Sequence

from kleash.drift.records import Pair
from kleash.drift.style import said
from kleash.drift.table import Document


def side_by_side(
    base: Sequence[Document], tuned: Sequence[Document], scores: Mapping[str, tuple[float | None, float | None]] = {}
) -> list[Pair]:
    """Prompts that both answered, in the base's order. scores: id → (base's, tuned's), where there are any."""
    other = {sample.id: sample for sample in tuned}
    return [
        Pair(
            prompt=sample.prompt_text,
            base=said(sample),
            tuned=said(other[sample.id]),
            score_base=scores.get(sample.id, (None, None))[0],
            score_tuned=scores.get(sample.id, (None, None))[1],
        )
        for sample in base
        if sample.id in other
    ]
