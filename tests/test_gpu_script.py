"""The script that is prepared for a machine with a GPU runs: its checks in small, on a CPU."""

import pytest
import torch
from benchmarks import gpu, gpu_parts


def test_the_script_runs_in_small_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--device", "cpu", "--only", "fused,qlora,trl"]) == 0
    said = capsys.readouterr().out
    assert said.count("| fused |") == 10
    assert "| float32, d weight against float64 |" in said
    assert said.count("| yes |") == 11
    assert "**no**" not in said


def test_what_is_wrong_or_breaks_is_a_failure(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(gpu_parts, "FP32", 0.0)
    assert gpu.main(["--device", "cpu", "--only", "fused"]) == 1
    assert "≤ 0 | **no** |" in capsys.readouterr().out
    monkeypatch.setattr(gpu_parts, "fused", lambda *_, **__: 1 / 0)
    assert gpu.main(["--device", "cpu", "--only", "fused"]) == 1
    assert "| fused | failed | ZeroDivisionError: division by zero | no error | **no** |" in capsys.readouterr().out
    monkeypatch.setattr(gpu, "LIMIT", 0)
    assert gpu.main(["--device", "cpu", "--only", "fused"]) == 0
    assert "not run: no time left" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 64
    assert "there is no GPU here; --device cpu tries the script in small" in capsys.readouterr().err
