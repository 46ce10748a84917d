"""A judge behind a server, against a stub of the documented wire form that misbehaves in every way there is."""

import os
import sqlite3
import threading
import time
from email.utils import formatdate

import pytest
from tests.rewards.judge.stub import Stub, completion, longer_wins, serving
from tests.tolerances import EXACT

from kleash.errors import RunError, UsageError
from kleash.rewards.judge import Judge
from kleash.rewards.judge import server as module
from kleash.rewards.judge.answers import UNANSWERED, UNPARSED

PROMPTS = ["Say hello.", "Name a fruit.", "Count to two."]
SHORT = ["Hi.", "Fig.", "1, 2."]
LONG = ["Hello to all of you.", "A pear, for example, or a fig.", "One, and then two."]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)


def judge(stub: Stub, **args: object) -> Judge:
    settings = {"rubric": "the longer one", "model": "m", "cache": False, "timeout_s": 5.0, **args}
    return Judge.load(stub.url, settings)


def test_probabilities_are_those_that_the_server_lists():
    with serving(Stub()) as stub:
        found = judge(stub).compare(PROMPTS, SHORT, LONG)
    for one, short, long in zip(found, SHORT, LONG, strict=True):
        truth = 1 / (1 + 2.718281828459045 ** ((len(long) - len(short)) / 4))
        assert one.probability == pytest.approx(truth, rel=EXACT)
        assert one.mass == pytest.approx(0.8, rel=EXACT)
    assert len(stub.seen) == 6  # both orders
    body, _ = stub.seen[0]
    assert body["temperature"] == 0
    assert body["max_tokens"] == 1


def test_without_logprobs_the_text_is_the_verdict():
    with serving(Stub(logprobs=False)) as stub:
        one, *_ = judge(stub).compare(PROMPTS[:1], LONG[:1], SHORT[:1])
    assert one.probability == 1.0
    assert one.mass is None


def test_a_server_that_refuses_logprobs_is_asked_without():
    with serving(Stub(misdeeds=["HTTP 400 logprobs are not supported"], logprobs=False)) as stub:
        assert judge(stub, swap=False).compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].probability == 1.0
        assert "logprobs" not in stub.seen[1][0]


@pytest.mark.parametrize(
    ("misdeed", "reason"),
    [
        ("garbage", "not JSON"),
        ("half", "half a response"),
        ("silent", "no answer in time"),
        ("json []", "not a chat completion"),
        ('json {"choices": []}', "not a chat completion"),
        ('json {"choices": [{"message": {"content": ["A"]}}]}', "not a chat completion"),
        ('json {"choices": [{"message": {"content": "A is better"}}]}', UNPARSED),
        ('json {"choices": [{"message": {"content": null}}]}', UNPARSED),
        ("HTTP 429 after 0", "HTTP 429"),
        ("HTTP 500", "HTTP 500"),
        ("HTTP 413", "HTTP 413"),
    ],
)
def test_a_failure_is_none_with_its_reason(misdeed, reason):
    with serving(Stub(misdeeds=[misdeed] * 2)) as stub:
        asked = judge(stub, retries=1, swap=False, timeout_s=0.5)
        found = asked.compare(PROMPTS[:1], LONG[:1], SHORT[:1])
        report = asked.report()
    assert found[0].probability is None
    assert found[0].reasons == (reason,)
    assert report.failures == {reason: 1}
    assert report.failed == 1


@pytest.mark.parametrize("misdeed", ["garbage", "half", "HTTP 503", "HTTP 429 after 0.02", "silent"])
def test_what_may_pass_is_tried_again(misdeed):
    with serving(Stub(misdeeds=[misdeed, misdeed])) as stub:
        asked = judge(stub, swap=False, timeout_s=0.5, concurrency=1)
        assert asked.compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].probability is not None
        report = asked.report()
    assert (report.requests, report.retries, report.failures) == (3, 2, {})


@pytest.mark.parametrize("said", ["1", "date"])
def test_retry_after_is_honoured(said):
    after = formatdate(time.time() + 2, usegmt=True) if said == "date" else said
    with serving(Stub(misdeeds=[f"HTTP 429 after {after}"])) as stub:
        began = time.monotonic()
        assert judge(stub, swap=False).compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].probability is not None
    assert time.monotonic() - began >= 0.9


def test_a_wait_without_end_is_a_failure():
    with serving(Stub(misdeeds=["HTTP 429 after 86400"])) as stub:
        assert judge(stub, swap=False).compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].reasons == ("HTTP 429",)


def test_waits_grow_and_are_jittered(monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT", 0.5)
    with serving(Stub()) as stub:
        backend = module.Server.at(stub.url, judge(stub).spec)
    for tries in range(1, 8):
        waits = [backend._wait(tries, None) for _ in range(20)]
        assert len(set(waits)) > 1
        assert all(0.25 * 2 ** (tries - 1) <= wait <= 0.5 * 2 ** (tries - 1) for wait in waits)
    assert backend._wait(99, None) <= module.LONGEST_WAIT
    assert backend._wait(1, 3.0) >= 3.0


def test_little_mass_on_the_verdicts_is_no_verdict():
    with serving(Stub(rule=lambda _: {"A": 0.03, "B": 0.01})) as stub:
        assert judge(stub).compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].reasons == (UNANSWERED, UNANSWERED)
        assert judge(stub, least_mass=0.01).compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].probability == 0.5


