"""Which two models: names, adapters, precisions, runs, shards, and what is said when they do not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drift.gguf_file import as_gguf
from tests.drift.pairs import random_documents
from tests.models import build
from tests.tolerances import FP32

from kleash.drift.compare import measure
from kleash.drift.sources import Asked, Pair, open_pair, split_name
from kleash.drift.texts import Text, prepared
from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.spec import Adapter


def forward(pair: Pair) -> Any:
    found = measure(pair, random_documents()).forward
    assert found is not None
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return build.checkpoint(tmp_path / "base")


def adapter_on(base: Path, directory: Path, *, recorded: str | None = None) -> Path:
    """A LoRA adapter whose B is not zero."""
    model = adapters.attach(build.model(), Adapter(rank=2), recorded or str(base), seed=3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    model.save_pretrained(directory, save_embedding_layers=False)
    return directory


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("kleash:tiny@bfloat16", ("kleash:tiny", "bfloat16")),
        ("x@4bit", ("x", "4bit")),
        ("runs/x@step-20", ("runs/x@step-20", None)),
        ("runs/x@step-20@float16", ("runs/x@step-20", "float16")),
        ("me@home/model", ("me@home/model", None)),
        ("@4bit", ("@4bit", None)),
    ],
)
def test_what_stands_after_the_at_sign(name: str, parts: tuple[str, str | None]) -> None:
    assert split_name(name) == parts


def test_an_adapter_is_toggled_in_one_model_and_equals_the_merged_one(base: Path, tmp_path: Path) -> None:
    adapter = adapter_on(base, tmp_path / "adapter")
    toggled = open_pair(str(base), str(adapter))
    assert toggled.base.opened.policy is toggled.tuned.opened.policy
    assert (toggled.base.opened.adapter, toggled.tuned.opened.adapter) == ("off", "on")
    assert (toggled.tuned.record.kind, toggled.tuned.record.adapter) == ("adapter", "LoRA r2")
    assert toggled.base.record.parameters == sum(p.numel() for p in build.model().parameters())
    assert toggled.base.record.fingerprint == open_pair(str(base), str(base)).base.record.fingerprint
    assert toggled.base.record.fingerprint["weights"] == toggled.tuned.record.fingerprint["weights"]
    assert toggled.base.record.fingerprint != toggled.tuned.record.fingerprint
    merged = adapters.load_adapter(build.model(), adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    build.tokenizer().save_pretrained(tmp_path / "merged")
    expected = forward(open_pair(str(base), str(tmp_path / "merged")))
    assert expected.mean() > 0.01
    assert forward(toggled) == pytest.approx(expected, abs=FP32)


def test_an_adapter_against_another_model_stands_on_its_own_base(base: Path, tmp_path: Path) -> None:
    adapter = adapter_on(base, tmp_path / "adapter")
    other = build.checkpoint(tmp_path / "other", seed=5)
    pair = open_pair(str(other), str(adapter))
    assert pair.base.opened.policy is not pair.tuned.opened.policy
    assert forward(pair).mean() > 10 * forward(open_pair(str(base), str(adapter))).mean() > 0
    both = open_pair(str(adapter), str(base))
    assert (both.base.opened.adapter, both.tuned.opened.adapter) == ("on", None)


@pytest.mark.parametrize("recorded", ["/gone/away", "someone/on-the-hub"])
def test_an_adapter_whose_base_is_not_here_goes_onto_the_one_named(base: Path, tmp_path: Path, recorded: str) -> None:
    adapter = adapter_on(base, tmp_path / "adapter", recorded=recorded)
    pair = open_pair(str(base), str(adapter))
    assert (pair.base.opened.adapter, pair.tuned.opened.adapter) == ("off", "on")
    assert pair.parity.notes == [f"the adapter names {recorded} as its base; it was put onto {base}"]


def test_an_adapter_of_another_shape_is_said(base: Path, tmp_path: Path) -> None:
    adapter = adapter_on(base, tmp_path / "adapter", recorded="/gone/away")
    other = build.checkpoint(tmp_path / "other", hidden_size=64)
    with pytest.raises(RunError, match="made for another base model"):
        open_pair(str(other), str(adapter))


def test_half_precision_is_widened_on_a_cpu_unless_asked_for(tmp_path: Path) -> None:
    build.model(dtype=torch.bfloat16).save_pretrained(tmp_path)
    build.tokenizer().save_pretrained(tmp_path)
    pair = open_pair(str(tmp_path), f"{tmp_path}@bfloat16", Asked(device="cpu"))
    assert (pair.base.record.dtype, pair.tuned.record.dtype) == ("float32", "bfloat16")
    assert 0 < forward(pair).mean() < 0.01


def test_a_run_s_directory_is_no_pair(tmp_path: Path) -> None:
    for step in (900, 50):
        (tmp_path / "trl" / f"checkpoint-{step}").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"checkpoints of the steps 50, 900; name one"):
        open_pair("kleash:tiny", str(tmp_path / "trl"))


def test_a_checkpoint_tells_its_step(base: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000040"
    shutil.copytree(base, checkpoint)
    (tmp_path / "run" / "best").symlink_to("checkpoints/step-000040")
    for name in (str(checkpoint), f"{tmp_path}/run@step-40", f"{tmp_path}/run/best"):
        pair = open_pair(str(base), name)
        assert pair.tuned.record.step == 40
        assert pair.base.record.step is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("actor/model_world_size_8_rank_0.pt", "verl.model_merger merge --backend fsdp --local_dir"),
        ("actor/dist_ckpt/x", "verl.model_merger merge --backend megatron --local_dir"),
        ("zero_to_fp32.py", "zero_to_fp32.py"),
    ],
)
def test_shards_are_told_what_merges_them(tmp_path: Path, made: str, said: str) -> None:
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).touch()
    with pytest.raises(UsageError, match="shards, not a model") as caught:
        open_pair("kleash:tiny", str(tmp_path))
    assert said in str(caught.value)


def test_different_tokenizers_leave_bits_a_byte_only(base: Path) -> None:
    pair = open_pair(str(base), "kleash:tiny")
    assert pair.compared.why_not is not None
    assert "different tokenizers: id 3 is 't3' in the base and '!' in tuned" in pair.compared.why_not
    assert "bits per byte" in pair.compared.why_not
    with pytest.raises(UsageError, match="different tokenizers"):
        measure(pair, random_documents())


def grown(directory: Path, words: list[str], **more: Any) -> Path:
    """The base with tokens added to tokenizer and model."""
    model, tokenizer = build.model(tie_word_embeddings=False), build.tokenizer()
    tokenizer.add_tokens(words, special_tokens=True)
    torch.manual_seed(1)
    model.resize_token_embeddings(build.VOCAB + len(words))
    for name, value in more.items():
        setattr(tokenizer, name, value)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_added_tokens_are_normal_and_their_mass_is_told(tmp_path: Path) -> None:
    base = build.checkpoint(tmp_path / "base", tie_word_embeddings=False)
    pair = open_pair(str(base), str(grown(tmp_path / "tuned", ["<new>", "<other>"])))
    assert pair.parity.tokenizer == "2 tokens added"
    assert (pair.parity.vocabulary, pair.compared.shared) == ((37, 39), 37)
    found = measure(pair, random_documents())
    assert found.forward is not None
    assert found.new_mass is not None
    assert found.forward == pytest.approx(np.zeros(len(found)), abs=FP32)  # renormalised: the old tokens have not moved
    assert found.new_mass.min() > 0


ASKING = "{% for m in messages %}{{ m.content }} {% endfor %}"


def test_a_template_that_writes_new_tokens_is_the_tuned_models_alone(tmp_path: Path) -> None:
    base = build.checkpoint(tmp_path / "base", tie_word_embeddings=False)
    tuned = grown(tmp_path / "tuned", ["<new>"], chat_template="<new> " + ASKING)
    pair = open_pair(str(base), str(tuned))
    assert (pair.parity.template, pair.parity.used_template) == ("only the tuned model has one", "each")
    text = Text(id="a", domain=None, prompt=(("user", "t5 t6"),), answer="t7 t8")
    (document,) = prepared([text], pair)
    assert document.prompt_base == (5, 6)
    assert document.prompt_tuned == (37, 5, 6)
    assert document.ids[:2] == (7, 8)
    assert measure(pair, [document]).non_finite == 0


@pytest.mark.parametrize(("template", "prompt"), [("base", (5,)), ("tuned", (9, 5)), ("each", (5,))])
def test_the_template_of_either_side_or_of_each(tmp_path: Path, template: Any, prompt: tuple[int, ...]) -> None:
    sides = []
    for name, extra in (("base", ""), ("tuned", "t9 ")):
        sides.append(build.checkpoint(tmp_path / name))
        tokenizer = build.tokenizer()
        tokenizer.chat_template = extra + ASKING
        tokenizer.save_pretrained(sides[-1])
    pair = open_pair(str(sides[0]), str(sides[1]), Asked(template=template))
    assert (pair.parity.template, pair.parity.used_template) == ("changed", template)
    (document,) = prepared([Text(id="a", domain=None, prompt=(("user", "t5"),), answer="t7")], pair)
    assert document.prompt_base == prompt
    assert document.prompt_tuned == ((9, 5) if template == "each" else prompt)


def test_renamed_reserved_tokens_and_other_ends_are_told(tmp_path: Path) -> None:
    sides = [grown(tmp_path / "a", ["<reserved>"]), grown(tmp_path / "b", ["<tool>"], eos_token="t3")]
    parity = open_pair(str(sides[0]), str(sides[1])).parity
    assert parity.tokenizer == "1 tokens renamed"
    assert parity.special_tokens == "eos 2 -> 3"


def test_a_gguf_file_is_the_model_it_was_made_from(tmp_path: Path) -> None:
    path = as_gguf(build.model(), tmp_path / "model.gguf")
    pair = open_pair(str(path), str(path))
    assert (pair.tuned.record.kind, pair.tuned.record.quantised) == ("quantised", "GGUF F32")
    for name, weight in build.model().state_dict().items():
        assert torch.equal(pair.base.opened.policy.causal.state_dict()[name], weight), name
    assert forward(pair).max() == 0
    with pytest.raises(UsageError, match="there is no file"):
        open_pair(str(path), str(tmp_path / "none.gguf"))
    with pytest.raises(UsageError, match="rounding of its own"):
        open_pair(str(path), f"{path}@4bit")


def test_a_rounded_model_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    base = build.checkpoint(tmp_path / "base", intermediate_size=64)
    pair = open_pair(str(base), f"{base}@8bit")
    assert pair.tuned.record.quantised == "torchao int8, groups of 32, on loading"
    assert 0 < forward(pair).mean() < forward(open_pair(str(base), f"{base}@4bit")).mean()
    pair.tuned.opened.policy.model.save_pretrained(tmp_path / "stored")
    build.tokenizer().save_pretrained(tmp_path / "stored")
    stored = open_pair(str(base), str(tmp_path / "stored"))
    assert stored.tuned.record.quantised == "torchao"
    assert stored.tuned.record.fingerprint == pair.tuned.record.fingerprint
    assert forward(stored) == pytest.approx(forward(pair), abs=FP32)
    with pytest.raises(UsageError, match="quantised already"):
        open_pair(str(base), f"{tmp_path / 'stored'}@4bit")


def test_a_package_that_reads_a_quantised_model_is_named(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="pip install bitsandbytes"):
        open_pair("kleash:tiny", str(base))


def test_memory_that_runs_out_on_loading_is_said(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(checkpoint_files, "read_model", none_left)
    with pytest.raises(RunError, match=r"while loading .*@bfloat16"):
        open_pair(str(base), str(base))
