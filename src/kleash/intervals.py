"""The interval of a share: of all that counts how often something happened. Standard library only."""

import math

#: Of the normal distribution, two-sided 95 %.
Z95 = 1.959963984540054


def wilson(share: float, n: int | float, z: float = Z95) -> tuple[float, float]:
    """The score interval of a share of n independent trials: inside [0, 1], of use with few trials and shares near 1.

    `share` times n need not be whole: a tie is half a success.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22.
    Proved by: tests/test_intervals.py::test_wilson_is_where_the_score_test_just_accepts
    """
    shrink = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)  # rounding aside, it never leaves [0, 1]
