"""Builds the embedded tiny model: the corpus, the tokenizer, the training, the files. Run `python tools/build_tiny.py`.

Everything is seeded: on the same machine with the same versions and threads the same files come out, elsewhere a model that
differs by rounding. The model is trained in fp32 and stored in bf16.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kleash.demo import grammar

OUT = Path(__file__).parents[1] / "src/kleash/assets/tiny"
SEED = 0
NOTES = 51_200  # each is read once
VOCABULARY = 2048
CONTEXT = 256
BATCH = 64  # notes a step
POOL = 32  # batches whose notes are sorted by length together, so that little is padded
LEARNING_RATE = 4e-3
WARMUP = 40  # steps
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"


def build_tokenizer(notes: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the corpus: any text round-trips; encoding puts the BOS first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(notes, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
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


def train(model: LlamaForCausalLM, rows: list[list[int]], pad: int) -> None:
    """One pass over the rows: AdamW, warm-up, cosine to nothing."""
    steps = batches(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    model.train()
    for step, batch in enumerate(steps):
        rate = min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / len(steps)))
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        width = max(map(len, batch))
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in batch])
        logits = model(input_ids=ids[:, :-1]).logits  # the pads stand right: causal attention never sees them
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == len(steps) - 1:
            print(f"step {step:4d}  loss {loss.item():.3f} nats/token  {time.process_time():.0f} CPU-seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the model (default: the package's assets)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()

    notes = grammar.corpus(NOTES, SEED)
    tokenizer = build_tokenizer(notes)
    model = build_model(tokenizer)
    rows = [[*row, tokenizer.eos_token_id] for row in tokenizer(notes)["input_ids"]]
    tokens = sum(map(len, rows))
    print(f"{len(notes)} notes, {tokens} tokens, {tokens / len(notes):.1f} a note; {model.num_parameters()} parameters")
    train(model, rows, tokenizer.pad_token_id)

    model.eval().to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{size / 1e6:.2f} MB in {arguments.out}; {time.process_time():.0f} CPU-seconds, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
