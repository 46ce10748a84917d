"""kleash.kl and kleash.beta inside a loop of one's own: plain torch and transformers, no kleash.training.

python examples/torch_loop.py              60 steps on kleash:tiny, about 90 CPU-seconds
python examples/torch_loop.py ./my-model   any Llama-like model whose head is `lm_head` over `model`
"""

import copy
import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from kleash.beta import PI
from kleash.kl.fused import fused
from kleash.kl.measure import measure
from kleash.kl.penalties import Exact, Ratios
from kleash.models.catalog import resolve
from kleash.records import Target
from kleash.rl.advantages import leave_one_out, leave_one_out_alive
from kleash.tensors import Head, Look

PROMPTS = ["The film", "We booked the hotel and", "My first phone", "Last week the train"]
GROUP, NEW_TOKENS = 16, 24
TARGET = Target.parse("4 nats/sequence")


def sample(model: Any, tokenizer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """GROUP completions of each prompt: ids [B, P+T], attention [B, P+T], and which completion tokens count [B, T]."""
    given = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    ids, seen = (given[name].repeat_interleave(GROUP, 0) for name in ("input_ids", "attention_mask"))
    whole = model.generate(
        ids, attention_mask=seen, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=NEW_TOKENS
    )
    ended = whole[:, ids.shape[1] :] == tokenizer.eos_token_id
    mask = ended.cumsum(1) - ended.long() == 0  # up to and including the first end token
    return whole, torch.cat([seen, mask.long()], 1), mask


def hidden_states(model: Any, ids: Tensor, attention: Tensor, length: int) -> Tensor:
    """The final hidden states that predict the last `length` tokens."""
    position = (attention.cumsum(1) - 1).clamp_min(0)
    out = model.model(input_ids=ids, attention_mask=attention, position_ids=position)
    return out.last_hidden_state[:, -length - 1 : -1]


def head(model: Any, tokenizer: Any) -> Head:
    return Head(weight=model.lm_head.weight, bias=None, vocab=len(tokenizer))


def objective(look: Look, mask: Tensor, group: Tensor, score: Tensor, beta: float) -> Tensor:
    """RLOO with the exact KL: a live term of the loss, and a detached charge for the KL to come (docs/kl.md §4)."""
    one = torch.ones_like(look.logprobs)  # one update a step: every importance ratio is 1
    kl = Exact().terms(look, mask, Ratios(token=one, before=one, through=one))
    credit = leave_one_out(score, torch.ones_like(score, dtype=torch.bool), group)[:, None]
    credit = credit - beta * leave_one_out_alive(kl.to_go, mask, group)
    per_token = -credit * look.logprobs + beta * kl.own
    return torch.where(mask, per_token, 0.0).sum() / (len(mask) * NEW_TOKENS)


def main(name: str = "kleash:tiny", steps: int = 60) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve(name), padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(resolve(name), dtype=torch.float32).eval()
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.0)
    judge = SentimentIntensityAnalyzer()
    group = torch.arange(len(PROMPTS)).repeat_interleave(GROUP)
    controller = PI()
    state = controller.init(0.05)

    for step in range(steps):
        with torch.no_grad():
            ids, attention, mask = sample(policy, tokenizer)
            length = mask.shape[1]
            ref_hidden = hidden_states(reference, ids, attention, length)
        texts = tokenizer.batch_decode(ids[:, -length:], skip_special_tokens=True)
        score = torch.tensor([judge.polarity_scores(text)["compound"] for text in texts])

        # Log-probs, entropies and the exact KL in one pass over the head: no tensor of tokens × vocabulary.
        seen = fused(
            hidden_states(policy, ids, attention, length),
            head(policy, tokenizer),
            ids[:, -length:],
            ref_hidden=ref_hidden,
            ref_head=head(reference, tokenizer),
        )
        reading = measure(seen.kl, mask, group, kind="kl_ref", estimator="exact", unit="nats/sequence")

        look = Look(seen.logprobs, seen.entropy, ref=seen.ref_logprobs, kl=seen.kl)
        loss = objective(look, mask, group, score, state.beta)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0 or step == steps - 1:
            print(
                f"step {step:3d}  KL {reading.value:5.2f} ± {reading.standard_error:.2f} {reading.unit} "
                f"(target {TARGET})  reward {score.mean():+.3f}  beta {state.beta:.4f}  {texts[0][:40]!r}"
            )
        state = controller.update(state, reading, TARGET)


if __name__ == "__main__":
    main(*sys.argv[1:2])
