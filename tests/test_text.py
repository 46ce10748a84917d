"""Text statistics against figures counted by hand and a slow loop."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.text import compression_ratio, distinct_n, seq_rep_n, words


def test_words():
    assert words("It's fine!! Ça va, naïve_x 3") == ["it's", "fine", "!", "!", "ça", "va", ",", "naïve_x", "3"]
    assert words("") == words(" \n") == []


def test_distinct_counts_over_all_texts_together():
    texts = ["a b a b", "a b c"]
    assert distinct_n(texts, 1) == pytest.approx(3 / 7, abs=EXACT)
    assert distinct_n(texts, 2) == pytest.approx(3 / 5, abs=EXACT)  # ab ba ab | ab bc: ab ba bc of 5
    assert distinct_n(["Great great GREAT"], 1) == pytest.approx(1 / 3, abs=EXACT)


def test_seq_rep_counts_within_each_text():
    assert seq_rep_n(["a b a b a", "a b"], 2) == pytest.approx((1 - 2 / 4 + 0) / 2, abs=EXACT)
    assert seq_rep_n(["a b", "a b"], 2) == 0.0
    assert seq_rep_n(["x x x x x x x", "too short"], 4) == pytest.approx(3 / 4, abs=EXACT)


def test_not_defined_is_none_and_never_zero():
    assert distinct_n([], 1) is distinct_n(["one"], 2) is distinct_n(["", " "], 1) is None
    assert seq_rep_n([], 4) is seq_rep_n(["a b c"], 4) is None
    assert compression_ratio([]) is compression_ratio(["", ""]) is None


def test_a_collapse_into_punctuation_is_seen():
    assert distinct_n(["!!!!!!!!"], 1) == pytest.approx(1 / 8, abs=EXACT)


def test_compression_sees_repetition_within_and_across_texts():
    different = [f"sentence {i * 7919 % 1000} about {i * 104729 % 997} things" for i in range(30)]
    assert compression_ratio([different[0]] * 30) > 3 * compression_ratio(different)
    raw = "ab\nç".encode()
    assert compression_ratio(["ab", "ç"]) == len(raw) / len(zlib.compress(raw))


def test_lone_surrogates_do_not_break_it():
    assert compression_ratio(["\ud83d"]) is not None


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=12), max_size=5), st.integers(1, 4))
def test_against_a_slow_loop(lists, n):
    texts = [" ".join(letters) for letters in lists]
    everything, shares = [], []
    for letters in lists:
        mine = []
        for i in range(len(letters)):
            if i + n <= len(letters):
                mine.append("".join(letters[i : i + n]))
        everything += mine
        if mine:
            repeated = sum(1 for i, gram in enumerate(mine) if gram in mine[:i])
            shares.append(repeated / len(mine))
    distinct = None
    if everything:
        new = sum(1 for i, gram in enumerate(everything) if gram not in everything[:i])
        distinct = pytest.approx(new / len(everything), abs=EXACT)
    assert distinct_n(texts, n) == distinct
    assert seq_rep_n(texts, n) == (pytest.approx(sum(shares) / len(shares), abs=EXACT) if shares else None)
