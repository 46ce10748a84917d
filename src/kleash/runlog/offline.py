"""What runs on rows that are there already log: text (`kleash sft`), preference pairs (`dpo`), scores (`reward`)."""

from dataclasses import dataclass, field

from kleash.records import metric


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
    rows: sha256 of the held-out rows.
    """

    step: int
    loss: float
    n_rows: int
    n_tokens: int
    loss_error: float | None = None
    kl_text: float | None = None
    kl_text_error: float | None = None
    rows: str | None = None
    seconds: float | None = None


OfflineStep = TextStep
OfflineEvaluation = TextEvaluation
