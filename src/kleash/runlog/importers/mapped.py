"""Columns that the user names (`--columns kl_ref=my_kl:nats/token`), and tables that use kleash's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from kleash.errors import UsageError
from kleash.records import Estimator, Unit
from kleash.runlog.importers.rollouts import ALONE
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary, bare
from kleash.runlog.series import COLUMNS, KLMeaning

KLS: tuple[KLMeaning, ...] = get_args(KLMeaning)
_NAMES = tuple(name for name in COLUMNS if not name.startswith("kl_") and not name.endswith("/"))
_FAMILIES = ("reward/", "held_out/", "gold/")

#: Tables whose names are those of `TrainLog`: their units are known.
PLAIN = Vocabulary(
    trainer="",
    method="table",
    signs=tuple((name,) for name in ("reward", "kl_ref", "kl_ref_sequence", "margin")),
    columns={name: name for name in (*_NAMES, "kl_ref_sequence", "kl_origin")},
    families=tuple((rf"{prefix}(.+)", prefix + "{}") for prefix in _FAMILIES),
    kl=tuple(
        KLSeries(
            key=name,
            meaning=name,
            estimator=None,
            unit="nats/sequence" if name == "kl_kto" else "nats/token",
            note="as the table has it",
        )
        for name in KLS
    ),
    absent="the table has no `kl_ref`; if one of its columns is one, say so: --columns kl_ref=KEY:nats/token",
)

#: Rollouts without a log have no column that a map could name.
ROLLOUTS = PLAIN.but(method="rollouts", signs=((ALONE,),), absent="rollouts hold none; the trainer's own log may")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What `--columns` said: the step's key, plain columns, and KLs with their units."""

    step: str | None
    plain: dict[str, str]
    kls: tuple[KLSeries, ...]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.plain) | {one.key for one in self.kls}

    def vocabulary(self, raw: Raw) -> Vocabulary:
        """The columns named, and no others.

        Raises:
            UsageError: a key is not in the log.
        """
        there = {bare(key) for key in raw.table.keys}
        missing = sorted(key for key in self.keys if bare(key) not in there)
        if missing:
            raise UsageError(f"--columns: {raw.path} has no number under {', '.join(map(repr, missing))}")
        return PLAIN.but(
            method="columns as given",
            signs=((),),
            columns={bare(key): column for key, column in self.plain.items()},
            families=(),
            kl=tuple(one.but(key=bare(one.key)) for one in self.kls),
            absent="no column is said to be the KL to the reference",
        )


def parsed(columns: Mapping[str, str]) -> Chosen:
    """{"reward": "score", "kl_ref": "my_kl:nats/token", "step": "iteration"}; a KL may add its estimator: "…:k3".

    Raises:
        UsageError: no such column, or a KL without its unit.
    """
    plain, kls, step = dict[str, str](), list[KLSeries](), None
    for column, spec in columns.items():
        if column == "step":
            step = spec
        elif column == "kl_ref_sequence":
            raise UsageError(f"--columns: write kl_ref={spec.split(':')[0]}:nats/sequence")
        elif column in KLS:
            kls.append(_kl(column, spec))
        elif column in _NAMES or (column.startswith(_FAMILIES) and not column.endswith("/")):
            plain[spec] = column
        else:
            raise UsageError(
                f"--columns: there is no column {column!r}; there are step, {', '.join((*KLS, *_NAMES))}, "
                f"{', '.join(prefix + 'NAME' for prefix in _FAMILIES)}"
            )
    if not plain and not kls:
        raise UsageError("--columns names no column besides the step: reward=KEY kl_ref=KEY:nats/token …")
    return Chosen(step, plain, tuple(kls))


def _kl(column: str, spec: str) -> KLSeries:
    parts = spec.split(":")
    estimator = parts.pop() if len(parts) > 2 and parts[-1] in get_args(Estimator) else None
    unit = parts.pop() if len(parts) > 1 and parts[-1] in get_args(Unit) else None
    if unit is None:
        raise UsageError(
            f"--columns: {column}={spec} says no unit; write {column}={spec}:nats/token, or :nats/sequence"
        )
    return KLSeries(
        key=":".join(parts),
        meaning=column,  # pyright: ignore[reportArgumentType]
        estimator=estimator,  # pyright: ignore[reportArgumentType]
        unit=unit,  # pyright: ignore[reportArgumentType]
        note="as you said",
    )
