"""A reward model in training gives the numbers of the checkpoint it is saved as, by every path; what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.tolerances import PATHS, PATHS_GRADIENT
from transformers import AutoModelForSequenceClassification, BertConfig

from kleash.errors import RunError, UsageError
from kleash.models import adapters
from kleash.models.checkpoint_files import read_model
from kleash.models.scorer import Scorer, as_rollout
from kleash.models.scorer_load import Ready, load_scorer
from kleash.models.spec import Adapter, ModelSpec
from kleash.rewards.load import load_reward
from kleash.rewards.score import score

#: Pairs as ids: both go on; one ends where the other goes on; nothing in common; texts of one token.
PAIRS = [
    ([5, 7, 9, 4], [5, 7, 3, 3, 8, 6]),
    ([6, 8], [6, 8, 11, 12]),
    ([3, 4, 5], [9, 10]),
    ([13], [13, 14]),
    ([20, 21, 22, 23, 24, 25], [20, 21, 22, 23, 24, 26]),
]


def ready(directory: Path, kind: str = "llama", *, seed: int = 0, adapter: Adapter | None = None, **more: Any) -> Ready:
    if not directory.exists():
        build.checkpoint(directory, kind, **more)
    return load_scorer(ModelSpec(policy=str(directory), adapter=adapter), seed=seed)


def moved(scorer: Scorer, scale: float = 0.2) -> Scorer:
    """Trained, in effect: every weight that training may move is another, the head so that scores are far apart."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in scorer.trainable():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return scorer


def scores(made: Ready, path: Any = "packed", rows: int | None = None) -> torch.Tensor:
    rollout = as_rollout(PAIRS, made.loaded.ends.pad_id, made.scorer.device)
    return made.scorer(rollout, path=path, rows=rows)


def alone(directory: Path) -> torch.Tensor:
    """The truth: transformers' own class, its own forward, a text at a time, in float64."""
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory).double().eval()
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([text])).logits[0] for pair in PAIRS for text in pair])


def close(found: torch.Tensor, truth: torch.Tensor) -> None:
    assert len(set(truth.tolist())) == len(truth)
    error = (found.detach().double() - truth).abs().max() / truth.abs().max()
    assert float(error) < PATHS


@pytest.mark.parametrize("adapter", [None, Adapter(rank=3)], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "mistral"])
def test_every_path_gives_the_saved_checkpoints_own_scores(tmp_path, kind, adapter):
    made = ready(tmp_path / "lm", kind, adapter=adapter)
    moved(made.scorer).save(tmp_path / "rm", made.loaded.tokenizer)
    truth = alone(tmp_path / "rm")
    assert made.loaded.paths == ("packed", "cached", "two_stage", "plain")
    for path, rows in (("packed", None), ("cached", None), ("two_stage", 1), ("plain", None)):
        close(scores(made, path, rows), truth)


def test_padded_together_transformers_own_forward_says_the_same(tmp_path):
    made = ready(tmp_path / "lm")
    moved(made.scorer).save(tmp_path / "rm", made.loaded.tokenizer)
    model: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    texts = [text for pair in PAIRS for text in pair]
    width, pad = max(map(len, texts)), model.config.pad_token_id
    ids = torch.tensor([text + [pad] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    close(model(input_ids=ids, attention_mask=mask).logits[:, 0], alone(tmp_path / "rm"))


def test_a_reward_reads_it(tmp_path):
    made = ready(tmp_path / "lm")
    moved(made.scorer).save(tmp_path / "rm", made.loaded.tokenizer)
    tokenizer, pairs = made.loaded.tokenizer, PAIRS[:2]
    text = [tokenizer.decode(ids) for pair in pairs for ids in pair]
    found = score([load_reward(f"model:{tmp_path / 'rm'}")], [""] * 4, text, {}).total
    ids = [[tokenizer(one)["input_ids"] for one in text[i : i + 2]] for i in (0, 2)]
    ours = made.scorer(as_rollout(ids, made.loaded.ends.pad_id, "cpu"))
    assert found == pytest.approx(ours.tolist(), rel=PATHS)


def test_sharing_changes_no_gradient(tmp_path):
    made = ready(tmp_path / "lm")
    moved(made.scorer)
    weights = torch.linspace(-1, 1, 2 * len(PAIRS))
    gradients = []
    for path in ("packed", "plain"):
        (scores(made, path) * weights).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in made.scorer.trainable() if p.grad is not None]))
        made.scorer.zero_grad()
    assert (gradients[0] - gradients[1]).norm() < PATHS_GRADIENT * gradients[1].norm()


def test_a_beginning_is_computed_once(tmp_path):
    rollout = as_rollout(PAIRS, 0, "cpu")
    shared = [ids[mask].tolist() for ids, mask in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)]
    assert shared == [[5, 7], [6, 8], [3], [9], [13], [20, 21, 22, 23, 24]]
    assert rollout.group.tolist() == [0, 0, 1, 1, 2, 3, 4, 4, 5, 5]
    assert rollout.mask.sum(1).tolist() == [3, 5, 1, 3, 3, 2, 1, 2, 2, 2]  # with the token that is never fed


