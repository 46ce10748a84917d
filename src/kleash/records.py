"""The plain records that travel between the parts of kleash, and the protocols. Standard library only.

Read this file first. All KL values are in nats. `None` means "not measured", never 0.
"""

import math
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from kleash.errors import UsageError

Unit = Literal["nats/token", "nats/sequence"]
KLKind = Literal["kl_ref", "kl_old", "kl_sampler", "kl_origin"]
Estimator = Literal["exact", "k1", "k2", "k3"]

#: What each kind of KL compares, in the order KL(first || second).
DIRECTIONS: dict[str, str] = {
    "kl_ref": "policy||reference",  # the leash
    "kl_old": "old policy||policy",  # the step size, what TRPO limits
    "kl_sampler": "sampler||policy",  # mismatch between the sampler's and the trainer's numbers
    "kl_origin": "policy||first reference",  # the whole way, where the reference follows the policy
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measured KL: the number, and all that is needed to know what it means.

    `standard_error` is clustered by prompt (CR1); None with fewer than two prompts. The quantiles are over the
    per-token (or per-sequence) values themselves, so they show the tail that a mean hides. `invalid` says why
    the value must not steer a controller (the number itself is kept as measured).
    """

    kind: KLKind
    value: float
    unit: Unit
    estimator: Estimator
    n_prompts: int
    n_sequences: int
    n_tokens: int
    standard_error: float | None = None
    q95: float | None = None
    q99: float | None = None
    max: float | None = None
    invalid: str | None = None

    @property
    def direction(self) -> str:
        return DIRECTIONS[self.kind]


@dataclass(frozen=True, slots=True)
class Target:
    """A KL target with its unit, written "4 nats/sequence" or "0.02 nats/token"."""

    value: float
    unit: Unit

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0):
            raise UsageError(f"a KL target must be a positive number of nats, not {self.value}")
        if self.unit not in ("nats/token", "nats/sequence"):
            raise UsageError(f'unit {self.unit!r} is unknown; use "nats/token" or "nats/sequence"')

    @classmethod
    def parse(cls, text: object, what: str = "KL target") -> "Target":
        """ "4 nats/sequence" → Target(4.0, "nats/sequence").

        Raises:
            UsageError: no unit, an unknown unit, or not a number.
        """
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*nats?\s*(?:/|per)\s*(token|sequence)\s*", str(text))
        if match is None:
            raise UsageError(
                f'the {what} {text!r} has no unit kleash knows; write it as "4 nats/sequence" or "0.02 nats/token"'
            )
        try:
            value = float(match[1])
        except ValueError:
            raise UsageError(f"the {what} {text!r} does not start with a number") from None
        return cls(value, "nats/token" if match[2] == "token" else "nats/sequence")

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """All that a beta controller remembers; `dataclasses.asdict` of it round-trips through JSON.

    `held` says why the last reading did not move beta (invalid, negative, …); None if it was used.
    `clipped` counts the updates in which beta met one of its bounds, `saturated` those in which the law took the error
    no larger than its `error_clip`. `transient` is the part of log beta that the
    law did not integrate (P and D of a PID): the integral is log beta minus it, so whoever sets `beta` sets the integral.
    """

    beta: float
    step: int = 0
    transient: float = 0.0
    previous_error: float | None = None
    clipped: int = 0
    saturated: int = 0
    held: str | None = None


@runtime_checkable
class Controller(Protocol):
    """beta's law: pure functions of an explicit state. A controller is a frozen dataclass, which is its config."""

    def init(self, beta: float) -> ControllerState:
        """The state at step 0 with this beta. Raises UsageError for a beta this law cannot start from."""
        ...

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The state for the next step. `reading` is kl_ref of the step just measured.

        Raises UsageError when the reading's unit is not the target's, or a target is needed and missing.
        """
        ...


Prompt = str | list[dict[str, Any]]
Scores = Sequence[float | None]


@runtime_checkable
class Reward(Protocol):
    """A rewarder: any function (plain or async) with this signature. None means "no score for this sample"."""

    def __call__(
        self, prompts: list[Prompt], completions: list[str], **columns: list[Any]
    ) -> Scores | Awaitable[Scores]: ...


def metric(doc: str) -> Any:
    """A field of `Step` that may be unmeasured, with the sentence that docs/metrics.md prints for it."""
    return field(default=None, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one training step measured, before its update. One line of events.jsonl; docs/metrics.md is made from it."""

    step: int = field(
        metadata={"doc": "Number of the step, from 0. Its figures describe the policy *before* its update."}
    )
    beta: float = field(metadata={"doc": "Strength of the KL penalty used in this step's loss."})
    kl_ref: Reading | None = metric(
        "KL(policy‖reference) per sequence: the leash. Exact (full vocabulary) unless `estimator` says otherwise."
    )
    kl_ref_token: Reading | None = metric("The same KL per token: summed over tokens, divided by their number.")
    kl_origin: Reading | None = metric(
        "KL(policy‖first reference) per sequence, exact, once the reference has moved; until then kl_ref is the same."
    )
    kl_origin_token: Reading | None = metric("The same KL per token.")
    kl_class: dict[str, float] = field(
        default_factory=dict,
        metadata={
            "doc": "kl_ref by the class of the sampled token (`eos`, `format`, `content`; docs/kl.md §9): nats per token of that class. Unweighted."
        },
    )
    kl_share: dict[str, float] = field(
        default_factory=dict, metadata={"doc": "Share of each class in the whole kl_ref. Empty where that is 0."}
    )
    kl_old: Reading | None = metric(
        "KL(old policy‖policy) per sequence at the step's last minibatch: the size of the update, not the leash. With a single update per step: after it, on the first prompts of every tenth step."
    )
    kl_sampler: Reading | None = metric(
        "KL(sampler‖policy) per token (k1): disagreement between the sampler's recorded log-probs and the trainer's."
    )
    kl_sampler_k3: Reading | None = metric("The same by k3, which is never negative and varies less where they agree.")
    sampler_ratio_max: float | None = metric("Largest policy/sampler ratio of a counted token; 1 where they agree.")
    staleness: float | None = metric("By how many updates samples are older than the weights they update, on average.")
    staleness_max: int | None = metric("The same, of the oldest.")
    target: str | None = metric("The KL target in force, with its unit.")
    budget: str | None = metric("The KL budget in force, with its unit.")
    controller_held: str | None = metric("Why the controller did not use the last reading; empty when it did.")
    beta_clipped: int | None = metric("Updates so far in which beta met one of its bounds.")
    error_clipped: int | None = metric("Updates so far in which the controller's error was cut to its clip.")
    price: float | None = metric(
        "Reward (shaped, if it is) gained per nat of kl_ref over the window (least squares over the last 20 steps). At the optimum of a fixed-beta run it equals beta."
    )
    score: float | None = metric("Mean total score (weighted sum of the rewards), raw, without the KL.")
    score_std: float | None = metric("Standard deviation of the total score over samples.")
    scores: dict[str, float | None] = field(default_factory=dict, metadata={"doc": "Mean of each reward by name."})
    scores_std: dict[str, float | None] = field(
        default_factory=dict, metadata={"doc": "Standard deviation of each reward by name."}
    )
    score_shaped: float | None = metric(
        "Mean total of the shaped scores: what the policy is trained on, an overlong punishment included. Empty where nothing changes the scores."
    )
    scores_shaped: dict[str, float | None] = field(
        default_factory=dict,
        metadata={"doc": "Mean of each reward after its `shape`, by name; of those that have one."},
    )
    scores_clipped: dict[str, int] = field(
        default_factory=dict, metadata={"doc": "Scores that a `clip` in the reward's `shape` bounded, by name."}
    )
    disagreement: dict[str, float | None] = field(
        default_factory=dict,
        metadata={
            "doc": "Of each ensemble: standard deviation between its members' scores of a sample, mean over samples."
        },
    )
    score_length_correlation: float | None = metric(
        "Pearson correlation of the raw total score with the counted tokens, over the step's samples."
    )
    tail: dict[str, float] = field(
        default_factory=dict,
        metadata={
            "doc": "Upper tail of the trained-on score under the reference, measured once, in the step with the 256th score at a kl_ref of at most 0.1: Hill's `index` with its 95 % interval (`low`, `high`), `p` of one as large if the tail were exponential, `n` scores."
        },
    )
    unscored: int = field(
        default=0,
        metadata={
            "doc": "Samples for which some reward returned None; they leave the loss and are never counted as 0."
        },
    )
    groups_without_spread: float | None = metric(
        "Share of prompt groups whose (shaped) scores are all equal: they give no reward gradient."
    )
    groups_drawn: int | None = metric(
        "Prompt groups sampled in the step, where those whose raw scores are all equal are replaced. The step's other figures, the KL too, are of the groups that it trained on."
    )
    groups_unreplaced: int | None = metric(
        "Groups without spread that stayed in the batch, for algorithm.max_draws was met."
    )
    score_drawn: float | None = metric("Mean total score, raw, of all groups that were drawn, replaced ones included.")
    score_greedy: float | None = metric(
        "Mean total score, raw, of the greedy completions of the step's prompts, for algorithms whose baseline it is."
    )
    greedy_unscored: int | None = metric(
        "Greedy completions without a score, whose place as a baseline the mean of the others took."
    )
    bits_per_byte: float | None = metric(
        "The reference's code length of the samples in bits per byte of text. Falling: simpler than the reference's own text; rising: foreign to it."
    )
    entropy: float | None = metric("Mean entropy of the policy's next-token distribution, nats per token.")
    entropy_coef: float | None = metric("Coefficient of the entropy bonus in this step's loss; empty without one.")
    entropy_coef_clipped: int | None = metric("Moves so far of the entropy bonus's coefficient that met a bound.")
    length: float | None = metric("Mean counted completion tokens per sample.")
    truncated: float | None = metric("Share of samples cut at max_new_tokens without an end token.")
    distinct_1: float | None = metric("Distinct words / all words over the step's samples.")
    distinct_2: float | None = metric("Distinct word pairs / all word pairs over the step's samples.")
    seq_rep_4: float | None = metric(
        "Share of repeated word 4-grams within a sample, mean over samples (Welleck 2019)."
    )
    compression_ratio: float | None = metric("Bytes of the samples / bytes after zlib: rises as they repeat.")
    loss: float | None = metric(
        "The value whose gradient was taken. With detached advantages it is not a performance measure."
    )
    grad_norm: float | None = metric("Global gradient norm before clipping.")
    updates: int | None = metric(
        "Updates taken in the step: epochs × minibatches, or fewer where step_kl_limit ended them."
    )
    updates_skipped: int | None = metric(
        "Updates of this step that were not made, for their loss or gradient was not finite; the batch is in the run's bad/."
    )
    clip_fraction: float | None = metric("Share of counted tokens whose importance ratio the surrogate clipped.")
    ratio_truncations: int | None = metric(
        "Tokens at which the importance ratio on the KL's charges was truncated, over the step's updates."
    )
    mismatch_fraction: float | None = metric("Share of tokens whose weight `train.mismatch` truncated or masked.")
    value_loss: float | None = metric(
        "Mean over the update's tokens of ½ (V − return)², clipped as configured; in squared units of reward."
    )
    value_clip_fraction: float | None = metric("Share of counted tokens at which the value's clip cut its gradient.")
    explained_variance: float | None = metric(
        "1 − Var(return − V) / Var(return) over the step's tokens, V before the update: 1 is perfect, 0 no better than a constant."
    )
    ptx_loss: float | None = metric(
        "Mean −log π per token of the texts that `algorithm.ptx` adds, before each update, without its weight; nats per token."
    )
    step_beta: float | None = metric(
        "Coefficient of the step-size penalty on kl_old in this step's loss (PPO's adaptive one): not the leash's beta."
    )
    step_beta_clipped: int | None = metric("Moves of step_beta so far that met one of its bounds.")
    k3_linear_fraction: float | None = metric("Share of counted tokens past K3_BOUND, where k3 continues linearly.")
    divergence: float | None = metric(
        "What a penalty of kind `chi2` or `renyi` charges, before beta: its divergence summed over a sequence's tokens, mean over samples. Empty for penalties that charge the KL."
    )
    chi2_linear_fraction: float | None = metric("Share of counted tokens past CHI2_BOUND, where χ² continues linearly.")
    learning_rate: float | None = metric("Learning rate of this step's update.")
    seconds: dict[str, float] = field(
        default_factory=dict,
        metadata={"doc": "Wall-clock seconds by phase: sample, score, reference, update, total."},
    )
    tokens_forward: dict[str, int] = field(
        default_factory=dict,
        metadata={
            "doc": "Token positions that went through the model by phase (sample, reference, update), counted by a hook."
        },
    )
    tokens_per_second: float | None = metric("Counted completion tokens per second of the whole step.")
    peak_memory_gb: float | None = metric(
        "Peak memory so far: CUDA allocator on a GPU, resident set of the process on a CPU."
    )
