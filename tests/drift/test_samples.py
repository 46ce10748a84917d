"""Both models' samples side by side."""

from tests.drift.test_style import sample

from kleash.drift.samples import side_by_side


def test_prompts_that_both_answered_with_words_and_scores() -> None:
    base, tuned = [sample(0, "No."), sample(1, "Yes, it is."), sample(2, "Ah")], [sample(1, "YES"), sample(0, "Never")]
    found = side_by_side(base, tuned, {"p1": (0.0, 1.0)})
    assert [(pair.base, pair.tuned) for pair in found] == [("No.", "Never"), ("Yes, it is.", "YES")]
    assert [(pair.score_base, pair.score_tuned) for pair in found] == [(None, None), (0.0, 1.0)]
