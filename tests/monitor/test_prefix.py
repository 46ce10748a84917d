"""A finding at step t rests on records up to t: what is said of the first rows is what was said when they were all."""

import numpy as np
import pytest
from tests.monitor.logs import K1, log, noisy, prefix

from kleash.monitor.rules import RULES
from kleash.monitor.view import View
from kleash.runlog.findings import NotEvaluated
from kleash.runlog.series import KLTag, TrainLog

ROWS = 120
WORDS = ["the", "soup", "was", "warm", "and", "bread", "fresh", "we", "stayed", "until", "nine", "rain", "cold", "road"]


def troubled(seed: int) -> TrainLog:
    """A run in which nearly everything goes wrong, one after the other, at drawn moments."""
    generator = np.random.default_rng(seed)
    at = generator.integers(15, 60, size=12)
    row = np.arange(ROWS)

    def after(n: int) -> np.ndarray:
        return np.maximum(row - at[n], 0)

    def texts(step: int) -> list[str]:
        if step > at[0] + 30:
            return ["!!!!!!!!!!!!!!!!!!!!"] * 5
        if step > at[0]:
            return ["certainly great certainly great certainly great"] * 5
        return [" ".join(generator.permutation(WORDS)) for _ in range(5)]

    kl = np.abs(noisy(seed, 0.02, 0.004, ROWS)) * np.exp(np.minimum(0.08 * after(1), 6))
    kl[at[2]] = 50.0
    entropy = noisy(seed + 1, 1.3, 0.02, ROWS) * np.where(row > at[3] + 20, 0.02, 1) + 2 * (row > at[3] + 40)
    loss = noisy(seed + 2, 1.0, 0.1, ROWS)
    loss[100:] = np.nan
    held_out = np.where(row % 10 == 0, 0.6 - 0.01 * after(4), np.nan)
    return log(
        kl_ref=kl,
        kl_ref_sequence=kl * 20,
        kl_sampler=0.001 + 0.05 * (row > at[5]),
        reward=noisy(seed + 3, 0.3, 0.01, ROWS) + 0.01 * after(6),
        reward__a=noisy(seed + 4, 0.3, 0.01, ROWS) + 0.01 * after(6),
        reward__b=noisy(seed + 5, 0.6, 0.01, ROWS) - 0.008 * after(6),
        held_out__x=held_out,
        beta=0.05 * np.exp(np.sin(row / 3) * (row > at[7]) * 2),
        target=np.full(ROWS, 0.05),
        entropy=entropy,
        length=noisy(seed + 6, 30, 1, ROWS) * np.where(row > at[8], 0.4, 1),
        truncated=np.where(row > at[9], 0.9, 0.05),
        clip_fraction=np.where(row > at[10], 0.5, 0.02),
        grad_norm=np.where(row > at[11], 500.0, 1.0),
        groups_without_spread=np.where(row > at[10], 1.0, 0.1),
        reward_length_correlation=noisy(seed + 7, 0.2, 0.1, ROWS),
        loss=loss,
        margin=0.1 * row,
        logp_chosen=-50.0 - 0.5 * after(0),
        samples={step: texts(step) for step in range(0, ROWS, 4)},
        checkpoints=range(0, ROWS, 20),
        target_unit="nats/token",
        tag=KLTag(meaning="kl_ref", key="kl", estimator="k1", unit="nats/token", clamp=10.0),
    )


def said(rule, seen: TrainLog) -> list[tuple[int, int, int | None, str]] | None:
    found = rule.scan(View(seen))
    if isinstance(found, NotEvaluated):
        return None
    return [(f.alarm_step, f.since, f.within, f.what) for f in found]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_what_was_found_stays_found(rule) -> None:
    for seed in range(3):
        whole = troubled(seed)
        final = said(rule, whole) or []
        for rows in (5, 20, 47, 63, 88, 101, ROWS):
            so_far = said(rule, prefix(whole, rows))
            if so_far is not None:
                last = int(whole.step[rows - 1])
                # Only the first few episodes are told, so a prefix may never have more of them.
                assert so_far == [found for found in final if found[0] <= last], rows


def test_the_trouble_is_seen() -> None:
    """Or the test above would hold for rules that never say anything."""
    fired = {rule.name for rule in RULES for seed in range(3) if said(rule, troubled(seed))}
    silent = {rule.name for rule in RULES} - fired
    # What a run that measures its KL and has no markup cannot show; each has a test of its own in test_rules.py.
    assert silent <= {
        "kl not measured", "kl at the start", "negative kl", "leash too tight", "price of a nat", "beta pinned",
        "reference moved", "reward follows length", "dead run", "markup", "script", "copying",
        "components part, few rows", "entropy explosion",
        "kl up, reward flat", "shorter under the charge", "gradient norm", "reward up, kl accelerating",
        "kl at its clamp", "entropy collapse", "likelihood displacement", "one opening", "variety", "compressible",
    }, silent  # fmt: skip


def test_k1_tag_is_read() -> None:
    assert said(RULES[0], log(kl_ref=[np.nan], tag=K1)) is not None


def test_which_samples_are_read_does_not_depend_on_how_many_there_will_be() -> None:
    def read(count: int) -> list[int]:
        steps = range(count)
        return list(View(log(reward=np.zeros(count), samples={step: ["a b"] for step in steps})).sampled)

    few, many = read(700), read(5000)
    assert few == [step for step in many if step < 700]
    assert many[:512] == list(range(512))
    assert len(many) < 1800
