"""A reward's shapes, one after the other, over a step's scores."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kleash.rewards.shapes import Centre, Clip, Par, Running, Shape
from kleash.rewards.shaping import Moments, Numbers, Samples


@dataclass(frozen=True, slots=True)
class ShapeMemory:
    """moments: of every shape of each reward. reference: each reward's scores of the reference, by prompt number."""

    moments: dict[str, tuple[Moments, ...]] = field(default_factory=dict)
    reference: dict[int, dict[str, Numbers]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it, every float exactly."""
        return {
            "moments": {name: [asdict(m) for m in moments] for name, moments in self.moments.items()},
            "reference": {str(prompt): scores for prompt, scores in self.reference.items()},
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "ShapeMemory":
        return cls(
            {name: tuple(Moments(**m) for m in moments) for name, moments in plain["moments"].items()},
            {int(prompt): scores for prompt, scores in plain["reference"].items()},
        )


class Shaped(NamedTuple):
    """scores: after the last shape. moments: one for each shape. clipped: scores bounded; None without a clip."""

    scores: Numbers
    moments: tuple[Moments, ...]
    clipped: int | None


def shaped(shapes: Sequence[Shape], scores: Numbers, samples: Samples, moments: Sequence[Moments] = ()) -> Shaped:
    """Every shape in turn; `running` first takes this step's scores, as they reach it, into its moments.

    Args:
        moments: those of the step before, one for each shape. Of another number of shapes (none at the start of a run,
            or a config changed on resume) they are begun anew.

    Proved by: tests/rewards/test_shapes.py::test_running_equals_a_loop_over_the_whole_past
    """
    after: list[Moments] = []
    bounded: list[bool] = []
    remembered = moments if len(moments) == len(shapes) else [Moments()] * len(shapes)
    for shape, before in zip(shapes, remembered, strict=True):
        known = before.joined([s for s in scores if s is not None]) if isinstance(shape, Running) else before
        new = shape(scores, samples, known)
        if isinstance(shape, Clip):
            bounded += [a != b for a, b in zip(scores, new, strict=True)]
        scores = new
        after.append(known)
    clipped = sum(bounded) if any(isinstance(shape, Clip) for shape in shapes) else None
    return Shaped(scores, tuple(after), clipped)


def reference_samples(shapes: Sequence[Shape]) -> int:
    """How many completions of the reference the shapes ask for at each prompt; 0 for none."""
    return max((shape.samples for shape in shapes if isinstance(shape, Centre | Par)), default=0)
