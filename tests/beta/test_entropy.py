"""The laws of the entropy bonus: by hand, on a solved problem, and on a policy that would collapse without them."""

import math

import pytest
from tests.tolerances import EXACT, LOOP

from kleash.beta.entropy import AdaptiveEntropy, DualEntropy, EntropyState, FixedEntropy
from kleash.errors import UsageError

REWARD = (0.0, 0.5, 0.2, 1.0, 3.0)


def entropy_at(coef: float) -> float:
    """Of softmax(reward/coef), which maximises E[reward] + coef·entropy."""
    weights = [math.exp((r - max(REWARD)) / coef) for r in REWARD]
    p = [w / math.fsum(weights) for w in weights]
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def coef_at(entropy: float) -> float:
    low, high = 1e-3, 1e3
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if entropy_at(middle) < entropy else (low, middle)
    return low


def test_each_law_by_hand():
    fixed = FixedEntropy(coef=0.01)
    assert fixed.update(fixed.init(), 9.0) == fixed.init() == EntropyState(0.01, 0.01)

    law = AdaptiveEntropy(target="1 nats/token", delta=0.25, start=0.5, most=1.0)
    state, found = law.init(), []
    for entropy in (0.5, 0.5, 0.5, 1.0, 1.5, 1.5, 1.5, 1.5, 0.9, None, math.nan):
        state = law.update(state, entropy)
        found.append((state.coef, state.memory, state.clipped))
    # Up, up to the bound, cut short there; at the target itself it falls and is in force; above it is not in force.
    assert found == [
        (0.75, 0.75, 0), (1.0, 1.0, 0), (1.0, 1.0, 1), (0.75, 0.75, 1), (0.0, 0.5, 1), (0.0, 0.25, 1),
        (0.0, 0.0, 1), (0.0, 0.0, 2), (0.25, 0.25, 2), (0.25, 0.25, 2), (0.25, 0.25, 2),
    ]  # fmt: skip

    dual = DualEntropy(target="2 nats/token", rate=0.5, start=0.1, least=0.05, most=0.12)
    one = dual.update(dual.init(), 1.5)
    assert one.coef == pytest.approx(0.1 * math.exp(0.125), rel=EXACT)
    assert dual.update(one, 0.5) == EntropyState(0.12, 0.12, 1)
    assert dual.update(dual.init(), 8.0) == EntropyState(0.05, 0.05, 1)
    assert dual.update(one, None) == one


@pytest.mark.parametrize("target", [0.2, 0.8, 1.4])
@pytest.mark.parametrize("first", [1e-3, 5.0])
def test_dual_ends_at_the_multiplier_of_a_solved_problem(target, first):
    """max E[reward] with entropy ≥ target: the coefficient ends where the constraint binds."""
    law = DualEntropy(target=f"{target} nats/token", start=first, most=50.0)
    state = law.init()
    for _ in range(3000):
        state = law.update(state, entropy_at(state.coef))
    assert math.isclose(state.coef, coef_at(target), rel_tol=LOOP)


@pytest.mark.parametrize("law", [AdaptiveEntropy, DualEntropy])
def test_a_policy_that_would_collapse_is_held_at_the_target(law):
    """A slow policy: each step it goes a tenth of the way to the best one at the coefficient in force."""
    target, held = 0.8, law(target="0.8 nats/token")

    def run(law) -> list[float]:
        state, entropy, path = law.init(), 1.5, []
        for _ in range(2000):
            entropy += 0.1 * (entropy_at(max(state.coef, 0.01)) - entropy)
            path.append(entropy)
            state = law.update(state, entropy)
        return path

    assert run(FixedEntropy(coef=1e-9))[-1] < 1e-3
    path = run(held)[1000:]
    assert abs(math.fsum(path) / len(path) - target) < target / 10
    assert min(path) > target / 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FixedEntropy(coef=0.0), "leave [entropy] out"),
        (lambda: AdaptiveEntropy(target="4 nats/sequence"), '"0.5 nats/token"'),
        (lambda: AdaptiveEntropy(target="0.5"), "has no unit"),
        (lambda: AdaptiveEntropy(target="1 nats/token", delta=0.0), "delta must be finite and positive"),
        (lambda: AdaptiveEntropy(target="1 nats/token", start=2.0), "at most entropy.most"),
        (lambda: DualEntropy(target="1 nats/token", start=1e-9), "between entropy.least"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, said):
    with pytest.raises(UsageError) as refused:
        make()
    assert said in str(refused.value)
