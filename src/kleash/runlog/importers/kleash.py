"""kleash's own runs: events.jsonl and samples.jsonl of `kleash train`, `sft`, `dpo` and `reward`."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.records import Estimator, Reading, Step, Target
from kleash.runlog.importers.growing import Growing
from kleash.runlog.importers.own_samples import SampleIndex
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.understand import understand
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary
from kleash.runlog.offline import PairEvaluation, PairStep, ScoreEvaluation, ScoreStep, TextEvaluation, TextStep
from kleash.runlog.schema import (
    Checkpoint,
    Evaluation,
    Event,
    Found,
    ReferenceChange,
    Resume,
    Rollback,
    RunEnd,
    RunStart,
    from_json,
)
from kleash.runlog.series import COLUMNS, SavedModel, TrainLog

EVENTS = "events.jsonl"

#: Fields of the step records that are columns, by another name or the same.
STEP_FIELDS = {
    "beta": "beta", "score": "reward", "score_std": "reward_std", "groups_without_spread": "groups_without_spread",
    "score_length_correlation": "reward_length_correlation", "entropy": "entropy", "length": "length",
    "truncated": "truncated", "clip_fraction": "clip_fraction", "grad_norm": "grad_norm", "loss": "loss",
    "learning_rate": "learning_rate", "distinct_1": "distinct_1", "distinct_2": "distinct_2",
    "seq_rep_4": "seq_rep_4", "compression_ratio": "compression_ratio", "explained_variance": "explained_variance",
    "sampler_ratio_max": "importance_max", "reward_margin": "margin", "margin": "margin", "accuracy": "accuracy",
    "logprob_chosen": "logp_chosen", "logprob_rejected": "logp_rejected", "kto_baseline": "kl_kto",
}  # fmt: skip
READINGS = ("kl_ref", "kl_origin", "kl_old", "kl_sampler")
KL_KEYS = ("kl_ref", "kl_old", "kl_sampler", "kl_kto")
VOCABULARY = Vocabulary(
    trainer="kleash",
    method="",
    signs=(("loss",), ("kl_ref",), ("reward",)),
    columns={name: name for name in COLUMNS if not name.endswith("/") and name not in KL_KEYS},
    families=((r"(reward/.+|held_out/.+|gold/.+)", "{}"),),
    kl=(
        KLSeries(
            key="kl_ref",
            meaning="kl_ref",
            estimator="exact",
            unit="nats/token",
            note="of the policy before the step, on its own samples; docs/kl.md has the gradient of each penalty",
        ),
        KLSeries(
            key="kl_old",
            meaning="kl_old",
            estimator="exact",
            unit="nats/sequence",
            note="size of a step's updates, not drift",
        ),
        KLSeries(
            key="kl_sampler",
            meaning="kl_sampler",
            estimator="k1",
            unit="nats/token",
            note="the sampler's recorded log-probs against the trainer's",
        ),
        KLSeries(
            key="kl_kto",
            meaning="kl_kto",
            estimator="k1",
            unit="nats/sequence",
            note="KTO's baseline, from mismatched pairs: not the KL of what the policy writes",
        ),
    ),
    absent="this run measured no KL to a reference",
)


def read_run(folder: Path) -> TrainLog:
    """A run directory's log.

    Raises:
        RunError: no log there, a damaged one, or one without a step.
    """
    return OwnLog(folder).read()


class OwnLog:
    """The log of a run directory, read as often as asked for: each time what is new, and all that holds so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file, self._samples = Growing(folder / EVENTS), SampleIndex(folder / "samples.jsonl")
        self._run = _Run(folder)

    @property
    def found(self) -> list[Found]:
        """What the monitor found while the run went on, of what was read."""
        return self._run.found

    def read(self) -> TrainLog:
        """
        Raises:
            RunError: no log there, a damaged one, or one without a step.
        """
        if self._file.is_another:
            self._file.begin()
            self._run = _Run(self.folder)
        for _, line in self._file.new():
            try:
                event = from_json(line)
                if event is not None:
                    self._run.take(event)
            except RunError as error:
                place = self._file.number
                self._file.begin()
                self._run = _Run(self.folder)
                raise RunError(f"{self._file.path}, line {place}: {error}") from error
        self._samples.update()
        torn = ["the last line is torn, and left out"] if self._file.torn else []
        return understand(self._run.raw(self._samples, torn), (self._run.vocabulary(),))


