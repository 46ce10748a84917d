"""Loading: what comes out right, and a sentence for everything that is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tolerances
from tests.models import build

from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.load import load, pick_device
from kleash.models.spec import Adapter, ModelSpec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build.checkpoint(tmp_path / "model")


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# ── what comes out ──────────────────────────────────────────────────────────────────────────────────────


def test_a_full_model(model: Path) -> None:
    loaded = load(ModelSpec(str(model)))
    assert (loaded.name, loaded.source, loaded.context, loaded.adapter) == (str(model), model, 64, None)
    assert loaded.paths == ("packed", "cached", "two_stage", "plain")
    assert {p.dtype for p in loaded.policy.trainable()} == {torch.float32}
    sample = build.rollout()
    truth = build.single_rows(build.model().base_model, sample)
    torch.testing.assert_close(
        loaded.policy.hidden(sample)[sample.mask], truth, rtol=tolerances.PATHS, atol=tolerances.PATHS
    )
    assert not loaded.policy.training


def test_precisions(model: Path) -> None:
    """bf16 compute: fp32 weights if they are trained, a bf16 base and an fp32 adapter if not."""
    full = load(ModelSpec(str(model), dtype="bfloat16")).policy
    assert {p.dtype for p in full.parameters()} == {torch.float32}
    lora = load(ModelSpec(str(model), dtype="bfloat16", adapter=Adapter(rank=2))).policy
    assert {p.dtype for p in lora.trainable()} == {torch.float32}
    assert {p.dtype for p in lora.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert full.compute == lora.compute == torch.bfloat16


def test_only_the_rows_the_tokenizer_knows(tmp_path: Path) -> None:
    loaded = load(ModelSpec(str(build.checkpoint(tmp_path / "m", words=30))))
    assert loaded.policy.recipe.vocab == 30
    more = load(ModelSpec(str(build.checkpoint(tmp_path / "n", words=50))))
    assert more.policy.recipe.vocab == build.VOCAB


def test_several_end_tokens_and_no_pad_token(model: Path) -> None:
    edit(model / "generation_config.json", eos_token_id=[5, 7])
    loaded = load(ModelSpec(str(model)))
    assert set(loaded.ends.eos_ids) == {2, 5, 7}
    assert loaded.tokenizer.pad_token is None
    assert loaded.ends.pad_id in loaded.ends.eos_ids


def test_dropout_is_off_and_checkpointing_is_on(tmp_path: Path) -> None:
    model = build.checkpoint(tmp_path / "m", attention_dropout=0.5, attn_implementation="eager")
    policy = load(ModelSpec(str(model), gradient_checkpointing=True)).policy
    sample = build.rollout()
    assert policy.training
    assert policy.causal.model.layers[0].gradient_checkpointing
    assert torch.equal(policy.hidden(sample), policy.hidden(sample))


def test_a_fresh_adapter_is_drawn_from_its_seed_and_changes_nothing(model: Path) -> None:
    spec = ModelSpec(str(model), adapter=Adapter(rank=2))
    state = torch.get_rng_state()
    first, again, other = (load(spec, seed=seed).policy for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = list(zip(first.trainable(), again.trainable(), other.trainable(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
    sample = build.rollout()
    assert torch.equal(first.hidden(sample), load(ModelSpec(str(model))).policy.hidden(sample))


def test_alpha_is_the_rank_unless_said(model: Path) -> None:
    for alpha, scale in ((None, 1.0), (8.0, 2.0)):
        policy = load(ModelSpec(str(model), adapter=Adapter(rank=4, alpha=alpha))).policy
        assert policy.causal.model.layers[0].self_attn.q_proj.scaling == {"default": scale}


def test_saved_and_loaded_again(model: Path, tmp_path: Path) -> None:
    """Full and adapter: what is saved is what was trained, and an adapter finds its base again."""
    sample = build.rollout()
    for name, adapter in (("full", None), ("adapter", Adapter(rank=2))):
        loaded = load(ModelSpec(str(model), adapter=adapter))
        with torch.no_grad():
            for parameter in loaded.policy.trainable():
                parameter.add_(0.1 * torch.randn_like(parameter))
        loaded.policy.save(tmp_path / name, loaded.tokenizer)
        again = load(ModelSpec(str(tmp_path / name)))
        assert torch.equal(again.policy.hidden(sample), loaded.policy.hidden(sample))
        assert again.adapter == (None if adapter is None else "loaded")
        assert len(again.policy.trainable()) == len(loaded.policy.trainable())


# ── adapters that do not fit ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    """On layers named by their last part, as most adapters in the world are."""
    loaded = load(ModelSpec(str(model), adapter=Adapter(rank=2, targets=["q_proj", "v_proj"])))
    loaded.policy.save(tmp_path / "adapter", loaded.tokenizer)
    return tmp_path / "adapter"


def test_an_adapter_again_or_another_one_on_top(adapter: Path) -> None:
    assert load(ModelSpec(str(adapter), adapter=Adapter(rank=2))).adapter == "loaded"
    with pytest.raises(UsageError, match=r"rank 2 and alpha 2, and model.adapter asks for rank 8"):
        load(ModelSpec(str(adapter), adapter=Adapter(rank=8)))


@pytest.mark.parametrize("other", [{"hidden_size": 16}, {"num_hidden_layers": 1}, {"num_hidden_layers": 3}])
def test_an_adapter_of_another_base(adapter: Path, tmp_path: Path, other: dict[str, int]) -> None:
    edit(adapter / adapters.CONFIG, base_model_name_or_path=str(build.checkpoint(tmp_path / "other", **other)))
    with pytest.raises(RunError, match="made for another base model"):
        load(ModelSpec(str(adapter)))


def test_adapters_that_cannot_be_switched_off(adapter: Path) -> None:
    edit(adapter / adapters.CONFIG, modules_to_save=["lm_head"])
    with pytest.raises(UsageError, match="modules_to_save"):
        load(ModelSpec(str(adapter)))
    edit(adapter / adapters.CONFIG, modules_to_save=None, peft_type="IA3")
    with pytest.raises(UsageError, match="IA3; kleash trains LoRA"):
        load(ModelSpec(str(adapter)))


def test_an_adapter_that_lost_its_base(adapter: Path, tmp_path: Path) -> None:
    edit(adapter / adapters.CONFIG, base_model_name_or_path=str(tmp_path / "modle"))
    with pytest.raises(UsageError, match=r"there is no directory .*modle; did you mean .*/model\?"):
        load(ModelSpec(str(adapter)))
    edit(adapter / adapters.CONFIG, base_model_name_or_path=None)
    with pytest.raises(UsageError, match="does not say which base"):
        load(ModelSpec(str(adapter)))


def test_targets_that_are_not_there(model: Path) -> None:
    with pytest.raises(UsageError, match=r"no adapter fits model\.adapter\.targets"):
        load(ModelSpec(str(model), adapter=Adapter(targets=["no_such_layer"])))


def test_both_a_model_and_an_adapter(model: Path, adapter: Path) -> None:
    (model / adapters.CONFIG).write_text((adapter / adapters.CONFIG).read_text())
    with pytest.raises(UsageError, match="holds a full model and an adapter"):
        load(ModelSpec(str(model)))


# ── checkpoints that are not whole ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keep", [0, 4, 200, 0.5, -1])
def test_a_checkpoint_cut_short(model: Path, keep: float) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if 0 < keep < 1 else int(keep)])
    with pytest.raises(RunError, match=r"model\.safetensors is cut short"):
        load(ModelSpec(str(model)))


def test_an_adapter_cut_short(adapter: Path) -> None:
    file = adapter / adapters.WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"adapter_model\.safetensors is cut short"):
        load(ModelSpec(str(adapter)))


def test_a_missing_part(tmp_path: Path) -> None:
    model = build.model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    build.tokenizer().save_pretrained(tmp_path)
    load(ModelSpec(str(tmp_path)))
    part = sorted(tmp_path.glob("model-*.safetensors"))[1]
    part.unlink()
    with pytest.raises(RunError, match=f"{part.name} is missing"):
        load(ModelSpec(str(tmp_path)))


def test_a_weight_that_is_not_there_is_never_random(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError, match=r"lacks 1 of the model's weights \(model.layers.1.mlp.up_proj.weight"):
        load(ModelSpec(str(model)))


def test_a_config_of_another_size(model: Path) -> None:
    edit(model / "config.json", intermediate_size=96)
    with pytest.raises(RunError, match=r"could not be loaded|lacks"):
        load(ModelSpec(str(model)))


def test_only_pickled_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(UsageError, match="reads no pickled weights"):
        load(ModelSpec(str(model)))


# ── directories and models that cannot be meant ─────────────────────────────────────────────────────────


def test_names_that_lead_nowhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"did you mean .*/model\?"):
        load(ModelSpec(str(tmp_path / "modell")))
    with pytest.raises(UsageError, match=r"holds no config.json.*; its folder model does"):
        load(ModelSpec(str(tmp_path)))
    with pytest.raises(UsageError, match="is a file"):
        load(ModelSpec(str(model / "config.json")))
    with pytest.raises(UsageError, match="kleash:tiny and kleash:smollm2"):
        load(ModelSpec("kleash:tinny"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no run directory runs/x"):
        load(ModelSpec("runs/x@step-3"))
    (tmp_path / "runs/x/checkpoints/step-000100").mkdir(parents=True)
    with pytest.raises(UsageError, match="no checkpoint of step 3; it has: 100"):
        load(ModelSpec("runs/x@step-3"))


def test_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(RunError, match="nobody/nothing is not a directory here, and the Hugging Face hub"):
        load(ModelSpec("nobody/nothing"))
    with pytest.raises(RunError, match="did you mean kleash:tiny"):
        load(ModelSpec("tiny"))


def test_code_of_its_own(model: Path) -> None:
    edit(model / "config.json", model_type="odd", auto_map={"AutoModelForCausalLM": "modeling_odd.Odd"})
    with pytest.raises(UsageError, match=r"runs Python code of its own.*model\.trust_remote_code = true"):
        load(ModelSpec(str(model)))


def test_models_of_another_make(model: Path) -> None:
    edit(model / "config.json", is_encoder_decoder=True)
    with pytest.raises(UsageError, match="causal language models"):
        load(ModelSpec(str(model)))
    (model / "config.json").write_text('{"model_type": ')
    with pytest.raises(RunError, match="is not JSON"):
        load(ModelSpec(str(model)))


def test_no_tokenizer_and_no_end_token(model: Path) -> None:
    for field in ("config.json", "generation_config.json"):
        edit(model / field, eos_token_id=None)
    build.tokenizer(eos=None).save_pretrained(model)
    with pytest.raises(UsageError, match=r'names an end-of-sequence token.*set "eos_token"'):
        load(ModelSpec(str(model)))
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UsageError, match="there is no tokenizer in"):
        load(ModelSpec(str(model)))


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    for name in ("abacus", "cuda:99"):
        with pytest.raises(UsageError, match=f'"{name}" is not on this machine'):
            pick_device(name)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Adapter(rank=0),
        lambda: Adapter(alpha=0.0),
        lambda: Adapter(targets=[]),
        lambda: ModelSpec(" "),
        lambda: ModelSpec("m", reference=""),
    ],
)
def test_specs_that_cannot_be_meant(made: object) -> None:
    with pytest.raises(UsageError):
        made()  # type: ignore[operator]


def test_what_does_not_fit_into_the_memory_is_said_before_it_is_read(model: Path, monkeypatch) -> None:
    """The bytes by the safetensors header; a base in half the bytes may fit where fp32 does not."""
    weights = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    monkeypatch.setattr(checkpoint_files, "free_bytes", lambda device: 4 * weights - 1)
    with monkeypatch.context() as patched:
        patched.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
        with pytest.raises(
            RunError, match=rf"has {weights / 1e9:.3g} billion weights, .* with model.dtype = .bfloat16"
        ):
            load(ModelSpec(str(model)))
    load(ModelSpec(str(model), adapter=Adapter(rank=2), dtype="bfloat16"))
    monkeypatch.setattr(checkpoint_files, "free_bytes", lambda device: 10)
    with pytest.raises(RunError, match=r"choose a smaller model$"):
        load(ModelSpec(str(model), adapter=Adapter(rank=2), dtype="bfloat16"))
