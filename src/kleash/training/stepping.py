"""Weights move, or they do not: an optimizer's step for which there may be no room."""

import torch
from torch.optim import Optimizer

from kleash.errors import RunError
from kleash.models.exhausted import is_out_of_memory, release, said_of


def step_whole(optimizer: Optimizer) -> None:
    """optimizer.step(), and once more after memory was given back, if nothing had moved yet.

    The first step makes the optimizer's state, two numbers for each trained one. State that is there in part is taken
    away again, so that the second try, or a later run, finds none.

    Raises:
        RunError: there is no room for it.
    """
    before = _steps(optimizer)
    for last in (False, True):
        known = set(optimizer.state)
        try:
            optimizer.step()
            return
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            said = said_of(error)
        begun = _steps(optimizer) != before
        for parameter in set(optimizer.state) - known:
            del optimizer.state[parameter]
        release()
        if begun or last:
            break
    raise RunError(
        f"memory ran out ({said}) while the optimizer moved the weights. It holds two numbers for each trained one: "
        "train an adapter (model.adapter = { rank = 16 }, or a lower rank), choose a smaller model, or leave more of "
        "the memory free by train.groups_per_pass = 1. What was saved is whole: go on with --resume"
    )


def _steps(optimizer: Optimizer) -> float:
    """Steps of all weights together: counted up before the first of them moves."""
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    return float(torch.stack(steps).sum()) if steps else 0.0
