"""What each sample is credited with, from the scores of its group. All baselines depend on the *other* members only."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def group_sum(x: Float[Tensor, "B *s"], group: Int[Tensor, " B"]) -> Float[Tensor, "B *s"]:
    """Each row replaced by the sum over its group.

    Source: the definition.
    Proved by: tests/rl/test_advantages.py::test_group_sum_equals_slow_loop
    """
    totals = torch.zeros(int(group.max()) + 1, *x.shape[1:], dtype=x.dtype, device=x.device)
    return totals.index_add(0, group, x)[group]


def leave_one_out(
    score: Float[Tensor, " B"], scored: Bool[Tensor, " B"], group: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """R_i − mean of the scores of the other scored members of its group; 0 for an unscored or a lone member.

    Source: Kool et al. 2019; Ahmadian et al. 2024 (RLOO), arXiv 2402.14740.
    Proved by: tests/rl/test_advantages.py::test_leave_one_out_equals_slow_loop
    """
    value = torch.where(scored, score, 0.0)
    others = group_sum(scored.to(score.dtype), group) - 1
    baseline = (group_sum(value, group) - value) / others.clamp_min(1)  # others = 0 is masked in the next line
    return torch.where(scored & (others > 0), score - baseline, 0.0)


def leave_one_out_alive(
    x: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    group: Int[Tensor, " B"],
    weight: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """x_it − w_it · mean of x_jt over the other members alive at t (x_it where no other is); 0 where mask is False.

    Time-aligned: tokens are compared with the group at the same position. Unbiased, because the mean depends on the
    other members only; off-policy w is the ratio ρ_{1:t} that the score function needs (None: 1).

    Source: docs/kl.md §4–5 (our own; enumerated).
    Proved by: tests/rl/test_advantages.py::test_leave_one_out_alive_equals_slow_loop
    """
    value = torch.where(mask, x, 0.0)
    others = group_sum(mask.to(x.dtype), group) - mask.to(x.dtype)
    baseline = (group_sum(value, group) - value) / others.clamp_min(1)  # others = 0: the sum is 0 as well
    return torch.where(mask, value - (baseline if weight is None else weight * baseline), 0.0)


def group_std(score: Float[Tensor, " B"], scored: Bool[Tensor, " B"], group: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Population standard deviation of the scores of each row's group (0 for a group without spread).

    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300 §4.1.
    Proved by: tests/rl/test_advantages.py::test_group_std_equals_numpy
    """
    count = group_sum(scored.to(score.dtype), group).clamp_min(1)  # an unscored group has sum 0 as well
    mean = group_sum(torch.where(scored, score, 0.0), group) / count
    square = torch.where(scored, (score - mean).square(), 0.0)
    return (group_sum(square, group) / count).sqrt()
