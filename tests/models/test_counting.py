import pytest
import torch
from tests.models import build

from kleash.models.counting import TokenCounter
from kleash.models.policy import Policy


def test_every_forward_is_counted_under_its_phase() -> None:
    policy = build.policy()
    counter = TokenCounter(policy)
    ids = torch.zeros(2, 5, dtype=torch.long)
    policy.body(ids)
    with counter.phase("sample"):
        policy.body(input_ids=ids[:, :1])
        with counter.phase("reference"):
            policy.body(input_ids=ids)
        policy.model(input_ids=ids)  # through the head as well
    assert counter.take() == {"other": 10, "sample": 2 + 10, "reference": 10}
    assert counter.take() == {}
    counter.close()
    policy.body(ids)
    assert counter.take() == {}


def test_a_body_shared_by_policy_and_reference_is_counted_once() -> None:
    policy, second = build.policy(), build.policy()
    counter = TokenCounter(policy, Policy(policy.model, policy.recipe), second)
    policy.body(torch.zeros(1, 3, dtype=torch.long))
    second.body(torch.zeros(1, 4, dtype=torch.long))
    assert counter.take() == {"other": 7}


def test_a_phase_ends_also_when_it_fails() -> None:
    policy = build.policy()
    counter = TokenCounter(policy)
    with pytest.raises(ZeroDivisionError), counter.phase("update"):
        _ = 1 / 0
    policy.body(torch.zeros(1, 3, dtype=torch.long))
    assert counter.take() == {"other": 3}
