"""kleash's preference losses beside TRL's own on the same logits; prints docs/runs/preference-losses.md.

    make bench-preference-losses                  (seconds; TRL lives in an environment of its own)

Loss and gradient with respect to the policy's logits, in float32. Nothing is trained.
"""

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from benchmarks import trl_losses as trl
from benchmarks.trl_losses import Texts, token_logprobs
from torch import Tensor

from kleash.algorithms.preference import LOSSES, TEXT_LOSSES
from kleash.rl.kto import mismatched, mismatched_baseline
from kleash.tensors import Look

N, P, L, V = 6, 4, 14, 11
BETA, SEED = 0.3, 0


def made(rows: int, seed: int = SEED, away: float = 0.5) -> Texts:
    """Random texts of unequal length. The policy's logits are the reference's and noise of deviation `away`."""
    g = torch.Generator().manual_seed(seed)
    ref = torch.randn(rows, L, V, generator=g)
    ids = torch.randint(V, (rows, L), generator=g)
    lengths = torch.randint(2, L - P + 1, (rows, 1), generator=g)
    position = torch.arange(L)
    completion = (position >= P) & (position < P + lengths)
    return Texts(ids, completion, (ref + away * torch.randn(rows, L, V, generator=g)).requires_grad_(), ref)


def pairs_look(texts: Texts) -> tuple[Look, Tensor]:
    """What our loss reads: rows preferred, other, preferred, …"""
    order = torch.arange(len(texts.ids)).reshape(2, -1).T.reshape(-1)
    logprobs, ref = (token_logprobs(x, texts.ids)[order] for x in (texts.logits, texts.ref_logits))
    return Look(logprobs=logprobs, entropy=torch.zeros_like(ref), ref=ref), texts.completion[:, 1:][order]


def ours(texts: Texts, kind: str, **fields: Any) -> Tensor:
    loss, (look, mask) = LOSSES[kind](**{"beta": BETA, **fields}), pairs_look(texts)
    return loss.loss(look, mask, loss.beta).loss.mean()


def chosen_means(texts: Texts, of: Tensor) -> Tensor:
    """Mean over texts of the mean over tokens of the preferred answers' log-probs."""
    mask = texts.completion[:N, 1:]
    return (torch.where(mask, of[:N], 0.0).sum(1) / mask.sum(1)).mean()


def with_trls_likelihood(texts: Texts, kind: str, prompt: bool, **fields: Any) -> Tensor:
    """Our loss, its likelihood term replaced by TRL's: one mean over all tokens of the batch, or also the prompts'."""
    logprobs = token_logprobs(texts.logits, texts.ids)
    every = (texts.attended.bool() if prompt else texts.completion)[:N, 1:]
    return ours(texts, kind, **fields) + chosen_means(texts, logprobs) - logprobs[:N][every].mean()


def smoothed(texts: Texts, flip: float) -> Tensor:
    ratio = token_logprobs(texts.logits, texts.ids) - token_logprobs(texts.ref_logits, texts.ids)
    ratio = torch.where(texts.completion[:, 1:], ratio, 0.0).sum(1)
    return trl.smoothed(ratio[:N], ratio[N:], BETA, flip)