class _Run:
    """What the events so far come to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, Table(str(folder / EVENTS))
        self.found: list[Found] = []
        self.start: RunStart | None = None
        self.config: dict[str, Any] = {}
        self.end: RunEnd | None = None
        self.target: Target | None = None
        self.estimators: dict[str, Estimator] = {}
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[Checkpoint] = []
        self.moves: list[ReferenceChange] = []
        self.observed: frozenset[str] = frozenset()

    def take(self, event: Event) -> None:
        match event:
            case RunStart():
                self.start, self.config = event, event.config
                self.observed = watched_only(event.config)
            case Resume() | Rollback():
                self.back(event)
            case Step():
                self.table.append(event.step, self.step(event))
            case TextStep() | PairStep() | ScoreStep():
                self.table.append(event.step, self.fields(event))
            case Evaluation() | TextEvaluation() | PairEvaluation() | ScoreEvaluation():
                self.evaluations.append((event.step, dict(self.evaluation(event))))
            case Checkpoint():
                self.checkpoints.append(event)
            case ReferenceChange():
                self.moves.append(event)
            case RunEnd():
                self.end = event
            case Found():
                self.found.append(event)
            case _:
                pass

    def back(self, event: Resume | Rollback) -> None:
        """What a resume or a rollback makes void (`runlog.schema.current` is the rule)."""
        self.table.void(event.step)
        self.evaluations = [one for one in self.evaluations if one[0] <= event.step]
        self.checkpoints = [one for one in self.checkpoints if one.step <= event.step]
        self.moves = [one for one in self.moves if one.kind == "forced" or one.step <= event.step]
        self.found = [one for one in self.found if one.step < event.step]
        self.end = None
        if isinstance(event, Resume) and event.config is not None:
            self.config = event.config

    def step(self, step: Step) -> Iterator[tuple[str, float]]:
        yield from self.fields(step)
        for kind in READINGS:
            yield from self.reading(kind, getattr(step, kind))
        yield from self.reading("kl_ref", step.kl_ref_token)
        yield from self.reading("kl_origin", step.kl_origin_token)
        for name, score in step.scores.items():
            if score is not None:
                yield f"{'gold' if name in self.observed else 'reward'}/{name}", score
        if step.target:
            self.target = Target.parse(step.target)
            yield "target", self.target.value

    def reading(self, kind: str, reading: Reading | None) -> Iterator[tuple[str, float]]:
        """In the column's unit; the others' values come from it by the lengths."""
        if reading is None:
            return
        self.estimators.setdefault(kind, reading.estimator)
        name = "kl_ref_sequence" if kind == "kl_ref" and reading.unit == "nats/sequence" else kind
        if kind != "kl_origin" or reading.unit == "nats/token":
            yield name, reading.value

    def fields(self, record: Any) -> Iterator[tuple[str, float]]:
        for field, column in STEP_FIELDS.items():
            value = getattr(record, field, None)
            if value is not None:
                yield column, value

    def evaluation(self, event: Any) -> Iterator[tuple[str, float]]:
        if isinstance(event, Evaluation):
            if event.score is not None:
                yield "held_out/score", event.score
            yield from ((f"held_out/{name}", score) for name, score in event.scores.items() if score is not None)
            if "guest_of" not in self.config:  # of a guest in another trainer these are the KL that was measured
                return
        accuracy = getattr(event, "accuracy", None)
        if accuracy is not None:
            yield "held_out/accuracy", accuracy
        if not isinstance(event, ScoreEvaluation):  # rows of their own: these verbs' steps measure no KL
            yield from self.reading("kl_ref", event.kl_ref)
            yield from self.reading("kl_ref", event.kl_ref_token)
            yield from self.reading("kl_origin", event.kl_origin_token)
            yield from (
                (name, value) for name in ("length", "truncated") if (value := getattr(event, name)) is not None
            )

    def vocabulary(self) -> Vocabulary:
        verb = self.start.verb if self.start else "train"
        kl = tuple(one.but(estimator=self.estimators.get(one.key, one.estimator)) for one in VOCABULARY.kl)
        return VOCABULARY.but(method=verb, kl=kl, target_unit=self.target.unit if self.target else None)

    def raw(self, samples: SampleIndex, notes: list[str]) -> Raw:
        """All so far; the table is a copy, for evaluations are no rows that a rollback to their step would void."""
        table = copy.deepcopy(self.table)
        for step, values in self.evaluations:
            table.append(step, values.items())
        moved = [f"the reference moved at step {move.step} ({move.kind})" for move in self.moves]
        return Raw(
            path=self.folder,
            table=table,
            container=EVENTS,
            config=self.config,
            notes=[*notes, *moved, *samples.notes],
            smoothing=1,
            checkpoints=tuple(
                SavedModel(step=one.step, path=path)
                for one in self.checkpoints
                if (path := self.folder / one.path).is_dir()  # older ones are deleted as the run goes on
            ),
            sample_steps=samples.steps,
            sample_marks=samples.marks,
            samples=samples.read,
            ended=self.end.reason if self.end else None,
        )


def watched_only(config: Mapping[str, Any]) -> frozenset[str]:
    """Names of the rewards of weight 0: scores that the run is not trained on."""
    rewards = config.get("rewards")
    found = set()
    for reward in rewards if isinstance(rewards, list) else []:
        if isinstance(reward, dict) and reward.get("weight") == 0:
            found.add(str(reward.get("name") or str(reward.get("use", "")).rpartition(":")[2]))
    return frozenset(found)
