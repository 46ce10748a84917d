"""Builds the embedded tiny model: the corpus, the tokenizer, the training, the files. Run `python tools/build_tiny.py`.

Everything is seeded: on the same machine with the same versions and threads the same files come out, elsewhere a
model that differs by rounding. The model is trained in fp32 and stored in bf16.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kleash.demo import grammar

OUT = Path(__file__).parents[1] / "src/kleash/assets/tiny"
SEED = 0
NOTES = 128_000  # each is read once
VOCABULARY = 2048
CONTEXT = 256
BATCH = 64  # notes a step
POOL = 32  # batches whose notes are sorted by length together, so that little is padded
MUON_RATE = 0.02  # for the layers' matrices
ADAM_RATE = 1.2e-2  # for the embedding and the norms
WARMUP = 40  # steps
SHARPNESS = 1.15  # the logits' scale after the training: what temperature 1 / 1.15 would do
DECAY = 0.6  # the last share of the steps, in which the rates fall to nothing
SPECIALS = PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(3)


def byte_pairs(notes: list[str]) -> models.BPE:
    """A byte-level BPE in which every word of the corpus is one token, and the room that is left goes to merges.

    Merges alone need about 2.5 tokens of the vocabulary for each word that they spell whole.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        notes, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    )
    words = sorted({word for note in notes for word, _ in trained.pre_tokenizer.pre_tokenize_str(note)})
    tokens = dict.fromkeys([*SPECIALS, *sorted(alphabet), *words])
    merges: list[tuple[str, str]] = []
    for left, right in json.loads(trained.to_str())["model"]["merges"]:
        if len(tokens) == VOCABULARY:
            break
        merges.append((left, right))
        tokens[left + right] = None
    return models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=True)


def build_tokenizer(notes: list[str]) -> PreTrainedTokenizerFast:
    """Any text round-trips; encoding puts the BOS first."""
    tokenizer = Tokenizer(byte_pairs(notes))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    torch.manual_seed(SEED)
    return LlamaForCausalLM(config)


def batches(rows: list[list[int]]) -> list[list[list[int]]]:
    """Batches of rows of similar length, in random order."""
    rng = random.Random(SEED)
    found: list[list[list[int]]] = []
    for start in range(0, len(rows), BATCH * POOL):
        pool = sorted(rows[start : start + BATCH * POOL], key=len)
        groups = [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
        rng.shuffle(groups)
        found += groups
    return found


class Muon:
    """Momentum made orthogonal, for matrices: three times fewer steps than AdamW needs on this corpus.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). torch's own runs
    its iteration in bf16, which most CPUs do slowly; this one stays in fp32 and takes all matrices of a shape at
    once.
    """

    def __init__(self, matrices: list[torch.nn.Parameter]) -> None:
        by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for matrix in matrices:
            by_shape.setdefault(matrix.shape, []).append(matrix)
        self._groups = [(group, torch.zeros(len(group), *shape)) for shape, group in by_shape.items()]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for matrices, momentum in self._groups:
            gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
            momentum.lerp_(gradient, 0.05)
            update = orthogonal(gradient.lerp(momentum, 0.95))
            rows, columns = matrices[0].shape
            for matrix, change in zip(matrices, update, strict=True):
                matrix.sub_(change, alpha=rate * max(1.0, rows / columns) ** 0.5)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """The matrices [n, rows, columns] with their singular values brought near 1 (five Newton–Schulz steps)."""
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def train(model: LlamaForCausalLM, rows: list[list[int]]) -> None:
    """Muon and AdamW, warm-up, constant rates, linear decay."""
    steps = batches(rows)
    inner = {name: p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name}
    muon = Muon(list(inner.values()))
    others = [p for name, p in model.named_parameters() if name not in inner]
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step, batch in enumerate(steps):
        rate = min(1.0, (step + 1) / WARMUP, (len(steps) - step) / (DECAY * len(steps)))
        adam.param_groups[0]["lr"] = ADAM_RATE * rate
        width = max(map(len, batch))
        ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in batch])
        logits = model(input_ids=ids[:, :-1]).logits  # the pads stand right: causal attention never sees them
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD_ID)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(MUON_RATE * rate)
        adam.step()
        if step % 100 == 0 or step == len(steps) - 1:
            print(
                f"step {step:4d}  loss {loss.item():.3f} nats/token  {time.process_time():.0f} CPU-seconds", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the model (default: the package's assets)")
    parser.add_argument("--threads", type=int, default=1, help="another number gives another rounding")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()

    notes = grammar.corpus(NOTES, SEED)
    tokenizer = build_tokenizer(notes)
    model = build_model()
    rows = [[*row, EOS_ID] for row in tokenizer(notes)["input_ids"]]
    tokens = sum(map(len, rows))
    print(f"{len(notes)} notes, {tokens} tokens, {tokens / len(notes):.1f} a note; {model.num_parameters()} parameters")
    train(model, rows)

    torch.nn.Module.to(model.eval(), torch.bfloat16)
    with torch.no_grad():
        model.model.norm.weight.mul_(SHARPNESS)
    model.generation_config = GenerationConfig(bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    seconds = f"{time.process_time():.0f} CPU-seconds, {time.perf_counter() - started:.0f} s"
    print(f"{size / 1e6:.2f} MB in {arguments.out}; {seconds}")


if __name__ == "__main__":
    main()
