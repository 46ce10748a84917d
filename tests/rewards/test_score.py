"""Scoring, and every way a reward can fail: the message names the reward, the sample and the user's line."""

import asyncio
import re
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
import torch

from kleash.errors import RunError, UsageError
from kleash.rewards import Rewarder
from kleash.rewards.score import Scored, score

PROMPTS = ["p0", "p1", "p2", "p3"]
TEXTS = ["zero", "one", "two", "three"]


def run(fn, *, weight: float = 1.0, timeout_s: float = 5.0, columns=None, prompts=None) -> Scored:
    return score([Rewarder("mine", weight, fn, timeout_s)], prompts or PROMPTS, TEXTS, columns or {})


def failure(fn, **options) -> str:
    with pytest.raises(RunError) as caught:
        run(fn, **options)
    assert "'mine'" in str(caught.value)
    return str(caught.value)


def test_total_is_the_weighted_sum_and_each_reward_is_kept_raw():
    first = Rewarder("first", 2.0, lambda completions: [1, 2, 3, 4], 5.0)
    second = Rewarder("second", -0.5, lambda completions: [10, 0, None, 2], 5.0)
    assert score([first, second], PROMPTS, TEXTS, {}) == Scored(
        total=[2 * 1 - 5.0, 4.0, None, 8 - 1.0],
        by_name={"first": [1.0, 2.0, 3.0, 4.0], "second": [10.0, 0.0, None, 2.0]},
    )


def test_a_reward_of_weight_zero_is_watched_without_effect():
    watched = Rewarder("watched", 0.0, lambda completions: [None, None, None, None], 5.0)
    scored = score([Rewarder("mine", 1.0, lambda completions: [1, 2, 3, 4], 5.0), watched], PROMPTS, TEXTS, {})
    assert scored.total == [1.0, 2.0, 3.0, 4.0]
    assert scored.by_name["watched"] == [None] * 4


def test_no_samples_call_no_reward():
    def never(completions):
        raise AssertionError

    assert score([Rewarder("mine", 1.0, never, 5.0)], [], [], {}) == Scored([], {"mine": []})


@pytest.mark.parametrize(
    "scores",
    [
        [0.5, 1, True, None],
        (0.5, 1, True, None),
        [np.float32(0.5), np.int64(1), np.bool_(True), None],
        [torch.tensor(0.5), torch.tensor(1), torch.tensor(True), None],
        [torch.tensor(0.5, dtype=torch.bfloat16), Fraction(1), np.array(1.0), None],
    ],
)
def test_numbers_of_every_library_become_floats(scores):
    total = run(lambda completions: scores).total
    assert total == [0.5, 1.0, 1.0, None]
    assert all(type(value) is float for value in total if value is not None)


@pytest.mark.parametrize("scores", [np.arange(4.0), torch.arange(4.0), np.arange(4)])
def test_arrays_are_lists(scores):
    assert run(lambda completions: scores).total == [0.0, 1.0, 2.0, 3.0]


# What a function is given


def test_a_function_gets_what_it_names():
    seen = {}

    def narrow(completions, answer):
        seen.update(completions=completions, answer=answer)
        return [0.0] * len(completions)

    run(narrow, columns={"answer": [1, 2, 3, 4], "other": list("abcd")})
    assert seen == {"completions": TEXTS, "answer": [1, 2, 3, 4]}


def test_a_function_with_open_columns_gets_all():
    seen = {}

    def wide(prompts, completions, **columns):
        seen.update(prompts=prompts, completions=completions, **columns)
        return [0.0] * len(completions)

    run(wide, columns={"answer": [1, 2, 3, 4]})
    assert seen == {"prompts": PROMPTS, "completions": TEXTS, "answer": [1, 2, 3, 4]}


def test_messages_on_request():
    seen = []

    def chat(messages, completions):
        seen.extend(messages)
        return [0.0] * len(completions)

    asked = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    run(chat, prompts=[asked, "text", "x", "y"])
    assert seen[0] == [*asked, {"role": "assistant", "content": "zero"}]
    assert seen[1] == [{"role": "user", "content": "text"}, {"role": "assistant", "content": "one"}]
    assert len(asked) == 2


