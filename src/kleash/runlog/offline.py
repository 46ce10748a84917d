"""What runs on rows that are there already log: text (`kleash sft`), preference pairs (`dpo`), scores (`reward`)."""

from dataclasses import dataclass, field

from kleash.records import Reading, metric


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """One update of `kleash sft`. Its figures describe the policy *before* it."""

    step: int = field(metadata={"doc": "Number of the step, from 0."})
    epoch: float | None = metric("How often the rows have been gone through, before this step.")
    loss: float | None = metric("Mean −log π over the step's counted tokens, nats per token.")
    entropy: float | None = metric("Mean entropy of the policy's next-token distribution there, nats per token.")
    rows: int | None = metric("Rows of the step.")
    tokens: int | None = metric("Counted tokens of the step: those that the loss is the mean of.")
    padding: float | None = metric("Share of the positions computed that were padding.")
    grad_norm: float | None = metric("Global gradient norm before clipping.")
    updates_skipped: int | None = metric("1 where the update was not made, for its loss or gradient was not finite.")
    learning_rate: float | None = metric("Learning rate of this update.")
    seconds: float | None = metric("Wall-clock seconds of the step.")
    tokens_per_second: float | None = metric("Counted tokens per second of the step.")
    peak_memory_gb: float | None = metric("Peak memory so far, as in a step of `kleash train`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEvaluation:
    """The policy after `step` updates on the held-out rows.

    loss: mean −log π over their counted tokens, nats per token; kl_text: mean exact KL(policy‖reference) there, which
    is a KL on given text and not on the policy's own. Errors are standard errors, clustered by row.
    kl_ref, kl_ref_token, kl_origin, kl_origin_token: exact KLs on the policy's own words after the first held-out
    prompts, with the same noise each time; length, truncated, entropy: of these words.
    rows: sha256 of the held-out rows.
    """

    step: int
    loss: float
    n_rows: int
    n_tokens: int
    loss_error: float | None = None
    kl_text: float | None = None
    kl_text_error: float | None = None
    kl_ref: Reading | None = None
    kl_ref_token: Reading | None = None
    kl_origin: Reading | None = None
    kl_origin_token: Reading | None = None
    length: float | None = None
    truncated: float | None = None
    entropy: float | None = None
    rows: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairStep:
    """One update of `kleash dpo`. Its figures describe the policy *before* it, on the step's own pairs."""

    step: int = field(metadata={"doc": "Number of the step, from 0."})
    epoch: float | None = metric("How often the pairs have been gone through, before this step.")
    loss: float | None = metric("Mean of the loss over the step's pairs, in the loss's own unit.")
    beta: float | None = metric("The loss's beta in this step: units of reward per nat where the reference is in it.")
    accuracy: float | None = metric(
        "Share of pairs whose chosen answer has the higher implicit reward; a tie is a half."
    )
    reward_margin: float | None = metric("Mean implicit reward of chosen minus rejected, in the loss's own scale.")
    reward_chosen: float | None = metric("Mean implicit reward of the chosen answers.")
    reward_rejected: float | None = metric("Mean implicit reward of the rejected answers.")
    logprob_chosen: float | None = metric("Mean log π of the chosen answers, nats per sequence.")
    logprob_rejected: float | None = metric("Mean log π of the rejected answers, nats per sequence.")
    log_ratio_chosen: float | None = metric("Mean log π − log π_ref of the chosen answers, nats per sequence.")
    log_ratio_rejected: float | None = metric("The same of the rejected answers.")
    kl_text: float | None = metric(
        "Mean exact KL(policy‖reference) at the pairs' counted tokens, nats per token: on given text, not on the "
        "policy's own. Empty where the reference's log-probs are read from disk."
    )
    entropy: float | None = metric("Mean entropy of the policy's next-token distribution there, nats per token.")
    beta_floored: int | None = metric("1 where a beta that follows the pairs met its floor; empty for other losses.")
    bounded: int | None = metric("Texts whose value the loss continued linearly or kept off a pole.")
    kto_baseline: float | None = metric("KTO's z0 of the step, nats per sequence; empty for losses of pairs.")
    kto_baseline_clamped: int | None = metric("1 where z0 was below 0 and was taken for 0.")
    pairs: int | None = metric("Pairs of the step; for KTO, texts.")
    tokens: int | None = metric("Counted tokens of the step, of both sides.")
    grad_norm: float | None = metric("Global gradient norm before clipping.")
    updates_skipped: int | None = metric("1 where the update was not made, for its loss or gradient was not finite.")
    learning_rate: float | None = metric("Learning rate of this update.")
    seconds: float | None = metric("Wall-clock seconds of the step.")
    tokens_per_second: float | None = metric("Counted tokens per second of the step.")
    peak_memory_gb: float | None = metric("Peak memory so far, as in a step of `kleash train`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvaluation:
    """The policy after `step` updates: on pairs, and on what it writes itself.

    held_out: whether the pairs and prompts are held out; else they are the first of those trained on. accuracy, loss,
    reward_margin, logprob_chosen, logprob_rejected: means over the pairs, as in a step. chosen_change, margin_change:
    of log π(chosen) and of log π(chosen) − log π(rejected) since the first evaluation, nats per sequence. Errors are
    standard errors, clustered by prompt.
    kl_ref, kl_ref_token, kl_origin, kl_origin_token: exact KLs on the policy's own samples at temperature 1, the leash
    itself, with the same noise each time; length, truncated, entropy: of these samples.
    beta: in force from here on; target: that it is to hold; controller_held: why this reading did not move it.
    """

    step: int
    held_out: bool
    n_pairs: int
    pairs: str
    accuracy: float
    accuracy_error: float | None = None
    loss: float | None = None
    reward_margin: float | None = None
    logprob_chosen: float | None = None
    logprob_rejected: float | None = None
    chosen_change: float | None = None
    chosen_change_error: float | None = None
    margin_change: float | None = None
    margin_change_error: float | None = None
    kl_ref: Reading | None = None
    kl_ref_token: Reading | None = None
    kl_origin: Reading | None = None
    kl_origin_token: Reading | None = None
    length: float | None = None
    truncated: float | None = None
    entropy: float | None = None
    beta: float | None = None
    target: str | None = None
    controller_held: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStep:
    """One update of `kleash reward`. Its figures describe the reward model *before* it."""

    step: int = field(metadata={"doc": "Number of the step, from 0."})
    epoch: float | None = metric("How often the pairs have been gone through, before this step.")
    loss: float | None = metric("Mean over the step's pairs of what is minimised, in nats; a coin's is 0.693.")
    preference: float | None = metric("Its part without the centring term, nats.")
    centring: float | None = metric("Mean (r_c + r_r)², without its weight.")
    accuracy: float | None = metric(
        "Share of the step's pairs whose chosen answer has the higher score; a tie is half."
    )
    margin: float | None = metric("Mean r_c − r_r.")
    score: float | None = metric("Mean score of all answers.")
    pairs: int | None = metric("Pairs of the step.")
    grad_norm: float | None = metric("Global gradient norm before clipping.")
    updates_skipped: int | None = metric("1 where the update was not made, for its loss or gradient was not finite.")
    learning_rate: float | None = metric("Learning rate of this update.")
    seconds: float | None = metric("Wall-clock seconds of the step.")
    tokens_per_second: float | None = metric("Tokens of the answers per second of the step, what both share aside.")
    peak_memory_gb: float | None = metric("Peak memory so far, as in a step of `kleash train`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEvaluation:
    """The reward model after `step` updates on the held-out pairs, which are taken as independent.

    loss: mean −log σ(r_c − r_r), nats, without margin, centring or careless raters. accuracy with its 95 % interval
    (Wilson); a tie is half right. brier: mean (1 − σ(r_c − r_r))². calibration_error: the mean distance between
    confidence and accuracy over bins of confidence; bins: of each pairs, mean confidence, accuracy. margin: mean
    r_c − r_r. score, score_std: of all answers. rows: sha256 of the pairs as tokens.
    """

    step: int
    loss: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    n_pairs: int
    brier: float | None = None
    calibration_error: float | None = None
    bins: list[tuple[int, float, float]] = field(default_factory=list)
    margin: float | None = None
    score: float | None = None
    score_std: float | None = None
    rows: str | None = None
    seconds: float | None = None


OfflineStep = ScoreStep | TextStep | PairStep
OfflineEvaluation = ScoreEvaluation | TextEvaluation | PairEvaluation
