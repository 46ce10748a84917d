"""From a trainer's keys to the one vocabulary: columns, and a tag for every KL."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kleash.errors import RunError
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary, bare
from kleash.runlog.series import Column, KLTag, TrainLog


def understand(raw: Raw, vocabularies: Sequence[Vocabulary]) -> TrainLog:
    """The log in one vocabulary: the first that fits.

    Raises:
        RunError: no vocabulary fits, or none of its columns has a row.
    """
    keys = {bare(key): key for key in raw.table.keys}
    if not keys:
        raise RunError(f"{raw.path} {_why_nothing(raw)}; there is nothing to judge")
    found = next((vocabulary for vocabulary in vocabularies if vocabulary.fits({*keys, *raw.marks})), None)
    if found is None:
        some = ", ".join(sorted(raw.table.keys)[:8])
        raise RunError(
            f"{raw.path} is no trainer's log that kleash knows (its keys: {some}, …); say what they mean: "
            "--columns reward=KEY kl_ref=KEY:nats/token"
        )
    vocabulary = found.adapt(found, raw)
    plain = plain_keys(vocabulary, keys)
    kls = [series for series in vocabulary.kl if {series.key, series.minus or series.key} <= set(keys)]
    axis = raw.table.axis({*plain.values(), *(keys[series.key] for series in kls)})
    if not len(axis):
        raise RunError(f"{raw.path} has rows of {found.label}, and none of them is a step of training")
    columns = {name: raw.table.column(key, axis) for name, key in plain.items()}
    beta = raw.config.get(vocabulary.strength or "")
    if isinstance(beta, int | float) and "beta" not in columns:
        columns["beta"] = np.full(len(axis), float(beta))
    measured = {series.key: kl_values(series, keys, raw, axis) for series in kls}
    tags = kl_columns(vocabulary, measured, columns)
    notes = [*raw.table.notes(), *raw.notes]
    return TrainLog(
        trainer=vocabulary.trainer,
        label=vocabulary.label,
        path=raw.path,
        step=axis,
        columns=columns,
        kl=tags,
        smoothing=(raw.smoothing or usual_gap(axis, columns)) if vocabulary.averages else 1,
        target_unit=vocabulary.target_unit,
        config=raw.config,
        checkpoints=raw.checkpoints,
        sample_steps=raw.sample_steps,
        sample_marks=raw.sample_marks,
        samples=raw.samples,
        ended=raw.ended,
        notes=tuple(notes),
    )


def _why_nothing(raw: Raw) -> str:
    """Rows that could not be read are not the same as none yet."""
    if len(raw.table.steps):
        return "has steps and no number at any of them (a number in JSON has no quotes)"
    return "has no row that can be read: " + "; ".join(raw.notes) if raw.notes else "has no step yet"


def kl_values(series: KLSeries, keys: dict[str, str], raw: Raw, axis: NDArray[np.int64]) -> Column:
    values = raw.table.column(keys[series.key], axis)
    return values - raw.table.column(keys[series.minus], axis) if series.minus else values


def plain_keys(vocabulary: Vocabulary, keys: dict[str, str]) -> dict[str, str]:
    """Column → the log's key; the vocabulary's order decides between two keys for one column."""
    found: dict[str, str] = {}
    for key, column in vocabulary.columns.items():
        if key in keys:
            found.setdefault(column, keys[key])
    for key, original in keys.items():
        for pattern, template in vocabulary.families:
            match = re.fullmatch(pattern, key)
            if match and key not in vocabulary.columns:
                found.setdefault(template.format(*match.groups()), original)
                break
    return found


def kl_columns(vocabulary: Vocabulary, measured: dict[str, Column], columns: dict[str, Column]) -> dict[str, KLTag]:
    """Adds the KL columns, in both units where the lengths are there, and returns their tags."""
    tags: dict[str, KLTag] = {}
    for series in vocabulary.kl:
        values = measured.get(series.key)
        if values is None:
            continue
        name = series.meaning if series.meaning not in tags else f"{series.meaning}/{series.key}"
        state = "measured"
        if not np.isfinite(values).any():
            state = "NaN"
        elif series.zero_is_absent and not np.any(values[np.isfinite(values)]):
            state = "logged as 0"
        tags[name] = tag_of(series, state)
        if state == "measured":
            for column, normal in in_both_units(name, series, values, columns.get("length")).items():
                columns.setdefault(column, normal)
    if "kl_ref" not in tags:
        tags["kl_ref"] = KLTag(
            meaning="kl_ref", key=None, estimator=None, unit=None, state="absent", note=vocabulary.absent
        )
    return tags


def tag_of(series: KLSeries, state: str) -> KLTag:
    return KLTag(
        meaning=series.meaning,
        key=series.key,
        estimator=series.estimator,
        unit=series.unit,
        clamp=series.clamp,
        state=state,  # pyright: ignore[reportArgumentType]
        note=series.note,
    )


def in_both_units(name: str, series: KLSeries, values: Column, length: Column | None) -> dict[str, Column]:
    """kl_ref has a column per unit; every other KL one, in the unit that COLUMNS gives it."""
    if name in ("kl_kto",) or "/" in name or series.unit is None:
        return {name: values}
    per_token = series.unit == "nats/token"
    found = {} if not per_token else {name: values}
    if not per_token and name == "kl_ref":
        found["kl_ref_sequence"] = values
    if length is not None:
        usable = np.where(length > 0, length, np.nan)
        if per_token and name == "kl_ref":
            found["kl_ref_sequence"] = values * usable
        elif not per_token:
            found[name] = values / usable
    return found


def usual_gap(axis: NDArray[np.int64], columns: dict[str, Column]) -> int:
    """Steps between two rows that have a number in what every training row holds."""
    for name in ("loss", "reward", "grad_norm"):
        if name in columns:
            there = axis[np.isfinite(columns[name])]
            if len(there) > 2:
                return max(1, int(np.median(np.diff(there))))
    return 1
