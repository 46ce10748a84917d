"""The built-in rewards: VADER's sign, and answers that are right and wrong."""

import pytest

from kleash.errors import UsageError
from kleash.rewards import RewardSpec, load_reward
from kleash.rewards.score import score
from kleash.rewards.verifiable import last_number


def of(use: str, texts: list[str], columns=None, **args) -> list[float | None]:
    return score([load_reward(RewardSpec(use, args=args))], [""] * len(texts), texts, columns or {}).total


def test_vader_known_signs():
    good, bad, flat = of(
        "vader", ["This film was wonderful, I loved it!", "A terrible, boring mess.", "The door is wood."]
    )
    assert good > 0.5 and bad < -0.5 and flat == 0.0


def test_vader_stays_in_range_on_any_text():
    texts = ["", " ", "good " * 500, "bad! " * 500, "日本語 😀", "\x00\ud83d", "not good"]
    assert all(-1 <= value <= 1 for value in of("vader", texts))


def test_vader_value_as_published():
    # An example sentence of the VADER README with its printed compound score.
    assert of("vader", ["VADER is smart, handsome, and funny."]) == [0.8316]


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("Paris", "paris", 1.0),
        ("  PARIS.\n", "Paris", 1.0),
        ("new   york", "New York", 1.0),
        ("ﬁne", "fine", 1.0),  # compatibility form
        ("STRASSE", "straße", 1.0),
        ("42", 42, 1.0),
        ("Paris, France", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("Paris", None, None),
    ],
)
def test_exact(completion, answer, right):
    assert of("exact", [completion, "x"], {"answer": [answer, "x"]}) == [right, 1.0]


def test_exact_from_another_column():
    assert of("exact", ["a"], {"gold": ["A"]}, column="gold") == [1.0]
    with pytest.raises(UsageError, match=r"needs the column `answer`.*`gold`"):
        of("exact", ["a"], {"gold": ["A"]})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 42.", 42.0),
        ("first 3, then 1,234.50", 1234.5),
        ("-7", -7.0),
        ("−7", -7.0),
        ("3-4", 4.0),
        ("x = -4", -4.0),
        ("$-5", -5.0),
        (".5", 0.5),
        ("1e-3", 1e-3),
        ("2.5E+2 m", 250.0),
        ("1,2", 2.0),
        ("12,3456", 3456.0),
        ("#### 1,000,000", 1e6),
        ("٤٢", 42.0),
        ("none", None),
        ("", None),
        ("e5", 5.0),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_numeric():
    texts = ["so 41 then 42", "42.0000001", "43", "no idea", "42"]
    assert of("numeric", texts, {"answer": ["#### 42", 42, 42, 42, None]}) == [1.0, 1.0, 0.0, 0.0, None]


def test_numeric_tolerance_is_absolute_or_relative():
    columns = {"answer": [0, 1000]}
    assert of("numeric", ["0.05", "1050"], columns, tolerance=0.1) == [1.0, 1.0]
    assert of("numeric", ["0.05", "1050"], columns, tolerance=0.01) == [0.0, 0.0]


def test_an_answer_without_a_number_is_the_datas_fault():
    with pytest.raises(RuntimeError, match=r"no number in the column 'answer': 'many'.*sample 1 of 2"):
        of("numeric", ["1", "2"], {"answer": [1, "many"]})


def test_regex():
    assert of("regex", ["Yes, sir", "oh yes", "No"], pattern=r"(?i)^yes") == [1.0, 0.0, 0.0]
    assert of("regex", ["a\nEND"], pattern=r"(?s)a.END$") == [1.0]
