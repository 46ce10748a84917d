"""Weights move, or they do not: an optimizer's step for which there may be no room."""

from collections.abc import Iterator

from torch import Tensor
from torch.optim import Optimizer

from kleash.errors import RunError
from kleash.models.memory import is_out_of_memory, release, said_of


def step_whole(optimizer: Optimizer) -> None:
    """optimizer.step(), and once more after memory was given back, if nothing had moved yet.

    The first step makes the optimizer's state, two numbers for each trained one. State that is there in part is taken
    away again, so that the second try, or a later run, finds none.

    Raises:
        RunError: there is no room for it.
    """
    before = _versions(optimizer)
    for last in (False, True):
        new = [p for p in _trained(optimizer) if p not in optimizer.state]
        try:
            optimizer.step()
            return
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            said = said_of(error)
        for parameter in new:
            optimizer.state.pop(parameter, None)
        release()
        if last or _versions(optimizer) != before:
            break
    raise RunError(
        f"memory ran out ({said}) while the optimizer moved the weights. It holds two numbers for each trained one: "
        "train an adapter (model.adapter = { rank = 16 }, or a lower rank), choose a smaller model, or leave more of "
        "the memory free by train.groups_per_pass = 1. What was saved is whole: go on with --resume"
    )


def _trained(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _versions(optimizer: Optimizer) -> list[int]:
    """How often each weight, and each number of the optimizer's that was there, has been written."""
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [tensor._version for tensor in (*_trained(optimizer), *kept)]