F = {"kind": "f_dpo"}
#: Our config; TRL's; both on Texts; why they differ, where they do.
PAIRS: list[tuple[str, str, Callable[[Texts], Tensor], Callable[[Texts], Tensor], str]] = [
    ("dpo", "DPO: sigmoid", partial(ours, kind="dpo"), partial(trl.dpo, beta=BETA), ""),
    ('dpo, length = "mean"', "DPO: sigmoid_norm", partial(ours, kind="dpo", length="mean"),
     partial(trl.dpo, beta=BETA, loss_type="sigmoid_norm"), ""),
    ("cdpo, flip = 0.2", "DPO: sigmoid, label_smoothing = 0.2", partial(ours, kind="cdpo", flip=0.2),
     partial(trl.dpo, beta=BETA, label_smoothing=0.2), "TRL's `sigmoid` does not read label_smoothing: it is `dpo`"),
    ("cdpo, flip = 0.2", "CPO's sigmoid on log-ratios, label_smoothing = 0.2", partial(ours, kind="cdpo", flip=0.2),
     partial(smoothed, flip=0.2), ""),
    ("robust_dpo, flip = 0.2", "DPO: robust, label_smoothing = 0.2", partial(ours, kind="robust_dpo", flip=0.2),
     partial(trl.dpo, beta=BETA, loss_type="robust", label_smoothing=0.2), ""),
    ("ipo", "DPO: ipo", partial(ours, kind="ipo"), partial(trl.dpo, beta=BETA, loss_type="ipo"),
     "TRL divides by each text's tokens; the paper's formula does not"),
    ('ipo, length = "mean"', "DPO: ipo", partial(ours, kind="ipo", length="mean"),
     partial(trl.dpo, beta=BETA, loss_type="ipo"), ""),
    ("hinge", "DPO: hinge", partial(ours, kind="hinge"), partial(trl.dpo, beta=BETA, loss_type="hinge"), ""),
    ("exo, smoothing = 0.1", "DPO: exo_pair, label_smoothing = 0.1", partial(ours, kind="exo", smoothing=0.1),
     partial(trl.dpo, beta=BETA, loss_type="exo_pair", label_smoothing=0.1), ""),
    ("f_dpo, forward_kl", "DPO: forward_kl", partial(ours, **F, divergence="forward_kl"),
     partial(trl.dpo, beta=BETA, f_divergence_type="forward_kl"), ""),
    ("f_dpo, js", "DPO: js_divergence", partial(ours, **F, divergence="js"),
     partial(trl.dpo, beta=BETA, f_divergence_type="js_divergence"), ""),
    ("f_dpo, alpha = 0.3", "DPO: alpha_divergence, coef = 0.3", partial(ours, **F, divergence="alpha", alpha=0.3),
     partial(trl.dpo, beta=BETA, f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.3),
     "TRL's coefficient is 1 − the paper's α: its 1 is the reverse KL, the paper's 0"),
    ("f_dpo, alpha = 0.3", "DPO: alpha_divergence, coef = 0.7", partial(ours, **F, divergence="alpha", alpha=0.3),
     partial(trl.dpo, beta=BETA, f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.7), ""),
    ("ld_dpo, alpha = 0.4", "DPO: sigmoid, ld_alpha = 0.4", partial(ours, kind="ld_dpo", alpha=0.4),
     partial(trl.dpo, beta=BETA, ld_alpha=0.4), ""),
    ("orpo", "ORPO", partial(ours, kind="orpo"), partial(trl.orpo, beta=BETA),
     "TRL's likelihood is one mean over all tokens of prompts and answers; ours, as the paper's, is of each answer "
     "given its prompt"),
    ("orpo, with TRL's likelihood term", "ORPO", partial(with_trls_likelihood, kind="orpo", prompt=True),
     partial(trl.orpo, beta=BETA), ""),
    ("simpo, gamma = 0.5", "CPO: simpo, simpo_gamma = 0.5, cpo_alpha = 0", partial(ours, kind="simpo", gamma=0.5),
     partial(trl.cpo, beta=BETA, loss_type="simpo", simpo_gamma=0.5, cpo_alpha=0.0), ""),
    ("cpo", "CPO: sigmoid, cpo_alpha = 1", partial(ours, kind="cpo"),
     partial(trl.cpo, beta=BETA, loss_type="sigmoid", cpo_alpha=1.0),
     "TRL's likelihood is one mean over all answers' tokens, so long answers weigh more; ours is a mean over answers"),
    ("cpo, with TRL's likelihood term", "CPO: sigmoid, cpo_alpha = 1",
     partial(with_trls_likelihood, kind="cpo", prompt=False),
     partial(trl.cpo, beta=BETA, loss_type="sigmoid", cpo_alpha=1.0), ""),
]  # fmt: skip


def kto_texts(off: float) -> tuple[Texts, Texts, Tensor]:
    """Texts of 2N prompts, the same answers each put to the next prompt, and labels. off: of the policy there."""
    texts = made(2 * N, SEED + 1)
    before = (torch.arange(2 * N) - 1) % (2 * N)
    ids = torch.cat([texts.ids[:, :P], texts.ids[before][:, P:]], 1)
    other = made(2 * N, SEED + 2)
    chosen = torch.nn.functional.one_hot(ids.roll(-1, 1), V)  # the policy likes those tokens more, or less
    moved = other.logits.detach() + off * chosen
    return texts, Texts(ids, texts.completion[before], moved, other.ref_logits), torch.arange(2 * N) % 3 > 0


