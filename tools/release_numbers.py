"""What a release weighs and how fast it starts, against its bounds.

python tools/release_numbers.py DIST [PYTHON]

DIST holds the wheel and the sdist; PYTHON is that of an environment in which kleash is installed (left out: this one).
Each time is the least of several, of a process that does nothing else.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MOST_WHEEL_MB, MOST_IMPORT_S = 10.0, 0.2
TIMES = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("python", nargs="?", default=sys.executable)
    given = parser.parse_args()
    (wheel,), (sdist,) = given.dist.glob("kleash-*.whl"), given.dist.glob("kleash-*.tar.gz")
    empty = least([given.python, "-c", "pass"])
    started = least([given.python, "-c", "import kleash"]) - empty
    size = megabytes(wheel)
    print("| | | bound |\n|---|---|---|")
    print(f"| wheel | {size:.1f} MB | {MOST_WHEEL_MB:g} MB |")
    print(f"| sdist | {megabytes(sdist):.1f} MB | |")
    print(f"| `import kleash`, beyond the interpreter's own {empty:.3f} s | {started:.3f} s | {MOST_IMPORT_S:g} s |")
    for words in (["--help"], ["--version"], ["--version", "--verbose"], ["train", "--help"]):
        print(f"| `kleash {' '.join(words)}` | {least([given.python, '-m', 'kleash.cli', *words], 3):.2f} s | |")
    if size > MOST_WHEEL_MB or started > MOST_IMPORT_S:
        sys.exit("over its bound")


def least(command: Sequence[str], times: int = TIMES) -> float:
    """Seconds of the fastest of several runs."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - began)
    return min(found)


def megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


if __name__ == "__main__":
    main()
