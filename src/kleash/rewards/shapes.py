"""Shapes: what is done to one reward's scores, in the order of the config, before they are weighed and added up.

    shape = [{ kind = "centre" }, { kind = "clip", at = 5 }]

Each kind maps a step's scores to as many numbers. All are pure functions of the scores, of `Samples`, and, for
`running`, of the `Moments` of all scores so far.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from kleash import text
from kleash.errors import UsageError
from kleash.rewards.shaping import Moments, Numbers, Samples, against, each, plus, sigmoid, soft_overlong, standard

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """min(max(s, −at), at). What it bounds is counted in `Step.scores_clipped`.

    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    at: float
    kind: Literal["clip"] = "clip"

    def __post_init__(self) -> None:
        _positive("clip", "at", self.at)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return each(scores, lambda s: min(max(s, -self.at), self.at))  # counted in Step.scores_clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """(s − mean) / std over every score since the start of the run, this step's included; 0 while they are all equal.

    Proved by: tests/rewards/test_shapes.py::test_running_equals_a_loop_over_the_whole_past
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["running"] = "running"

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return each(scores, lambda s: standard(s, moments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """(s − mean) / std over the scores of the same prompt in this step; 0 where they are all equal.

    Source: Shao et al. 2024 (GRPO), arXiv 2402.03300 §4.1.2; population standard deviation.
    Proved by: tests/rewards/test_shapes.py::test_group_equals_a_loop_over_groups
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["group"] = "group"

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        own: dict[int, list[float]] = {}
        for s, g in zip(scores, samples.group, strict=True):
            own.setdefault(g, []).extend([] if s is None else [s])
        of = {g: Moments().joined(values) for g, values in own.items()}
        return [None if s is None else standard(s, of[g]) for s, g in zip(scores, samples.group, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """s − the mean score of `samples` completions that the reference gave to the same prompt.

    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    samples: int = 1
    kind: Literal["centre"] = "centre"

    def __post_init__(self) -> None:
        _positive("centre", "samples", self.samples)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return against(scores, samples, self.samples, lambda s, ref: s - math.fsum(ref) / len(ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class Par:
    """Preference as reward: the mean over m of σ(s − r_m), r_m the scores of `samples` reference completions.

    Source: Fu et al. 2025 (PAR), arXiv 2502.18770: (1/M) Σ_m σ(r − r_ref^m).
    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    samples: int = 1
    kind: Literal["par"] = "par"

    def __post_init__(self) -> None:
        _positive("par", "samples", self.samples)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return against(scores, samples, self.samples, lambda s, ref: math.fsum(sigmoid(s - r) for r in ref) / len(ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid:
    """σ(s / scale) = 1 / (1 + exp(−s/scale)): between 0 and 1, whatever the reward.

    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    scale: float = 1.0
    kind: Literal["sigmoid"] = "sigmoid"

    def __post_init__(self) -> None:
        _positive("sigmoid", "scale", self.scale)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return each(scores, lambda s: sigmoid(s / self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSigmoid:
    """log σ(s / scale): at most 0; a large score gains almost nothing more, a low one costs linearly.

    Source: Wang et al. 2024, "Transforming and Combining Rewards for Aligning LLMs", arXiv 2402.00742 (LSC, with
    `centre` before it).
    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    scale: float = 1.0
    kind: Literal["log_sigmoid"] = "log_sigmoid"

    def __post_init__(self) -> None:
        _positive("log_sigmoid", "scale", self.scale)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return each(scores, lambda s: min(s, 0.0) / self.scale - math.log1p(math.exp(-abs(s) / self.scale)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """sign(s) log(1 + |s| / scale): a tail that falls like a power becomes one that falls exponentially.

    Source: Hafner et al. 2023 (DreamerV3), arXiv 2301.04104 (symlog).
    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    scale: float = 1.0
    kind: Literal["log"] = "log"

    def __post_init__(self) -> None:
        _positive("log", "scale", self.scale)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return each(scores, lambda s: math.copysign(math.log1p(abs(s) / self.scale), s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """s − weight × counted tokens.

    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    weight: float
    kind: Literal["length"] = "length"

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return plus(scores, [-self.weight * n for n in samples.lengths])


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """s + weight × the soft overlong punishment (0 up to limit − cache tokens, −1 from `limit` on, linear between).

    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 13.
    Proved by: tests/rewards/test_shapes.py::test_soft_overlong_is_the_papers_three_cases
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    limit: int
    cache: int
    weight: float = 1.0
    kind: Literal["overlong"] = "overlong"

    def __post_init__(self) -> None:
        if not 0 < self.cache <= self.limit:
            raise UsageError(f"rewards.shape overlong: cache = {self.cache} must be from 1 to limit = {self.limit}")

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return plus(scores, [self.weight * soft_overlong(n, self.limit, self.cache) for n in samples.lengths])


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """s − weight × seq-rep-n of the completion; one with fewer than n words has nothing that repeats.

    Source: Welleck et al. 2019, arXiv 1908.04319 §6 (seq-rep-n).
    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    weight: float
    n: int = 4
    kind: Literal["repetition"] = "repetition"

    def __post_init__(self) -> None:
        _positive("repetition", "n", self.n)

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return plus(scores, [-self.weight * (text.seq_rep_n([c], self.n) or 0.0) for c in samples.completions])


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A gate: s where the pattern occurs in the completion (`re.search`), `value` where it does not.

    Proved by: tests/rewards/test_shapes.py::test_each_shape_equals_its_formula
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    pattern: str
    value: float = 0.0
    kind: Literal["format"] = "format"

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"rewards.shape format: the pattern {self.pattern!r} is not valid: {error}") from None

    def __call__(self, scores: Numbers, samples: Samples, moments: Moments) -> Numbers:
        return [
            None if s is None else s if re.search(self.pattern, c) else self.value
            for s, c in zip(scores, samples.completions, strict=True)
        ]


Shape = Clip | Running | Group | Centre | Par | Sigmoid | LogSigmoid | Log | Length | Overlong | Repetition | Format
SHAPES: dict[str, type[Shape]] = {
    "clip": Clip,
    "running": Running,
    "group": Group,
    "centre": Centre,
    "par": Par,
    "sigmoid": Sigmoid,
    "log_sigmoid": LogSigmoid,
    "log": Log,
    "length": Length,
    "overlong": Overlong,
    "repetition": Repetition,
    "format": Format,
}


def _named(value: Any) -> Any:
    """A bare string names the kind."""
    return {"kind": value} if isinstance(value, str) else value


ShapeConfig = Annotated[Annotated[Shape, Field(discriminator="kind")], BeforeValidator(_named)]


def _positive(kind: str, name: str, value: float | int) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"rewards.shape {kind}: {name} = {value:g} must be above 0")
