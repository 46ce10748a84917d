"""`kleash export`: what comes out is the model that was trained, as a stranger loads it, or nothing."""

import json
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from tests.models import build
from tests.tolerances import HALF_LOGPROB, PATHS, PATHS_GRADIENT
from tests.training.small import settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from kleash.errors import RunError, UsageError
from kleash.models import export as writing
from kleash.models.load import load
from kleash.models.runs import model_of
from kleash.models.spec import ModelSpec
from kleash.report.card import card
from kleash.training import export as exporting
from kleash.training.api import start
from kleash.training.export import Origin, export, push
from kleash.training.toml import parse_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with an adapter that has moved."""
    directory = tmp_path_factory.mktemp("run")
    tree = settings(directory, model__adapter={"rank": 4}, train__learning_rate=0.05)
    return start(parse_config(tree)).path


def logprobs(model, tokenizer) -> torch.Tensor:
    ids = tokenizer("t3 t5 t7 t4 t9 t11", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.double().log_softmax(-1)


@pytest.fixture(scope="module")
def trained(run: Path) -> torch.Tensor:
    """Its log-probs by transformers and peft alone."""
    checkpoint = Path(model_of(str(run))).resolve()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    base = AutoModelForCausalLM.from_pretrained(run.parent / "model", dtype=torch.float32)
    start = logprobs(base, tokenizer)
    found = logprobs(PeftModel.from_pretrained(base, str(checkpoint)), tokenizer)
    assert (found - start).abs().max() > 0.1  # or merging would show nothing
    return found


@pytest.mark.parametrize(("dtype", "near"), [("float32", PATHS), ("bfloat16", HALF_LOGPROB), ("float16", HALF_LOGPROB)])
def test_the_adapter_is_merged_and_the_log_probs_stay(run, trained, dtype, near, tmp_path: Path) -> None:
    made = export(str(run), tmp_path / "model", dtype=dtype)
    assert not (made.path / "adapter_config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(made.path, dtype="auto")
    assert model.dtype == writing.DTYPES[dtype]
    found = logprobs(model, AutoTokenizer.from_pretrained(made.path))
    assert (found - trained).abs().max() <= near
    assert made.difference.largest <= near
    assert 0 <= made.difference.kl <= writing.SAME[dtype]


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same over a base in 4 bits."""
    pytest.importorskip("torchao")
    directory = tmp_path_factory.mktemp("over")
    tree = settings(directory, model__adapter={"rank": 4}, model__quantize="4bit", train__learning_rate=0.05)
    return start(parse_config(tree)).path


def test_an_adapter_over_few_bits_is_merged_into_them(over: Path, tmp_path: Path) -> None:
    """Against the policy as its checkpoint is loaded for training; and its base's numbers must be those of the run."""
    made = export(str(over), tmp_path / "model", dtype="float32")
    own = load(ModelSpec(model_of(str(over))))
    assert own.policy.quantised is not None
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    found = logprobs(AutoModelForCausalLM.from_pretrained(made.path), tokenizer)
    assert (found - logprobs(own.policy.causal, tokenizer)).abs().max() <= PATHS
    assert made.difference.moved is None
    assert "merged into the base it was trained over (torchao NF4" in (made.path / "README.md").read_text()
    checkpoint = tmp_path / "copy"
    shutil.copytree(Path(model_of(str(over))).resolve(), checkpoint)
    record = checkpoint / "quantised.json"
    said = record.read_text()
    record.write_text(said.replace('"numbers": "', '"numbers": "0'))
    for opened in (lambda: export(str(checkpoint), tmp_path / "other"), lambda: load(ModelSpec(str(checkpoint)))):
        with pytest.raises(RunError, match="rounded to other numbers"):
            opened()
    with pytest.raises(UsageError, match=r'trained over a base in 4bit, and model\.quantize = "8bit"'):
        load(ModelSpec(str(checkpoint), quantize="8bit"))
    record.write_text(said[:20])
    with pytest.raises(RunError, match=r"quantised\.json is cut short"):
        export(str(checkpoint), tmp_path / "other")


def test_or_into_the_base_as_it_is_stored_which_moves_it(over: Path, run: Path, tmp_path: Path) -> None:
    """The KL that it costs, against the two models' log-probs by torch's own formula."""
    made = export(f"{over}@step-4", tmp_path / "model", dtype="float32", onto="stored")
    base = AutoModelForCausalLM.from_pretrained(over.parent / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    model = AutoModelForCausalLM.from_pretrained(made.path)
    step = Path(model_of(f"{over}@step-4"))
    peft = PeftModel.from_pretrained(base, str(over / "checkpoints" / "step-000004"))
    assert (logprobs(model, tokenizer) - logprobs(peft, tokenizer)).abs().max() <= PATHS
    assert made.difference.kl <= writing.SAME["float32"]
    own = load(ModelSpec(str(step))).policy.causal
    texts = exporting._texts(exporting.origin_of(str(step)))
    kls = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :64]
        with torch.no_grad():
            p, q = (m(input_ids=ids).logits[0].double().log_softmax(-1) for m in (own, model))
        kls.append(torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1))
    assert made.difference.moved == pytest.approx(float(torch.cat(kls).mean()), rel=PATHS_GRADIENT)
    assert "the base as it is stored, not the one it was trained over" in (made.path / "README.md").read_text()
    with pytest.raises(UsageError, match="for an adapter that was trained over a quantised base"):
        export(str(run), tmp_path / "other", onto="stored")


