"""The live panel and the plain lines: what is shown, and what model text cannot do to a terminal."""

import io

import pytest
from rich.console import Console

from kleash.characters import printable
from kleash.records import Reading, Step, Unit
from kleash.training.progress import Progress, plain_line, sparkline


def reading(value: float, unit: Unit = "nats/sequence", error: float | None = 0.22) -> Reading:
    return Reading(
        kind="kl_ref", value=value, unit=unit, estimator="exact", n_prompts=8, n_sequences=64, n_tokens=1000,
        standard_error=error,
    )  # fmt: skip


def step(**changes: object) -> Step:
    fields: dict[str, object] = {
        "step": 12, "beta": 0.0432, "kl_ref": reading(3.91), "kl_ref_token": reading(0.2, "nats/token", 0.01),
        "target": "4 nats/sequence", "score": 0.412, "score_std": 0.3, "entropy": 1.82, "length": 21.3,
        "seconds": {"total": 0.74}, "tokens_per_second": 1234.0, "price": 0.051,
    }  # fmt: skip
    return Step(**(fields | changes))  # type: ignore[arg-type]


def shown(terminal: bool, sample: object = None, **changes: object) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    with Progress(console) as progress:
        progress.update(step(**changes), sample, total_steps=300)  # type: ignore[arg-type]
        progress.notice("reference checked")
    return out.getvalue()


def test_the_plain_line_in_full() -> None:
    assert plain_line(step(), 300) == (
        "step  12/300  score 0.412  KL 3.91±0.22 nats/sequence (target 4)  beta 0.0432  entropy 1.82  len 21.3  0.74 s"
    )


def test_unmeasured_is_a_dash_never_zero() -> None:
    line = plain_line(Step(step=0, beta=0.0), 10)
    assert line == "step  0/10  score –  KL –  beta 0  entropy –  len –  – s"
    assert "±" not in plain_line(step(kl_ref=reading(1.0, error=None)), 300)


def test_a_token_target_shows_the_token_reading() -> None:
    line = plain_line(step(target="0.2 nats/token"), 300)
    assert "KL 0.2000±0.0100 nats/token (target 0.2)" in line


def test_a_held_controller_is_told_in_both_views() -> None:
    assert "beta held: sampler mismatch" in plain_line(step(controller_held="sampler mismatch"), 300)
    assert "beta held: sampler mismatch" in shown(True, controller_held="sampler mismatch")


def test_away_from_a_terminal_one_line_a_step_and_no_codes() -> None:
    out = shown(False, ("a", "b", 0.5))
    assert out.splitlines() == [plain_line(step(), 300), "reference checked"]
    assert "\x1b" not in out


def test_a_notebook_keeps_ten_lines_of_a_run_and_no_codes(monkeypatch, capsys) -> None:
    monkeypatch.setattr("kleash.training.progress.in_notebook", lambda: True)
    with Progress() as progress:
        for number in range(41):
            progress.update(step(step=number), None, 40)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split("/")[0].removeprefix("step ")) for line in lines] == list(range(0, 41, 4))
    assert "\x1b" not in "".join(lines)


def test_a_long_line_is_not_wrapped() -> None:
    assert len(shown(False, controller_held="because " * 40).splitlines()) == 2


def test_the_panel_shows_the_leash_and_the_way_left() -> None:
    out = shown(True, ("The film was", " lovely.", 0.5))
    parts = "step 12/300|3.91±0.22 nats/sequence (target 4)|0.412|0.0432|price 0.051|1,234 tokens/s"
    for part in (parts + "|3 min 32 s left|The film was|lovely.|+0.50|reference checked").split("|"):
        assert part in out


def test_model_text_is_neither_markup_nor_control_code() -> None:
    evil = "[bold red]hi[/nonsense] \x1b[2J\x1b]0;owned\x07 [link=x]"
    out = shown(True, (evil, evil, 1.0))
    assert "[bold red]hi[/nonsense]" in out
    assert "\x1b[2J" not in out.replace("\x1b[2K", "")
    assert "\x1b]0" not in out and "\x07" not in out


def test_a_chat_prompt_shows_its_last_message() -> None:
    out = shown(True, ([{"role": "user", "content": "Say it kindly"}], "Please.", None))
    assert "Say it kindly" in out and "user" not in out


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 7.0], "▁█"), ([1.0, None, 2.0], "▁ █"), ([3.0, 3.0], "▄▄"), ([None], ""), ([], "")],
)
def test_sparkline(values: list[float | None], expected: str) -> None:
    assert sparkline(values) == expected


def test_printable_keeps_text_and_drops_codes() -> None:
    assert printable("né\n\x1b[31mx\x00") == "né ⏎  [31mx "
