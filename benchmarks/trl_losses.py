"""TRL's preference losses, called on given logits: its trainers' own methods on a stand-in that holds their settings.

No TRL trainer is made and nothing is trained. The model is a stand-in too: it returns the logits that it was made with,
and log-probs of them as TRL's fused head does.
"""

from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows of the policy's logits (a leaf) and the reference's, [B, L, V], on ids [B, L]; `completion` [B, L] is True
    for an answer's tokens. Rows of pairs: all the preferred answers, then the others, in the same order."""

    ids: Tensor
    completion: Tensor
    logits: Tensor
    ref_logits: Tensor

    @property
    def attended(self) -> Tensor:
        """Prompt and answer, without what pads them: [B, L]."""
        return self.completion.long().flip(1).cummax(1).values.flip(1)


def token_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """log p of each token after the first: [B, L − 1]."""
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


class Given(nn.Module):
    """Answers any ids that it knows with their logits."""

    is_gradient_checkpointing = False

    def __init__(self, known: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.known = known

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> SimpleNamespace:
        logits = next(logits for ids, logits in self.known if torch.equal(ids, input_ids))
        if labels is None:
            return SimpleNamespace(logits=logits)
        counts = labels[:, 1:] != -100
        log_probs = torch.where(counts, token_logprobs(logits, input_ids), 0.0)
        zeros = torch.zeros_like(log_probs)
        return SimpleNamespace(log_probs=log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())


def _stand_in(trainer: type, **settings: Any) -> Any:
    """An object with the trainer's functions and nothing of its making."""
    same = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x, unwrap_model=lambda x: x
    )
    made = trainer.__new__(trainer)
    for name, value in {"accelerator": same, "aux_loss_enabled": False, **settings}.items():
        object.__setattr__(made, name, value)
    return made


def _counters() -> dict[str, Any]:
    return {"train": defaultdict(list), "eval": defaultdict(list)}


def dpo(texts: Texts, **settings: Any) -> Tensor:
    """DPOTrainer._compute_loss. settings: those of DPOConfig that its loss reads."""
    from trl.trainer.dpo_trainer import DPOTrainer

    model, reference = Given([(texts.ids, texts.logits)]), Given([(texts.ids, texts.ref_logits)])
    trainer = _stand_in(
        DPOTrainer, model=model, ref_model=reference, precompute_ref_logps=False, use_weighting=False,
        loss_types=[settings.get("loss_type", "sigmoid")], loss_weights=[1.0], beta=settings["beta"],
        label_smoothing=settings.get("label_smoothing", 0.0), ld_alpha=settings.get("ld_alpha"),
        f_divergence_type=settings.get("f_divergence_type", "reverse_kl"),
        f_alpha_divergence_coef=settings.get("f_alpha_divergence_coef", 0.5), _metrics=_counters(),
        _total_train_tokens=0, _tp_size=1, args=SimpleNamespace(gradient_checkpointing_kwargs=None),
    )  # fmt: skip
    inputs = {
        "input_ids": texts.ids,
        "attention_mask": texts.attended,
        "completion_mask": texts.completion.long(),
    }
    return trainer._compute_loss(model, inputs, return_outputs=False)


def kto(texts: Texts, mismatched: Texts, labels: Tensor, **settings: Any) -> tuple[Tensor, float]:
    """KTOTrainer._compute_loss, and the KL that it logs. mismatched: row i is answer i − 1 put to prompt i."""
    from trl.trainer.kto_trainer import KTOTrainer

    model = Given([(texts.ids, texts.logits), (mismatched.ids, mismatched.logits)])
    reference = Given([(texts.ids, texts.ref_logits), (mismatched.ids, mismatched.ref_logits)])
    trainer = _stand_in(
        KTOTrainer, model=model, ref_model=reference, precompute_ref_logps=False, calculate_KL=True, loss_type="kto",
        beta=settings["beta"], desirable_weight=settings["desirable"], undesirable_weight=settings["undesirable"],
        _metrics=_counters(), _total_train_tokens=0, _tp_size=1,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
    )  # fmt: skip
    inputs = {"label": labels.long()}
    for prefix, of in (("", texts), ("KL_", mismatched)):
        inputs[f"{prefix}input_ids"] = of.ids
        inputs[f"{prefix}attention_mask"] = of.attended
        inputs[f"{prefix}completion_mask"] = of.completion.long()
    loss = trainer._compute_loss(model, inputs, return_outputs=False)
    return loss, trainer._metrics["train"]["kl"][-1]


def _concatenated(texts: Texts) -> dict[str, Tensor]:
    """A batch as CPOTrainer and ORPOTrainer read it."""
    n = len(texts.ids) // 2
    labels = torch.where(texts.completion, texts.ids, -100)
    batch = {}
    for side, rows in (("chosen", slice(0, n)), ("rejected", slice(n, 2 * n))):
        batch[f"{side}_input_ids"] = texts.ids[rows]
        batch[f"{side}_attention_mask"] = texts.attended[rows]
        batch[f"{side}_labels"] = labels[rows]
    return batch


def cpo(texts: Texts, **settings: Any) -> Tensor:
    """CPOTrainer.get_batch_loss_metrics."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    trainer = _stand_in(
        CPOTrainer, is_encoder_decoder=False, pad_token_id=0, alpha=0.0, label_smoothing=0.0, **settings
    )
    return trainer.get_batch_loss_metrics(Given([(texts.ids, texts.logits)]), _concatenated(texts))[0]


def smoothed(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float) -> Tensor:
    """CPOTrainer.cpo_loss of given numbers: its sigmoid loss still has label smoothing, DPOTrainer's has none."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    trainer = _stand_in(CPOTrainer, alpha=0.0, loss_type="sigmoid", beta=beta, label_smoothing=label_smoothing)
    return trainer.cpo_loss(chosen, rejected)[0].mean()


def orpo(texts: Texts, beta: float) -> Tensor:
    """ORPOTrainer.get_batch_loss_metrics."""
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    trainer = _stand_in(ORPOTrainer, is_encoder_decoder=False, padding_value=0, beta=beta)
    return trainer.get_batch_loss_metrics(Given([(texts.ids, texts.logits)]), _concatenated(texts))[0]