def test_one_order_without_a_verdict_is_no_preference():
    with serving(Stub(misdeeds=["HTTP 400"])) as stub:
        found = judge(stub, concurrency=1).compare(PROMPTS, SHORT, LONG)
    assert [one.probability is None for one in found] == [True, False, False]


def test_several_samples_are_a_frequency():
    def by_seed(body):
        return {"A": 0.9} if body["seed"] % 4 else {"B": 0.9}

    with serving(Stub(rule=by_seed, logprobs=False)) as stub:
        asked = judge(stub, samples=8, temperature=1.0, swap=False)
        assert asked.compare(PROMPTS[:1], LONG[:1], SHORT[:1])[0].probability == 0.75
        assert len(stub.seen) == 8


def test_a_judge_that_reasons_first_is_read_at_its_end():
    text = "Answer A is short, B is long.\n\n**B**"
    with serving(
        Stub(misdeeds=[f'json {{"choices": [{{"message": {{"content": "{text}"}}}}]}}'.replace("\n", "\\n")])
    ) as s:
        assert judge(s, max_tokens=50, swap=False).compare(PROMPTS[:1], SHORT[:1], LONG[:1])[0].probability == 0.0


def test_grades_are_expected_values():
    with serving(Stub(rule=lambda _: {"1": 0.1, "4": 0.2, "5": 0.1})) as stub:
        found = judge(stub, mode="grade").grade(PROMPTS[:1], LONG[:1])
    assert found[0].value == pytest.approx((0.1 + 0.8 + 0.5) / 0.4, rel=EXACT)


def test_ties_are_half():
    with serving(Stub(rule=lambda _: {"A": 0.2, "B": 0.2, "C": 0.4})) as stub:
        found = judge(stub, ties=True).compare(PROMPTS[:1], LONG[:1], SHORT[:1])
    assert found[0].probability == 0.5
    assert found[0].tie == pytest.approx(0.5, rel=EXACT)


def test_at_most_so_many_requests_at_once():
    inside, most, lock = [0], [0], threading.Lock()

    def slow(body):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        with lock:
            inside[0] -= 1
        return longer_wins(body)

    with serving(Stub(rule=slow)) as stub:
        judge(stub, concurrency=3).compare(PROMPTS * 2, SHORT * 2, [text + "!" for text in LONG + SHORT])
    assert most[0] == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_has_no_use_for_us_ends_it(status, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    refusing = Stub(misdeeds=[f"HTTP {status} your key sk-very-secret is no good\x1b[2J"] * 9)
    refused = pytest.raises(RunError, match=rf"refuses to answer \(HTTP {status}\)")
    with serving(refusing) as stub, refused as said:
        judge(stub, api_key_env="JUDGE_KEY").compare(PROMPTS, SHORT, LONG)
    assert "secret" not in str(said.value)
    assert "\x1b" not in str(said.value)


def test_the_key_travels_in_one_header_and_lies_nowhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    with serving(Stub()) as stub:
        asked = judge(stub, api_key_env="JUDGE_KEY", cache=str(tmp_path / "judge.sqlite"))
        asked.compare(PROMPTS, SHORT, LONG)
        bodies, headers = zip(*stub.seen, strict=True)
    assert {h["Authorization"] for h in headers} == {"Bearer sk-very-secret"}
    assert "secret" not in str(bodies)
    assert "secret" not in repr(asked.backend) + str(asked.report()) + str(asked.spec)
    assert "secret" not in "".join(capsys.readouterr())
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_missing_key_is_said_before_anything_is_asked():
    os.environ.pop("NO_SUCH_KEY", None)
    with serving(Stub()) as stub:
        with pytest.raises(UsageError, match="NO_SUCH_KEY, named by api_key_env, is not set"):
            judge(stub, api_key_env="NO_SUCH_KEY")
        assert stub.seen == []


def test_nothing_is_asked_twice_and_a_dead_server_loses_nothing(tmp_path):
    cache = str(tmp_path / "judge.sqlite")
    with serving(Stub(misdeeds=["good"] * 2 + ["HTTP 500"] * 99)) as stub:
        half = judge(stub, cache=cache, retries=0, concurrency=1).compare(PROMPTS, SHORT, LONG)
        port = stub.url
    assert [one.probability is None for one in half] == [False, True, True]
    dead = judge(Stub(url=port), cache=cache, retries=1, concurrency=1)
    assert [one.probability for one in dead.compare(PROMPTS, SHORT, LONG)] == [half[0].probability, None, None]
    report = dead.report()
    assert report.failures == {"no connection": 4}
    assert report.requests == 2 + 3  # the first is tried again; after it one try has to do
    assert sqlite3.connect(cache).execute("SELECT count(*) FROM said").fetchone() == (2,)


def test_the_cost_by_the_prices_given():
    with serving(Stub()) as stub:
        asked = judge(stub, price_in=2.0, price_out=10.0)
        asked.compare(PROMPTS, SHORT, LONG)
        report = asked.report()
    assert (report.tokens_in, report.tokens_out) == (600, 6)
    assert report.cost == pytest.approx((600 * 2 + 6 * 10) / 1e6, rel=EXACT)
    assert report.seconds > 0


def test_the_stub_speaks_the_documented_form():
    """Field by field as the API reference has a chat completion with log-probs."""
    found = completion({"model": "m", "logprobs": True}, lambda _: {"A": 0.5, "B": 0.3}, logprobs=True)
    assert found["object"] == "chat.completion"
    token = found["choices"][0]["logprobs"]["content"][0]
    assert {"token", "logprob", "bytes", "top_logprobs"} == set(token)
    assert {"token", "logprob", "bytes"} == set(token["top_logprobs"][0])
