"""Small tokenizers made in memory: byte-level (GPT-2's kind), metaspace with and without bytes (Llama 2's), slow."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
TEXT = "the cat sat on the mat. a dog ran to the end of the road; stop it now, café!"
CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_level(
    bos: bool = True, eos: bool = False, chat: str | None = None, pad: str | None = PAD
) -> PreTrainedTokenizerFast:
    """One token a byte, and " the"; `bos` and `eos` say what the post-processor puts around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [BOS, EOS, PAD, *alphabet, "Ġt", "Ġth", "Ġthe"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, bos, eos, chat, pad)


def metaspace() -> PreTrainedTokenizerFast:
    """Words with ▁ for the space before them; its decoder drops the space of the first token it sees."""
    words = sorted({"▁" + word for word in TEXT.split()})
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate([BOS, EOS, PAD, *words])}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _wrap(tokenizer, bos=True, eos=False, chat=None, pad=PAD)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Letters with ▁ for a space, bytes for what has no letter; the decoder drops the first space (Llama 2's)."""
    letters = sorted({"▁", "▁the", *(c for c in TEXT if c.isascii() and c != " ")})
    pieces = [BOS, EOS, PAD, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁t", "▁th"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token=PAD, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(tokenizer, bos=True, eos=False, chat=None, pad=PAD)


def slow(extra: int = 0) -> ByT5Tokenizer:
    """In plain Python, a token a byte: no begin token, and an end token after every text."""
    return ByT5Tokenizer(extra_ids=extra)


def _wrap(tokenizer: Tokenizer, bos: bool, eos: bool, chat: str | None, pad: str | None) -> PreTrainedTokenizerFast:
    around = f"{BOS if bos else ''} $A {EOS if eos else ''}".strip()
    tokenizer.add_special_tokens([BOS, EOS, PAD])
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=[(BOS, 0), (EOS, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=pad, chat_template=chat
    )