def our_kto(texts: Texts, asked: Texts, labels: Tensor, **fields: Any) -> tuple[Tensor, float]:
    """The loss, and the baseline. Each row has a prompt of its own."""
    pairing = mismatched(torch.arange(len(texts.ids)))
    assert pairing.text.tolist() == [(i - 1) % len(texts.ids) for i in pairing.prompt.tolist()]
    ratio = token_logprobs(asked.logits, asked.ids) - token_logprobs(asked.ref_logits, asked.ids)
    z0 = mismatched_baseline(torch.where(asked.completion[:, 1:], ratio, 0.0).sum(1)[pairing.prompt])
    assert z0.value is not None
    loss = TEXT_LOSSES["kto"](beta=BETA, **fields)
    logprobs, ref = (token_logprobs(x, texts.ids) for x in (texts.logits, texts.ref_logits))
    look = Look(logprobs=logprobs, entropy=torch.zeros_like(ref), ref=ref)
    return loss.loss(look, texts.completion[:, 1:], labels, z0.value, BETA).loss.mean(), z0.value


def row(name: str, theirs: str, a: Tensor, b: Tensor, texts: Texts, why: str) -> list[str]:
    g, h = (torch.autograd.grad(x, texts.logits, retain_graph=True)[0].double() for x in (a, b))
    apart = f"{float((g - h).norm() / h.norm()):.1e}"
    return [name, theirs, f"{a.item():.6f}", f"{b.item():.6f}", f"{abs(a.item() - b.item()):.1e}", apart, why]


def same_rows() -> list[list[str]]:
    texts = made(2 * N)
    rows = [row(mine, theirs, a(texts), b(texts), texts, why) for mine, theirs, a, b, why in PAIRS]
    weights = {"desirable": 1.0, "undesirable": 1.3}
    for off in (0.3, -0.3):
        texts, asked, labels = kto_texts(off)
        a, z0 = our_kto(texts, asked, labels, **weights)
        b, theirs = trl.kto(texts, asked, labels, beta=BETA, **weights)
        rows.append(row(f"kto, z0 = {z0:.4f}", f"KTO: kto, kl = {theirs:.4f}", a, b, texts, ""))
    return rows


def far(texts: Texts, name: str, theirs: str, a: Callable[[Texts], Tensor], b: Callable[[Texts], Tensor]) -> list[str]:
    cells = [name, theirs]
    for loss in (a, b):
        value = loss(texts)
        (gradient,) = torch.autograd.grad(value, texts.logits)
        cells.append(f"{value.item():.3g}, {float(gradient.norm()):.3g}")
    return cells


def far_rows() -> list[list[str]]:
    """Both answers of each pair 25 nats a token below the reference; or of probability 1."""
    texts = made(2 * N)
    answers = torch.nn.functional.one_hot(texts.ids.roll(-1, 1), V)
    below = replace(texts, logits=(texts.ref_logits - 25.0 * answers).requires_grad_())
    certain = replace(texts, logits=(200.0 * answers).requires_grad_())
    coef = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3}
    return [
        far(below, "f_dpo, forward_kl", "DPO: forward_kl", partial(ours, **F, divergence="forward_kl"),
            partial(trl.dpo, beta=BETA, f_divergence_type="forward_kl")),
        far(below, "f_dpo, alpha = 0.7", "DPO: alpha_divergence, coef = 0.3",
            partial(ours, **F, divergence="alpha", alpha=0.7), partial(trl.dpo, beta=BETA, **coef)),
        far(certain, "orpo", "ORPO", partial(ours, kind="orpo"), partial(trl.orpo, beta=BETA)),
    ]  # fmt: skip


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


HEAD = f"""# Preference losses: kleash's beside TRL's

Printed by `make bench-preference-losses` (`python -m benchmarks.preference_losses`). TRL's numbers come from its
trainers' own methods (`_compute_loss` of `DPOTrainer` and `KTOTrainer`, `get_batch_loss_metrics` of `CPOTrainer` and
`ORPOTrainer`) on a stand-in that holds their settings; both sides differentiate the same leaf, the policy's logits.
Random logits of {N} pairs, {P} tokens of prompt, answers of 2 to {L - P} tokens, a vocabulary of {V}, float32,
beta {BETA}. *Apart* is ‖g − g′‖/‖g′‖ of the two gradients.
"""

FAR = """## Far from the reference

Loss and gradient norm where both answers have left the reference by 25 nats a token, or have probability 1. Ours go on
as the tangent, finite and counted (`bounded`).
"""


def main() -> None:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    print(HEAD + f"\nPython {platform.python_version()}, {packages}.\n")
    heads = ["`[loss]`", "TRL", "loss: kleash", "TRL", "difference", "apart", "why"]
    print(table(heads, same_rows()))
    print("\nTRL has no beta-DPO.\n\n" + FAR)
    print(table(["`[loss]`", "TRL", "kleash: loss, ‖g‖", "TRL: loss, ‖g‖"], far_rows()))


if __name__ == "__main__":
    main()