def test_completions_are_strings_also_for_prompts_of_messages():
    seen = []
    asked = [{"role": "user", "content": "u"}]
    run(lambda completions: seen.extend(completions) or [0.0] * 4, prompts=[asked] * 4)
    assert seen == TEXTS


def test_a_missing_column_is_named_with_those_there():
    def needs(completions, answer):
        raise AssertionError

    with pytest.raises(UsageError, match=r"'needs' needs `answer`.*`gold`"):
        run(needs, columns={"gold": [1, 2, 3, 4]})


def test_a_reward_that_sorts_its_lists_disturbs_nobody():
    columns = {"answer": [4, 3, 2, 1]}
    texts = list(TEXTS)

    def sorts(completions, answer):
        completions.sort()
        answer.sort()
        return [0.0] * 4

    score([Rewarder("a", 1.0, sorts, 5.0), Rewarder("b", 1.0, sorts, 5.0)], PROMPTS, texts, columns)
    assert texts == TEXTS
    assert columns == {"answer": [4, 3, 2, 1]}


def test_a_reward_that_goes_on_with_the_conversation_disturbs_nobody():
    prompts = [[{"role": "user", "content": "a"}]] * 2
    columns = {"seen": [["x"]] * 2, "messages": [None] * 2}

    def goes_on(prompts, completions, seen, messages):
        for prompt, completion, words, whole in zip(prompts, completions, seen, messages, strict=True):
            prompt.append({"role": "assistant", "content": completion})
            words.append(completion)
            whole[0]["content"] = ""
        return [float(len(prompt)) for prompt in prompts]

    rewarder = Rewarder("a", 1.0, goes_on, 5.0)
    assert score([rewarder], prompts, ["b", "c"], columns).total == [2.0, 2.0]
    assert prompts == [[{"role": "user", "content": "a"}]] * 2
    assert columns["seen"] == [["x"]] * 2


def test_columns_of_another_length_are_the_callers_fault():
    with pytest.raises(ValueError, match="answer"):
        run(lambda completions: [0.0] * 4, columns={"answer": [1, 2, 3]})


# Async


async def slow_length(prompts, completions, **columns):
    await asyncio.sleep(0.01)
    return [len(text) for text in completions]


def test_async():
    assert run(slow_length).total == [4.0, 3.0, 3.0, 5.0]


@pytest.mark.parametrize("timeout_s", [5.0, 0.0])
def test_async_inside_a_running_event_loop(timeout_s):
    async def notebook() -> Scored:
        return run(slow_length, timeout_s=timeout_s)

    assert asyncio.run(notebook()).total == [4.0, 3.0, 3.0, 5.0]


def test_without_limit_a_reward_runs_on_the_callers_thread():
    seen = []
    run(lambda completions: seen.append(threading.current_thread()) or [0.0] * 4, timeout_s=0.0)
    run(lambda completions: seen.append(threading.current_thread()) or [0.0] * 4, timeout_s=5.0)
    assert seen[0] is threading.current_thread()
    assert seen[1] is not threading.current_thread()
    assert seen[1].daemon


# Failures


def raises_on_two(completions, **columns):
    for text in completions:
        if text == "two":
            raise KeyError("no such mood")  # line of the fault
    return [0.0] * len(completions)


def test_raising_names_reward_sample_and_line():
    with pytest.raises(RunError) as caught:
        run(raises_on_two)
    text = str(caught.value)
    assert "raised KeyError" in text and "no such mood" in text
    assert re.search(r"test_score\.py:\d+: raise KeyError", text)
    assert "sample 2 of 4 (prompt 'p2', completion 'two')" in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_raising_in_async_code():
    async def bad(completions):
        return raises_on_two(completions)

    assert "sample 2 of 4" in failure(bad)


def test_raising_only_on_a_whole_batch_says_so():
    def bad(completions):
        if len(completions) > 1:
            raise ValueError("not so many")
        return [0.0]

    assert failure(bad).endswith("It was called on 4 samples")


def test_a_timeout_error_of_the_reward_itself_is_not_a_hang():
    def offline(completions):
        raise TimeoutError("judge unreachable")

    assert "raised TimeoutError: judge unreachable" in failure(offline)


