"""Five families of the zoo, through all that `make zoo` asks of every one; the whole table is docs/runs/zoo.md."""

from pathlib import Path

import pytest
from tests.tolerances import FP32, PATHS, PATHS_GRADIENT
from tests.training.small import settings, steps
from tools.zoo import measure
from tools.zoo.families import FAMILIES, REFUSED

from kleash.errors import RunError
from kleash.models.load import load
from kleash.models.spec import ModelSpec
from kleash.training.api import start
from kleash.training.toml import parse_config

ALL = {"packed", "cached", "two_stage", "plain"}
#: family → the paths it trains by, and those it is read by.
CHOSEN = {
    "Llama": (ALL, ALL),
    "Gemma 3, window": (ALL, ALL),
    "GPT-2": (ALL, ALL),
    "Qwen3-MoE": (ALL, ALL),
    "Bamba": ({"plain"}, {"cached", "plain"}),
}


@pytest.fixture(params=CHOSEN)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    measure.write(FAMILIES[request.param], tmp_path / "model")
    return request.param


def test_every_path_against_the_model_on_single_rows(family: str, tmp_path: Path) -> None:
    for asked in ({}, {"checkpointing": True}, {"adapter": True}):
        for path, error in measure.paths(tmp_path / "model", **asked).items():
            assert error.logprob <= PATHS, (path, asked)
            assert error.gradient is None or error.gradient <= PATHS_GRADIENT, (path, asked)


def test_loop_resume_head_and_export(family: str, tmp_path: Path) -> None:
    loaded = load(ModelSpec(str(tmp_path / "model"), device="cpu"))
    assert (set(loaded.paths), set(loaded.reading)) == CHOSEN[family]
    assert measure.head(loaded) <= FP32
    assert measure.runs(tmp_path / "model", tmp_path / "runs") == (2, True)
    assert measure.exported(loaded, tmp_path / "exported")


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_padding_changes_are_refused(name: str, tmp_path: Path) -> None:
    measure.write(REFUSED[name], tmp_path)
    with pytest.raises(RunError, match=REFUSED[name].refused):
        load(ModelSpec(str(tmp_path)))


@pytest.mark.parametrize("name", ["Bloom (alibi)", "MPT (alibi)"])
def test_models_that_take_no_positions(name: str, tmp_path: Path) -> None:
    """Their order comes from the mask; a restarted position inside a packed row cannot be said."""
    loaded = load(ModelSpec(str(measure.write(FAMILIES[name], tmp_path)), device="cpu"))
    assert loaded.paths == ("cached", "two_stage", "plain")
    for path, error in measure.paths(tmp_path).items():
        assert error.logprob <= PATHS, path
        assert error.gradient is not None
        assert error.gradient <= PATHS_GRADIENT, path


@pytest.mark.parametrize(
    ("dtype", "said"), [("float32", "sampling and the reference share"), ("bfloat16", "sampling shares")]
)
def test_a_recurrent_model_says_once_what_it_shares(
    dtype: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference's states come from the cache in fp32 alone: in bf16 two paths differ by too much."""
    model = measure.write(FAMILIES["LFM2"], tmp_path / "lfm2")
    asked = {"model__policy": str(model), "model__dtype": dtype, "model__device": "cpu", "train__steps": 1}
    start(parse_config(settings(tmp_path, **asked)))
    assert capsys.readouterr().out.count(f"{said} a prompt's states; training reads it again") == 1
    first = steps(tmp_path / "run")[0]
    # By the same path exactly 0, by two that of rounding.
    assert abs(first.kl_ref.value) <= (0.0 if dtype == "bfloat16" else FP32)
