"""Every rule: it speaks on its planted fault, and is silent on a healthy run that has all columns."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.monitor.logs import K1, K3, log, noisy

from kleash.monitor import examine
from kleash.monitor.rules import RULES, SIGNS
from kleash.monitor.view import View
from kleash.records import Target
from kleash.runlog.findings import NotEvaluated
from kleash.runlog.series import KLTag, TrainLog

N = 150
ROW = np.arange(N)
LATE = ROW >= 90
WORDS = (
    "the soup was warm and bread fresh we stayed until nine rain cold road of new shoes for my friend".split()  # noqa: SIM905
)
PAIRS = list(zip(WORDS[:6], WORDS[6:12], strict=True))
ABSENT = KLTag(meaning="kl_ref", key=None, estimator=None, unit=None, state="absent")
CLAMPED = KLTag(meaning="kl_ref", key="kl", estimator="k3", unit="nats/token", clamp=10.0)
#: What a run at its target looks like; a fault changes a few of these columns.
USUAL = {
    "kl_ref": 0.1 * (1 - np.exp(-ROW / 20)) + noisy(0, 0, 0.002, N) * (ROW > 0),
    "reward": 0.2 + 0.5 * (1 - np.exp(-ROW / 25)) + noisy(1, 0, 0.01, N),
    "reward_std": noisy(2, 0.3, 0.01, N),
    "reward/format": 0.2 + 0.5 * (1 - np.exp(-ROW / 25)) + noisy(3, 0, 0.01, N),
    "reward/correct": 0.3 + 0.4 * (1 - np.exp(-ROW / 30)) + noisy(4, 0, 0.01, N),
    "entropy": noisy(5, 1.3, 0.02, N),
    "length": noisy(6, 40, 1, N),
    "truncated": np.abs(noisy(7, 0.03, 0.005, N)),
    "clip_fraction": np.abs(noisy(8, 0.02, 0.003, N)),
    "grad_norm": np.abs(noisy(9, 1.0, 0.1, N)),
    "loss": noisy(10, 0.5, 0.05, N),
    "groups_without_spread": np.abs(noisy(11, 0.1, 0.02, N)),
    "reward_length_correlation": noisy(12, 0.1, 0.05, N),
    "kl_sampler": np.abs(noisy(13, 1e-6, 1e-7, N)),
    "beta": 0.04 + 0.01 * np.exp(-ROW / 10),
}


def sentences(step: int) -> list[str]:
    generator = np.random.default_rng(step)
    return [" ".join(generator.permutation(WORDS)[:12]) for _ in range(6)]


def run(*, texts: Callable[[int], list[str]] = sentences, without=(), **changed) -> TrainLog:
    options = {k: changed.pop(k) for k in ("tag", "target_unit", "config", "steps") if k in changed}
    columns = {name: x for name, x in USUAL.items() if name not in without}
    columns |= {name.replace("__", "/"): np.broadcast_to(x, N) for name, x in changed.items()}
    samples = {step: texts(step) for step in range(0, N, 5)}
    return log(samples=samples, **{"tag": K3, **options}, **columns)


def later(changed: list[str]) -> Callable[[int], list[str]]:
    return lambda step: changed if step >= 90 else sentences(step)


FAULTS: dict[str, TrainLog] = {
    "kl not measured": run(without=("kl_ref",), tag=ABSENT),
    "kl over budget": run(kl_ref=np.where(LATE, 0.4, USUAL["kl_ref"])),
    "kl runaway": run(kl_ref=0.01 * np.exp(0.08 * np.maximum(ROW - 60, 0))),
    "kl spike": run(kl_ref=np.where(ROW == 100, 30.0, USUAL["kl_ref"])),
    "kl up, reward flat": run(kl_ref=0.05 + 0.004 * ROW, reward=noisy(20, 0.5, 0.01, N)),
    "negative kl": run(kl_ref=noisy(21, -0.02, 0.005, N), tag=K1),
    "kl at the start": run(kl_ref=0.08 + noisy(22, 0, 0.001, N)),
    "kl at its clamp": run(kl_ref=np.where(LATE, 6.0, 0.1), tag=CLAMPED),
    "leash too tight": run(kl_ref=np.abs(noisy(23, 1e-6, 1e-7, N)), reward=noisy(24, 0.3, 0.01, N)),
    "price of a nat": run(kl_ref=0.1 + 0.005 * ROW, reward=0.5 + 1e-4 * ROW + noisy(25, 0, 1e-3, N), beta=0.05),
    "shorter under the charge": run(length=np.where(LATE, 15.0, 40.0), beta=np.where(ROW > 80, 0.2, 0.05)),
    "beta pinned": run(beta=0.001, target=np.full(N, 0.02), target_unit="nats/token"),
    "beta oscillating": run(beta=0.05 * np.exp(2 * np.sin(ROW / 3) * LATE)),
    "reference moved": run(kl_ref=np.where(ROW < 100, 0.2, 0.2 * (1 - np.exp(-(ROW - 100) / 20))) * (ROW > 0)),
    "reward up, quality down": run(held_out__accuracy=np.where(ROW % 10 == 0, np.where(LATE, 0.3, 0.6), np.nan)),
    "components part, few rows": log(
        steps=[10, 20, 30, 40], reward=[0.5, 0.6, 0.7, 0.8], reward__format=[0.2, 0.4, 0.6, 0.9],
        reward__correct=[0.4, 0.3, 0.2, 0.1], tag=K3,
    ),
    "reward up, kl accelerating": run(
        kl_ref=0.02 + 0.3 * np.maximum(ROW - 60, 0) ** 2 / 900, reward=0.2 + 0.004 * ROW + noisy(26, 0, 0.005, N)
    ),
    "reward spread gone": run(groups_without_spread=np.where(LATE, 1.0, 0.1)),
    "reward follows length": run(
        length=np.where(LATE, 100.0, 40.0), reward_length_correlation=np.where(LATE, 0.8, 0.1)
    ),
    "entropy collapse": run(entropy=np.where(LATE, 0.01, 1.3)),
    "entropy explosion": run(entropy=np.where(LATE, 3.0, 1.3)),
    "entropy breaks away": run(
        entropy=np.where(LATE, 0.8, 1.3) + noisy(40, 0, 0.02, N),
        reward=0.4 + 0.3 * np.clip((ROW - 88) / 20, 0, 1) + noisy(41, 0, 0.01, N),
    ),
    "clip fraction": run(clip_fraction=np.where(LATE, 0.5, 0.02)),
    "sampler mismatch": run(kl_sampler=np.where(LATE, 0.05, 1e-6)),
    "gradient norm": run(grad_norm=np.where(LATE, 500.0, 1.0)),
    "not finite": run(loss=np.where(LATE, np.nan, 0.5)),
    "dead run": run(reward=np.where(LATE, 0.0, USUAL["reward"])),
    "answers do not end": run(truncated=np.where(LATE, 0.95, 0.03)),
    "repetition": run(texts=later(["we were glad and we were glad and we were glad and we were glad and warm"] * 6)),
    "compressible": run(texts=later(["the soup was warm and the bread was fresh tonight"] * 12)),
    "variety": run(texts=later(["the soup was warm and the bread was fresh tonight"] * 12)),
    "one opening": run(texts=later([f"Certainly here is {w} and more {v}" for w, v in PAIRS])),
    "one answer": run(texts=later(["it was lovely"] * 6)),
    "markup": run(texts=later([f"## {w}\n- **{v}**\n- `{w}` it" for w, v in PAIRS])),
    "script": run(texts=later(["Суп был тёплый и хлеб был свежий"] * 6)),
    "degenerate": run(texts=later(["!" * 60] * 6)),
    "likelihood displacement": run(margin=0.1 * ROW, logp_chosen=np.where(LATE, -90.0, -50.0)),
}  # fmt: skip


def fired(name: str, seen: TrainLog) -> bool:
    rule = next(rule for rule in RULES if rule.name == name)
    found = rule.scan(View(seen))
    return not isinstance(found, NotEvaluated) and bool(found)


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_planted_fault_is_found(name: str) -> None:
    assert fired(name, FAULTS[name])


def test_copying_is_found() -> None:
    from dataclasses import replace

    from kleash.runlog.series import SampleText

    asked = "tell me about the soup that you had at the inn by the lake"
    texts = [
        SampleText(step=step, prompt=f"{asked} {n}", completion=asked if step >= 90 else sentences(step)[n])
        for step in range(0, N, 5)
        for n in range(6)
    ]
    seen = replace(run(), samples=lambda steps: texts)
    assert fired("copying", seen)
    assert not fired("copying", run())


def test_every_rule_has_its_fault() -> None:
    assert set(FAULTS) | {"copying"} == {rule.name for rule in RULES}
    assert set(SIGNS) <= {rule.name for rule in RULES}


def test_a_healthy_run_is_healthy() -> None:
    found = examine(run(target=np.full(N, 0.1), target_unit="nats/token"))
    assert found.verdict == "healthy", [finding.what for finding in found.findings]
    assert len(found.evaluated) > 25


def test_a_budget_of_ones_own_comes_first() -> None:
    rule = next(rule for rule in RULES if rule.name == "kl over budget")
    far = FAULTS["kl over budget"]
    assert rule.scan(View(far))
    assert rule.scan(View(far, Target(1.0, "nats/token"))) == []
    assert examine(run(), budget=Target(0.05, "nats/token")).headline == "KL over your budget"


def test_the_default_budget_is_silent_where_a_held_out_score_is_logged() -> None:
    far = np.where(LATE, 0.4, USUAL["kl_ref"])
    held_out = np.where(ROW % 10 == 0, 0.3 + 0.003 * ROW, np.nan)
    assert not fired("kl over budget", run(kl_ref=far, held_out__accuracy=held_out))


def test_a_real_spike_is_told_from_an_estimators() -> None:
    here = ROW == 100
    moved = {"entropy": np.where(here, 4.0, 1.3), "reward": np.where(here, -1, 0.5)}
    real = examine(run(kl_ref=np.where(here, 3.0, USUAL["kl_ref"]), **moved))
    spike = next(finding for finding in real.findings if finding.rule == "kl spike")
    assert spike.severity == "warning"
    assert "reward and entropy" in spike.what


def test_what_is_missing_is_named() -> None:
    found = examine(log(entropy=noisy(30, 1.0, 0.02, 50)))
    missing = {one.rule: one.needs for one in found.not_evaluated}
    assert missing["reward up, quality down"] == "the reward, and a held-out score or two components"
    assert missing["repetition"] == "samples, or seq_rep_4 in the log"
    assert "entropy collapse" in found.evaluated


def test_a_log_without_anything_is_not_evaluated() -> None:
    found = examine(log(steps=[], nothing=[]))
    assert (found.verdict, found.findings) == ("not evaluated", ())


def test_signs_of_two_kinds_make_gaming() -> None:
    texts = later(["glad and glad and glad and glad"] * 6)
    found = examine(run(kl_ref=0.01 * np.exp(0.08 * np.maximum(ROW - 60, 0)), texts=texts))
    assert found.headline == "GAMING THE REWARD"
    first = found.findings[0]
    assert first.sure in ("likely", "sure")
    assert first.numbers["signs"] >= 2
    assert first.after


def test_entropy_that_falls_all_along_has_not_broken_away() -> None:
    assert not fired("entropy breaks away", run(entropy=1.3 * np.exp(-ROW / 60)))


def test_a_tag_that_a_format_asks_for_is_no_opening() -> None:
    tagged = [f"<think>{w} then {v} and so on</think> <answer>{w}</answer>" for w, v in PAIRS]
    assert not fired("one opening", run(texts=later(tagged)))


def test_prompts_that_become_harder_part_nothing() -> None:
    """Reward and held-out score fall together, while both stand above where they began."""
    fall = 0.3 * (ROW > 100)
    held_out = np.where(ROW % 5 == 0, 0.2 + 0.5 * (1 - np.exp(-ROW / 25)) - fall, np.nan)
    assert not fired("reward up, quality down", run(reward=USUAL["reward"] - fall, held_out__accuracy=held_out))


def test_a_kl_on_its_way_to_a_level_does_not_run_away() -> None:
    assert not fired("kl runaway", run(kl_ref=0.9 * (1 - np.exp(-ROW / 15))))


def mismatch(size: float, **tag) -> TrainLog:
    seen = run(kl_sampler=np.where(LATE, size, 1e-6))
    options = {"meaning": "kl_sampler", "key": "diff", "estimator": None, "unit": "nats/token"} | tag
    seen.kl["kl_sampler"] = KLTag(**options)
    return seen


def test_a_mean_difference_of_log_probs_is_no_kl() -> None:
    """TRL and slime log mean |Δ log-prob|. For normal Δ the KL is half its variance: drawn here, not derived."""
    drawn = np.random.default_rng(50).normal(scale=0.03, size=200_000)
    difference, kl = float(np.abs(drawn).mean()), float((np.exp(drawn) - 1 - drawn).mean())
    assert difference > 0.02 and kl < 1e-3  # within the guide's bound, as fp32 against bf16 may well be
    assert not fired("sampler mismatch", mismatch(difference))
    assert not fired("sampler mismatch", mismatch(kl, estimator="k3"))
    assert fired("sampler mismatch", mismatch(0.15))
    assert fired("sampler mismatch", mismatch(0.02, estimator="k1"))
    found = next(rule for rule in RULES if rule.name == "sampler mismatch").scan(View(mismatch(0.5, unit=None)))
    assert isinstance(found, NotEvaluated) and found.needs.endswith("in nats")


def test_a_budget_that_cannot_be_judged_is_not_said_to_be_kept() -> None:
    """Nats per sequence were asked for, and there are no lengths; a held-out score does not make up for them."""
    held_out = np.where(ROW % 10 == 0, 0.3 + 0.003 * ROW, np.nan)
    rule = next(rule for rule in RULES if rule.name == "kl over budget")
    seen = run(kl_ref=np.where(LATE, 0.4, USUAL["kl_ref"]), held_out__accuracy=held_out, without=("length",))
    found = rule.scan(View(seen, Target(2.0, "nats/sequence")))
    assert isinstance(found, NotEvaluated) and "lengths" in found.needs
    found = rule.scan(View(seen))
    assert isinstance(found, NotEvaluated) and "held-out" in found.needs


def test_what_is_said_of_a_negative_row_is_that_row() -> None:
    """k3 may never be below 0: one row is enough, though the mean about it is above."""
    kl = np.where(ROW == 100, -0.05, np.abs(USUAL["kl_ref"]))
    found = next(f for f in examine(run(kl_ref=kl, tag=K3)).findings if f.rule == "negative kl")
    assert found.alarm_step == 100 and found.numbers["nats/token"] == -0.05


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("error")
def test_a_kl_that_ceases_to_be_a_number_is_not_healthy(bad: float) -> None:
    seen = examine(run(kl_ref=np.where(LATE, bad, USUAL["kl_ref"])))
    assert "not finite" in {f.rule for f in seen.findings if f.severity == "warning"}
    assert (seen.verdict, seen.since) == ("findings", int(np.flatnonzero(LATE)[0]))


def test_an_infinite_spike_is_dated_where_it_is() -> None:
    kl = np.array(USUAL["kl_ref"])
    kl[70] = np.inf
    (spike,) = [f for f in examine(run(kl_ref=kl)).findings if f.rule == "kl spike"]
    assert spike.alarm_step == 70
    assert spike.since in (69, 70)  # a line that turns at 69 and a jump at 70 fit alike


def test_notes_are_no_signs() -> None:
    """What makes GAMING THE REWARD must itself be worth a warning."""
    for name in SIGNS:
        seen = FAULTS.get(name)
        if seen is not None:
            assert {f.severity for f in examine(seen).findings if f.rule == name} <= {"warning", "alarm"}, name


def test_the_page_of_rules_has_their_thresholds() -> None:
    """docs/watch-rules.md, last column: every numeric field of every rule with its value."""
    page = (Path(__file__).parents[2] / "docs" / "watch-rules.md").read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    for rule in RULES:
        own = [(field.name, getattr(rule, field.name)) for field in fields(rule)]
        numbers = ", ".join(f"{name} {value:g}" for name, value in own if isinstance(value, int | float))
        assert rows[rule.name].endswith(f"| {numbers} |"), rule.name