def test_exit_is_an_error_too():
    def leaves(completions):
        raise SystemExit(3)

    assert "raised SystemExit" in failure(leaves)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hanging_gives_control_back_and_names_the_sample_and_the_line(asynchronous):
    def hangs(completions):
        for text in completions:
            if text == "one":
                time.sleep(20)  # hangs here
        return [0.0] * len(completions)

    async def hangs_async(completions):
        return hangs(completions)

    start = time.monotonic()
    text = failure(hangs_async if asynchronous else hangs, timeout_s=0.3)
    assert time.monotonic() - start < 5
    assert "had not returned after 0.3 s" in text and "timeout_s" in text
    assert re.search(r"test_score\.py:\d+: time\.sleep\(20\)", text)
    assert "sample 1 of 4 (prompt 'p1', completion 'one')" in text


def test_an_async_reward_that_waits_for_ever_hangs():
    async def waits(completions):
        await asyncio.sleep(20)

    assert "had not returned after 0.2 s" in failure(waits, timeout_s=0.2)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), 10**400])
def test_non_finite_scores_name_the_sample(number):
    text = failure(lambda completions: [0.0, 1.0, 2.0, number])
    assert "where a finite number or None belongs" in text
    assert "sample 3 of 4 (prompt 'p3', completion 'three')" in text


def test_nan_inside_a_tensor():
    assert "sample 1 of 4" in failure(lambda completions: torch.tensor([0.0, float("nan"), 0.0, 0.0]))


def test_wrong_length_finds_the_sample_left_out():
    text = failure(lambda completions: [1.0 for text in completions if text != "one"])
    assert "returned 3 scores for 4 completions" in text
    assert "first on sample 1 of 4 (prompt 'p1', completion 'one')" in text


def test_too_many_scores():
    assert "returned 5 scores for 4 completions" in failure(lambda completions: [1.0] * 5)


@pytest.mark.parametrize(
    ("result", "kind"),
    [(1.0, "float"), ("abcd", "str"), ({"score": 1}, "dict"), (None, "NoneType"), (range(4), "range")],
)
def test_anything_but_a_list_is_refused(result, kind):
    assert f"returned a {kind}, not a list" in failure(lambda completions: result)


@pytest.mark.parametrize("value", ["0.5", [0.5], 1j, {"score": 1}, torch.zeros(2)])
def test_anything_but_a_number_is_refused_and_the_sample_named(value):
    text = failure(lambda completions: [0.0, 0.0, value, 0.0])
    assert f"gave the {type(value).__name__}" in text
    assert "sample 2 of 4" in text


def test_all_none_is_an_error_that_counts_them_by_reward():
    odd = Rewarder("odd", 1.0, lambda completions: [None, 1, None, 1], 5.0)
    even = Rewarder("even", 1.0, lambda completions: [1, None, 1, None], 5.0)
    with pytest.raises(RunError, match=r"no sample of 4 has a score.*odd for 2, even for 2"):
        score([odd, even], PROMPTS, TEXTS, {})


def test_a_trial_may_have_no_score():
    silent = Rewarder("a", 1.0, lambda completions: [None] * len(completions), 5.0)
    assert score([silent], PROMPTS, TEXTS, {}, trial=True).total == [None] * 4


def test_an_overflowing_sum_is_an_error():
    big = [Rewarder(name, 1e308, lambda completions: [1.0] * 4, 5.0) for name in "ab"]
    with pytest.raises(RunError, match="sample 0 is too large"):
        score(big, PROMPTS, TEXTS, {})


def test_long_and_foreign_text_is_shortened_and_kept_whole():
    prompt = [{"role": "user", "content": "schön " * 30}]
    with pytest.raises(RunError) as caught:
        score([Rewarder("mine", 1.0, lambda completions: [float("nan")], 5.0)], [prompt], ["日本語\n"], {})
    assert "schön schön" in str(caught.value) and "…'" in str(caught.value) and r"'日本語\n'" in str(caught.value)


def test_the_search_for_the_sample_is_bounded(monkeypatch):
    monkeypatch.setattr("kleash.rewards.score.SEARCH_SECONDS", 0.4)
    calls = []

    def slow(completions):
        calls.append(len(completions))
        if len(completions) > 1:
            raise ValueError("no")
        time.sleep(0.1)
        return [0.0]

    texts = [str(i) for i in range(50)]
    with pytest.raises(RunError, match="called on 50 samples"):
        score([Rewarder("mine", 1.0, slow, 60.0)], texts, texts, {})
    assert len(calls) <= 5
