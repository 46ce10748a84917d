"""What the report of each verb on rows shows: which charts of which fields, and the numbers to know first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kleash.records import Reading
from kleash.report.charts import Chart
from kleash.report.trust import reliability
from kleash.report.words import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: a line per field of the step records, or of the evaluations. A field may hold a reading of a KL."""

    title: str
    unit: str
    fields: Mapping[str, str]
    held_out: bool = False
    log: bool = False
    zero: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What a verb's report shows: a heading, words and panels for each section, and the numbers to know first.

    more: charts of its evaluations that are no line over steps; they close the first section.
    """

    sections: Sequence[tuple[str, str, Sequence[Panel]]]
    tiles: Callable[[Sequence[Any], Sequence[Any]], list[Tile]]
    more: Callable[[Sequence[Any]], list[Chart]] = lambda _: []


def value_of(record: Any, name: str) -> float | None:
    found = getattr(record, name)
    return found.value if isinstance(found, Reading) else found


def ends(records: Sequence[Any], name: str) -> tuple[float, float] | None:
    """A field's first and last value, where it was measured at least once."""
    known = [value for record in records if (value := value_of(record, name)) is not None]
    return (known[0], known[-1]) if known else None


def tile(title: str, records: Sequence[Any], name: str, form: str = ".3f") -> Tile:
    """The last value, and what it was at first."""
    found = ends(records, name)
    if found is None:
        return Tile(title, "–", "not measured")
    return Tile(title, format(found[1], form), f"was {found[0]:{form}} at first")


UPDATES = (
    "Updates",
    "How the weights moved.",
    (
        Panel(title="Gradient norm", unit="before clipping", fields={"gradient norm": "grad_norm"}, log=True),
        Panel(title="Learning rate", unit="", fields={"learning rate": "learning_rate"}, zero=True),
        Panel(title="Seconds a step", unit="s", fields={"seconds": "seconds"}, zero=True),
    ),
)

TEXT = Story(
    sections=(
        (
            "The text",
            "How likely the policy finds the answers, before each update.",
            (
                Panel(title="Loss", unit="nats/token", fields={"rows of the step": "loss"}),
                Panel(title="Held-out loss", unit="nats/token", fields={"held-out rows": "loss"}, held_out=True),
                Panel(
                    title="KL to the reference on the held-out text",
                    unit="nats/token",
                    fields={"exact KL(policy‖reference)": "kl_text"},
                    held_out=True,
                    zero=True,
                    note="On given text, not on the policy's own words.",
                ),
                Panel(
                    title="KL to the reference on its own words",
                    unit="nats/sequence",
                    fields={"exact KL(policy‖reference)": "kl_ref"},
                    held_out=True,
                    zero=True,
                ),
                Panel(title="Entropy", unit="nats/token", fields={"entropy": "entropy"}, zero=True),
                Panel(title="Padding", unit="share of positions", fields={"padding": "padding"}, zero=True),
            ),
        ),
        UPDATES,
    ),
    tiles=lambda steps, evaluations: [
        tile("Loss, nats/token", steps, "loss"),
        tile("Held-out loss, nats/token", evaluations, "loss"),
        tile("KL on the held-out text, nats/token", evaluations, "kl_text", ".4f"),
        tile("KL on its own words, nats/sequence", evaluations, "kl_ref", ".2f"),
    ],
)

