"""The noise of real healthy runs, fitted once and frozen in watch_noise.json; and noise like it, drawn anew.

    python -m benchmarks.watch_noise RUN … > benchmarks/watch_noise.json

A row's number is a trend (a running median) times, or plus, what is left. Of each run its size and lag-1
autocorrelation are kept by column; of all runs together the quantiles of the standardised rest (so that its tails are
the real ones) and the correlations between columns.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FROZEN = Path(__file__).with_suffix(".json")
#: Columns whose rest is a ratio to the trend (log), and those whose rest is a difference, in units of reward_std.
RATIOS = ("kl_ref", "entropy", "length", "grad_norm", "reward_std", "distinct_2", "compression_ratio")
DIFFERENCES = ("reward", "reward_length_correlation")
COLUMNS = RATIOS + DIFFERENCES
#: Rows left out at the start (a warm-up is no noise), and the running median's.
WARM_UP, SPAN = 12, 21
QUANTILES = np.linspace(0.005, 0.995, 34)


def rest(name: str, columns: dict[str, Floats]) -> Floats | None:
    """What is left of a column without its trend, from WARM_UP on."""
    x = columns.get(name)
    if x is None or np.isfinite(x).mean() < 0.9:
        return None
    x = np.interp(np.arange(len(x)), np.flatnonzero(np.isfinite(x)), x[np.isfinite(x)])[WARM_UP:]
    if name in RATIOS:
        x = np.log(np.maximum(x, 1e-9))
    left = x - trend(x)
    return left / np.median(columns["reward_std"][WARM_UP:]) if name == "reward" else left


def trend(x: Floats) -> Floats:
    half = SPAN // 2
    padded = np.pad(x, half, mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, SPAN), axis=1)


def lag_1(x: Floats) -> float:
    return float(np.corrcoef(x[:-1], x[1:])[0, 1])


def fit(runs: dict[str, dict[str, Floats]]) -> dict[str, Any]:
    """Of runs' columns by name, what the module's docstring says."""
    kept: list[dict[str, Any]] = []
    pooled: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
    for run, columns in runs.items():
        own: dict[str, Any] = {"run": run}
        for name in COLUMNS:
            left = rest(name, columns)
            if left is None or left.std() < 1e-6:
                continue
            own[name] = [round(float(left.std()), 4), round(lag_1(left), 3)]
            pooled[name].append((left - left.mean()) / left.std())
        kept.append(own)
    return {
        "runs": kept,
        "quantiles": {name: np.quantile(np.concatenate(x), QUANTILES).round(3).tolist() for name, x in pooled.items()},
        "correlations": correlations(runs).round(2).tolist(),
    }


def correlations(runs: dict[str, dict[str, Floats]]) -> Floats:
    """Means over the runs, NaN pairs left out."""
    found = []
    for columns in runs.values():
        lefts = [rest(name, columns) for name in COLUMNS]
        table = np.array([np.full(len(lefts[0]), np.nan) if x is None else x for x in lefts])  # type: ignore[arg-type]
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(np.corrcoef(table))
    matrix = np.nanmean(found, axis=0)
    np.fill_diagonal(matrix, 1.0)
    return matrix


@cache
def frozen() -> dict[str, Any]:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def draw(rng: np.random.Generator, rows: int, scale: float) -> dict[str, Floats]:
    """Noise of one run by column: a real run's sizes and autocorrelations, times `scale`."""
    kept = frozen()
    own = kept["runs"][rng.integers(len(kept["runs"]))]
    matrix = np.array(kept["correlations"])
    values, vectors = np.linalg.eigh(matrix)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found = {}
    for name, fresh in zip(COLUMNS, root @ rng.standard_normal((len(COLUMNS), rows)), strict=True):
        size, lag = own.get(name) or kept["runs"][0][name]
        normal = filtered(fresh, max(lag, 0.0))
        ranks = np.searchsorted(np.sort(normal), normal) / max(rows - 1, 1)
        quantiles = kept["quantiles"][name]
        found[name] = scale * size * np.interp(ranks, np.linspace(0, 1, len(quantiles)), quantiles)
    return found


def filtered(fresh: Floats, lag: float) -> Floats:
    """An AR(1) of variance 1."""
    out = np.empty_like(fresh)
    last = fresh[0]
    keep = np.sqrt(1 - lag * lag)
    for row, value in enumerate(fresh):
        last = value if row == 0 else lag * last + keep * value
        out[row] = last
    return out


def main(paths: list[str]) -> int:
    from kleash.runlog.importers import read_log

    runs = {path.rstrip("/").split("runs/")[-1]: read_log(Path(path)).columns for path in paths}
    print(json.dumps(fit(runs), separators=(",", ":")).replace('{"run"', '\n{"run"').replace('"quant', '\n"quant'))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