def test_a_fresh_head_is_seeded(tmp_path):
    first, again, other = (ready(tmp_path / "lm", seed=seed, hidden_size=256, head_dim=64) for seed in (1, 1, 2))
    assert first.head == "fresh"
    assert torch.equal(scores(first), scores(again))
    assert not torch.equal(scores(first), scores(other))
    assert 0.9 < float(first.scorer.head.weight.detach().std()) * 257**0.5 < 1.1


def test_an_adapter_merged_can_be_gone_on_with(tmp_path):
    """Merging is into copies, bit for bit: neither the weights in training nor those taken up again are rounded."""
    adapter = Adapter(rank=2)
    made = ready(tmp_path / "lm", adapter=adapter)
    before = {name: p.clone() for name, p in moved(made.scorer).named_parameters()}
    made.scorer.save(tmp_path / "rm", made.loaded.tokenizer)
    again = ready(tmp_path / "lm", adapter=adapter)
    again.scorer.take(tmp_path / "rm")
    for one in (made.scorer, again.scorer):
        assert all(torch.equal(p, before[name]) for name, p in one.named_parameters())
    with pytest.raises(RunError, match="another model or adapter"):
        ready(tmp_path / "lm", adapter=Adapter(rank=4)).scorer.take(tmp_path / "rm")


def test_what_moves_is_the_head_and_the_adapter_or_all(tmp_path):
    lora = ready(tmp_path / "lm", adapter=Adapter(rank=2)).scorer
    names = [name for name, p in lora.named_parameters() if p.requires_grad]
    assert [name for name in names if "lora_" not in name] == ["trunk.model.base_model.model.score.weight"]
    full = ready(tmp_path / "lm").scorer
    assert all(p.requires_grad for p in full.parameters())
    with pytest.raises(UsageError, match="trained whole"):
        ready(tmp_path / "lm", adapter=Adapter(rank=2, targets=["q_proj", "score"]))


def test_a_reward_model_goes_on_where_it_was(tmp_path):
    made = ready(tmp_path / "lm")
    moved(made.scorer).save(tmp_path / "rm", made.loaded.tokenizer)
    again = ready(tmp_path / "rm", seed=9)
    assert again.head == "loaded"
    assert torch.equal(scores(again), scores(made))


def test_an_adapter_of_a_language_model_is_merged_first(tmp_path):
    build.checkpoint(tmp_path / "lm")
    adapted = adapters.attach(
        read_model(tmp_path / "lm", torch.float32, False), Adapter(rank=2), str(tmp_path / "lm"), 0
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
    adapted.save_pretrained(tmp_path / "sft", save_embedding_layers=False)
    tuned = adapted.merge_and_unload()
    tuned.save_pretrained(tmp_path / "merged")
    build.tokenizer().save_pretrained(tmp_path / "merged")
    assert torch.equal(scores(ready(tmp_path / "sft")), scores(ready(tmp_path / "merged")))
    assert not torch.equal(scores(ready(tmp_path / "sft")), scores(ready(tmp_path / "lm")))
    assert all(p.requires_grad for p in ready(tmp_path / "sft").scorer.parameters())


# ── what cannot become one ──────────────────────────────────────────────────────────────────────────────


def test_several_labels_encoders_and_half_a_model_are_refused(tmp_path):
    for name, config, message in (
        ("three", build.CONFIGS["llama"](num_labels=3), "3 labels, and a reward model has one"),
        ("bert", BertConfig(vocab_size=build.VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=24, num_labels=1, pad_token_id=2), "no decoder"),
    ):  # fmt: skip
        model: Any = AutoModelForSequenceClassification.from_config(config)
        model.save_pretrained(tmp_path / name)
        build.tokenizer().save_pretrained(tmp_path / name)
        with pytest.raises(UsageError, match=message):
            ready(tmp_path / name)
    build.checkpoint(tmp_path / "lm")
    config = json.loads((tmp_path / "lm" / "config.json").read_text())
    (tmp_path / "lm" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(RunError, match="lacks"):
        ready(tmp_path / "lm")


def test_a_score_read_elsewhere_is_noticed(tmp_path, monkeypatch):
    """A classifier that pools its states otherwise than at the last token."""
    made = ready(tmp_path / "lm")
    cls = type(made.scorer.trunk.causal)
    own = cls.forward

    def first(self: Any, input_ids: Any, **more: Any) -> Any:
        return own(self, input_ids=input_ids[:, :1], **more)

    monkeypatch.setattr(cls, "forward", first)
    with pytest.raises(UsageError, match="does not read its score from the last token"):
        ready(tmp_path / "lm")