def test_shards_are_as_small_as_asked(run, trained, tmp_path: Path) -> None:
    made = export(str(run), tmp_path / "model", dtype="float32", shard="5KB")
    parts = list(made.path.glob("model-*.safetensors"))
    assert len(parts) > 1
    assert (made.path / "model.safetensors.index.json").is_file()
    found = logprobs(AutoModelForCausalLM.from_pretrained(made.path), AutoTokenizer.from_pretrained(made.path))
    assert (found - trained).abs().max() <= PATHS


def test_another_model_is_not_kept(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self: self.unload(), raising=False)
    with pytest.raises(RunError, match=r"differs from the trained one by .* nothing was kept"):
        export(str(run), tmp_path / "model", dtype="float32")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(run, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(RunError, match="GB free, and the model takes"):
        export(str(run), tmp_path / "model")
    monkeypatch.undo()

    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(RunError, match="No space left on device; nothing was kept"):
        export(str(run), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_while_it_is_written_leaves_nothing(run, monkeypatch, tmp_path: Path) -> None:
    """No file may grow beyond 4 kB, which the weights' own library meets; then there is no room for the card."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(RunError, match=r"could not be written: .*; nothing was kept"):
            export(str(run), tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())

    def full(self, text, *arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(RunError, match="No space left on device; nothing was kept"):
        patched.setattr(Path, "write_text", full)
        export(str(run), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_adapter_of_another_base_is_refused(run: Path, tmp_path: Path) -> None:
    build.checkpoint(tmp_path / "wider", hidden_size=24, intermediate_size=24, num_attention_heads=2)
    adapter = tmp_path / "adapter"
    shutil.copytree(Path(model_of(str(run))).resolve(), adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    for base, said in ((tmp_path / "wider", "made for another base model"), (tmp_path / "gone", "gone")):
        (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(base)}))
        with pytest.raises((RunError, UsageError), match=said):
            export(str(adapter), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_is_there_stays(run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UsageError, match="is there already"):
        export(str(run), tmp_path / "model")
    with pytest.raises(UsageError, match='write it as "5GB"'):
        export(str(run), tmp_path / "other", shard="five")


def test_a_run_without_checkpoints_has_nothing_to_give(run, tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    shutil.copy(run / "events.jsonl", tmp_path / "early")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        export(str(tmp_path / "early"), tmp_path / "model")


def test_the_card_says_what_the_run_measured(run, tmp_path: Path) -> None:
    (tmp_path / "card.md").write_text("| off task | 0.03 |\n")
    export(f"{run}@step-4", tmp_path / "model", drift=tmp_path / "card.md")
    said = (tmp_path / "model" / "README.md").read_text()
    last = start_of(run, 4)
    assert f"| KL from the reference, nats/sequence | {last.kl_ref.value:.4g} " in said
    assert f"→ {last.score:.4g}" in said
    assert "| KL target | 0.5 nats/sequence |" in said
    assert "| off task | 0.03 |" in said
    assert "```toml\nout = " in said


def start_of(run: Path, step: int):
    from tests.training.small import steps

    return next(record for record in steps(run) if record.step == step)


def test_a_card_holds_no_html_of_others(run) -> None:
    said = card("<script>x|y", base="o/w", export={"a|b": "<b>\nc"}, origin=None, drift=None)
    assert "<script" not in said
    assert "<b>" not in said
    assert "| a\\|b | &lt;b> c |" in said
    assert "base_model: o/w" in said
    assert "base_model" not in card("x", base="/home/me/m", export={}, origin=None, drift=None)
    assert "# x" in card("x", base=None, export={}, origin=Origin(run=run, step=2), drift=None)


def test_pushing_makes_a_private_repository(monkeypatch, tmp_path: Path) -> None:
    said: list[tuple[str, object]] = []

    class Api:
        def create_repo(self, name, *, private, exist_ok):
            said.append((name, private))
            return f"hub/{name}"

        def upload_folder(self, *, repo_id, folder_path):
            said.append((repo_id, folder_path))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert push(tmp_path, "me/mine") == "hub/me/mine"
    assert said == [("me/mine", True), ("me/mine", tmp_path)]

    def offline(self, name, **options):
        raise ConnectionError("no route")

    monkeypatch.setattr(Api, "create_repo", offline)
    with pytest.raises(RunError, match=r"is written, and could not be pushed to me/mine: ConnectionError: no route"):
        push(tmp_path, "me/mine")
