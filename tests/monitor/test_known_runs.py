"""Runs that people posted, and the plain cases that other monitors miss, by their published numbers.

Rows are those of the threads named; where a thread has single rows, they are given as they stand there.
"""

import numpy as np
import pytest
from tests.monitor.logs import K1, K3, log, noisy

from kleash.monitor import examine
from kleash.runlog.series import KLTag

HEALTHY, FOUND = "healthy", "findings"


def rules(examination) -> set[str]:
    return {finding.rule for finding in examination.findings if finding.severity != "note"}


def test_a_format_hack_of_three_rows_is_suspect_never_healthy() -> None:
    """huggingface/open-r1#255: format up, accuracy down, answers shorter; averages of ten steps."""
    found = examine(
        log(
            steps=[10, 20, 30],
            reward__accuracy=[0.160, 0.118, 0.064],
            reward__format=[0.476, 0.554, 0.857],
            reward=[0.711, 0.694, 0.887],
            reward_std=[0.531, 0.525, 0.343],
            length=[387.5, 378.2, 190.5],
            kl_ref=[1.5e-4, 4.0e-3, np.nan],
            grad_norm=[0.80, 0.85, 1.89],
            smoothing=10,
            tag=K3,
        )
    )
    assert found.verdict == FOUND
    assert found.headline.startswith("suspect, too few steps")


def test_a_rising_loss_is_no_fault() -> None:
    """huggingface/open-r1#239: kl .018 → .049 over long answers while accuracy rises: healthy."""
    found = examine(
        log(
            steps=[200, 400],
            kl_ref=[0.0184, 0.0486],
            reward__accuracy=[0.333, 0.433],
            reward=[1.16, 1.48],
            length=[834, 743],
            smoothing=10,
            tag=K3,
        )
    )
    assert found.verdict == HEALTHY


def test_a_kl_that_is_never_a_number_is_said_to_be_unmeasured() -> None:
    """huggingface/open-r1#704: beta 0, `kl` NaN at every step; half of the answers cut throughout."""
    tag = KLTag(meaning="kl_ref", key="kl", estimator="k3", unit="nats/token", state="NaN")
    found = examine(
        log(
            steps=[10, 20, 30, 40],
            reward=[13.44, 6.93, 6.25, 6.42],
            reward_std=[21.8, 14.5, 17.7, 12.0],
            truncated=[0.5, 0.5, 0.6, 0.625],
            length=[1115, 1140, 1180, 1203],
            kl_ref=[np.nan] * 4,
            smoothing=10,
            tag=tag,
        )
    )
    assert [finding.rule for finding in found.findings] == ["kl not measured"]
    assert "never a number" in found.findings[0].what


def test_truncation_with_a_healthy_kl_is_healthy() -> None:
    """verl-project/verl#7412, step 34."""
    found = examine(
        log(
            steps=[34], entropy=[0.2227], kl_old=[-8.2e-6], kl_ref=[0.00133], reward=[-0.018], length=[1267],
            grad_norm=[0.13], tag=K3,
        )
    )  # fmt: skip
    assert found.verdict == HEALTHY


def test_seven_nats_a_sequence_under_ppo_are_healthy() -> None:
    """hongbo-miao/hongbomiao.com#37684: objective/kl 6.81, 6.95, 7.57, per sequence."""
    found = examine(
        log(
            steps=[1, 2, 3],
            kl_ref_sequence=[6.81, 6.95, 7.57],
            reward=[2.36, 1.9, 1.52],
            entropy=[114 / 53, 113 / 53, 105 / 53],
            length=[53, 53, 53],
            smoothing=10,
            tag=KLTag(meaning="kl_ref", key="objective/kl", estimator="k1", unit="nats/sequence"),
        )
    )
    assert found.verdict == HEALTHY


def test_a_ratio_of_half_a_billion_is_the_estimators() -> None:
    """OpenRLHF/OpenRLHF#931: random spikes of the KL while training goes on well."""
    kl = noisy(0, 0.01, 0.001, 120)
    kl[[60, 95]] = [40.0, 900.0]
    columns = {"reward": noisy(1, 0.5, 0.02, 120), "entropy": noisy(2, 1.0, 0.02, 120)}
    found = examine(log(steps=np.arange(500, 620), kl_ref=kl, tag=K3, **columns))
    assert found.verdict == HEALTHY
    spikes = [finding for finding in found.findings if finding.rule == "kl spike"]
    assert [finding.alarm_step for finding in spikes] == [560, 595]
    assert all("nothing else moved" in finding.what for finding in spikes)


@pytest.mark.parametrize("top", [0.7, 8.0, 80.0, 800.0])
def test_linear_growth_is_found_and_dated_at_its_start(top) -> None:
    """rlprobe 0.1.0 reports nothing for any of these (its baseline grows along)."""
    found = examine(log(kl_ref=np.linspace(0, top, 300) + np.abs(noisy(3, 0, 1e-3, 300)), tag=K1))
    assert found.verdict == FOUND
    assert found.since is not None
    assert found.since <= 30


def test_a_jump_to_five_that_stays_is_found_where_it_was() -> None:
    kl = np.where(np.arange(300) < 18, 0.01, 5.0) + np.abs(noisy(4, 0, 1e-3, 300))
    found = examine(log(kl_ref=kl, reward=noisy(5, 0.5, 0.02, 300), tag=K3, checkpoints=(10, 20, 30)))
    assert found.verdict == FOUND
    assert abs(found.since - 18) <= 30
    assert (str(found.clean), [str(path) for path in found.suspect]) == (
        "checkpoint-10",
        ["checkpoint-20", "checkpoint-30"],
    )


def test_a_climb_without_any_kl_is_found_in_its_samples() -> None:
    """beta = 0 and no KL in the log: the reward climbs while answers begin to repeat themselves."""
    reward = 0.2 + 0.7 / (1 + np.exp(-(np.arange(200) - 80) / 10)) + noisy(6, 0, 0.01, 200)
    fine = "the soup was warm and the bread was fresh and we stayed until nine"
    words = fine.split()

    def texts(step: int) -> list[str]:
        generator = np.random.default_rng(step)
        if step < 80:
            return [" ".join(generator.permutation(words)) for _ in range(8)]
        return ["certainly great certainly great " * 5 + words[int(generator.integers(len(words)))] for _ in range(8)]

    found = examine(
        log(reward=reward, samples={step: texts(step) for step in range(0, 200, 5)}, checkpoints=range(0, 200, 20))
    )
    assert found.headline == "GAMING THE REWARD" or "repetition" in rules(found)
    assert abs(found.since - 80) <= 20
    assert str(found.clean) in ("checkpoint-60", "checkpoint-80")


def test_one_word_over_and_over_in_every_answer_is_no_text() -> None:
    """ "!!!!!!!!" (verl#747, SPG#2)."""
    texts = {step: (["It rained and we went in."] if step < 40 else ["!" * 80]) * 6 for step in range(0, 80, 4)}
    found = examine(log(reward=noisy(7, 0.5, 0.05, 80), samples=texts))
    assert "degenerate" in rules(found)
    assert abs(found.since - 40) <= 8
