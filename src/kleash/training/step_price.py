"""The coefficient of a step-size penalty from step to step: put into the step's update, moved by what the step did."""

from dataclasses import replace
from typing import Any

from kleash.algorithms import PricesSteps, StepPenalty, StepPrice
from kleash.records import Reading
from kleash.training.passes import Update


def priced(update: Update, price: StepPrice | None) -> Update:
    """The update of a step, with the coefficient in force. None: the first step, or there is no step-size penalty."""
    penalty = _penalty(update)
    if penalty is None or price is None:
        return update
    algorithm: Any = update.algorithm  # a dataclass with this field, which its protocol cannot say
    return replace(update, algorithm=replace(algorithm, step_penalty=penalty.at(price)))


def next_price(update: Update, price: StepPrice | None, kl_old: Reading | None) -> StepPrice | None:
    """The price after a step with this update; None without a step-size penalty."""
    penalty = _penalty(update)
    return None if penalty is None else penalty.moved(price or StepPrice(penalty.beta), kl_old)


def price_figures(update: Update, price: StepPrice | None) -> dict[str, float | int | None]:
    """The coefficient of this step, and how often it met a bound, as fields of `Step`."""
    penalty = _penalty(update)
    return {
        "step_beta": None if penalty is None else penalty.beta,
        "step_beta_clipped": None if price is None else price.clipped,
    }


def _penalty(update: Update) -> StepPenalty | None:
    return update.algorithm.step_penalty if isinstance(update.algorithm, PricesSteps) else None
