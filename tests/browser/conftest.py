"""One browser for a file of tests; without Chromium they are skipped (`make browser` gets it)."""

from collections.abc import Iterator

import pytest
from tests.browser.chromium import Browser, installed


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if installed() is None:
        pytest.skip("no Chromium here: make browser")
    with Browser() as one:
        yield one
