import math

import numpy as np
import pytest
from tests.tolerances import LOOP

from kleash.runlog.price import WINDOW, slope


def test_the_price_is_numpys_line() -> None:
    rng = np.random.default_rng(0)
    kl = rng.uniform(0, 5, 50)
    reward = 0.3 * kl + 1 + rng.normal(0, 0.1, 50)
    assert slope(kl, reward) == pytest.approx(np.polyfit(kl, reward, 1)[0], rel=LOOP)
    holes = (
        [None if i == 3 else float(x) for i, x in enumerate(kl)],
        [math.nan if i == 7 else y for i, y in enumerate(reward)],
    )
    whole = np.delete([kl, reward], [3, 7], axis=1)
    assert slope(*holes) == pytest.approx(np.polyfit(*whole, 1)[0], rel=LOOP)


def test_no_price_of_a_kl_that_did_not_vary_or_of_few_rows() -> None:
    rising = [float(i) for i in range(WINDOW)]
    assert slope([1.0] * WINDOW, rising) is None
    assert slope(rising[: WINDOW // 2], rising[: WINDOW // 2]) == 1.0
    assert slope(rising[: WINDOW // 2 - 1], rising[: WINDOW // 2 - 1]) is None