PREFERENCES = Story(
    sections=(
        (
            "The KL on the policy's own words",
            "Measured on samples of the policy, on always the same prompts. The pairs' own text cannot show it.",
            (
                Panel(
                    title="KL(policy‖reference) on its own words",
                    unit="nats/sequence",
                    fields={"to the reference": "kl_ref", "to the first reference": "kl_origin"},
                    held_out=True,
                    zero=True,
                ),
                Panel(
                    title="KL per token",
                    unit="nats/token",
                    fields={"on its own words": "kl_ref_token"},
                    held_out=True,
                    zero=True,
                ),
                Panel(title="beta", unit="reward per nat", fields={"beta": "beta"}, held_out=True, log=True),
                Panel(title="Length of its own words", unit="tokens", fields={"length": "length"}, held_out=True),
            ),
        ),
        (
            "The preferences",
            "On the step's own pairs before each update, and on the pairs of every evaluation.",
            (
                Panel(title="Accuracy", unit="share of pairs", fields={"pairs of the step": "accuracy"}),
                Panel(
                    title="Accuracy at the evaluations",
                    unit="share of pairs",
                    fields={"pairs": "accuracy"},
                    held_out=True,
                ),
                Panel(title="Loss", unit="the loss's own", fields={"pairs of the step": "loss"}),
                Panel(
                    title="Implicit rewards",
                    unit="the loss's own scale",
                    fields={"chosen": "reward_chosen", "rejected": "reward_rejected", "margin": "reward_margin"},
                ),
            ),
        ),
        (
            "How likely the answers are",
            "A margin may grow while the chosen answers themselves become less likely: likelihood displacement.",
            (
                Panel(
                    title="Log-probability",
                    unit="nats/sequence",
                    fields={"chosen": "logprob_chosen", "rejected": "logprob_rejected"},
                ),
                Panel(
                    title="Log-ratio to the reference",
                    unit="nats/sequence",
                    fields={"chosen": "log_ratio_chosen", "rejected": "log_ratio_rejected"},
                ),
                Panel(
                    title="Change since the start, at the evaluations",
                    unit="nats/sequence",
                    fields={"chosen": "chosen_change", "margin": "margin_change"},
                    held_out=True,
                    zero=True,
                ),
                Panel(
                    title="KL on the pairs' own text",
                    unit="nats/token",
                    fields={"exact KL(policy‖reference)": "kl_text"},
                    zero=True,
                    note="On given text, not on the policy's own words.",
                ),
                Panel(title="Entropy", unit="nats/token", fields={"on the pairs": "entropy"}, zero=True),
            ),
        ),
        UPDATES,
    ),
    tiles=lambda steps, evaluations: [
        tile("KL on its own words, nats/sequence", evaluations, "kl_ref", ".2f"),
        tile("Accuracy", evaluations, "accuracy"),
        tile("Chosen answers since the start, nats/sequence", evaluations, "chosen_change", "+.2f"),
        tile("beta", evaluations, "beta", ".4g"),
    ],
)

SCORES = Story(
    sections=(
        (
            "The pairs",
            "How well the reward model tells the chosen answer from the rejected one.",
            (
                Panel(
                    title="Loss", unit="nats/pair", fields={"pairs of the step": "preference"}, note="A coin: 0.693."
                ),
                Panel(title="Held-out loss", unit="nats/pair", fields={"held-out pairs": "loss"}, held_out=True),
                Panel(title="Accuracy", unit="share of pairs", fields={"pairs of the step": "accuracy"}),
                Panel(
                    title="Held-out accuracy",
                    unit="share of pairs",
                    fields={"accuracy": "accuracy", "95 % from": "accuracy_low", "to": "accuracy_high"},
                    held_out=True,
                ),
                Panel(
                    title="Calibration error",
                    unit="share",
                    fields={"held-out pairs": "calibration_error"},
                    held_out=True,
                    zero=True,
                ),
            ),
        ),
        (
            "The scores",
            "Where they lie, and how far apart.",
            (
                Panel(title="Margin", unit="r_c − r_r", fields={"pairs of the step": "margin"}, zero=True),
                Panel(title="Mean score", unit="score", fields={"pairs of the step": "score"}, zero=True),
                Panel(title="Spread", unit="std of scores", fields={"held-out": "score_std"}, held_out=True, zero=True),
            ),
        ),
        UPDATES,
    ),
    tiles=lambda steps, evaluations: [
        tile("Held-out accuracy", evaluations, "accuracy"),
        tile("Held-out loss, nats/pair", evaluations, "loss"),
        tile("Calibration error", evaluations, "calibration_error"),
        tile("Loss, nats/pair", steps, "preference"),
    ],
    more=lambda evaluations: [reliability(evaluations)],
)

STORIES: dict[str, Story] = {"sft": TEXT, "dpo": PREFERENCES, "reward": SCORES}
