"""The event of a judge that is a reward."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a judge did for the scores of `step` and of what was scored since the step before (a trial, an evaluation).

    name: the reward's. questions: asked, of which `remembered` were answered from the cache; failures: without a
    verdict, by reason. mass: mean probability on the allowed verdicts. bias: by how much an answer's probability of
    winning rises when it is shown first, over `bias_pairs` pairs; bias_error: its standard error, clustered by prompt.
    consistent: share of pairs whose two orders name the same winner. ties: pairs called even. requests: sent to a
    server, `retries` among them; cost by the prices given.
    """

    step: int
    name: str
    questions: int
    remembered: int
    failures: dict[str, int] = field(default_factory=dict)
    mass: float | None = None
    bias: float | None = None
    bias_error: float | None = None
    bias_pairs: int = 0
    consistent: float | None = None
    ties: int = 0
    requests: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float | None = None
    cost: float | None = None
