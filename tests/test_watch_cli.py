"""`kleash watch` from outside: exit codes, JSON, columns, a budget, a growing log; without torch."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.report.logs import gamed, healthy, write_csv
from tests.test_cli import FAILED, GOOD, WRONG, kleash_, sentence  # noqa: F401 (a fixture)

FOUND, STOPPED = 1, 130
FIXTURES = Path(__file__).parent / "runlog" / "fixtures"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_csv(healthy(), tmp_path / "good.csv")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_csv(gamed(), tmp_path / "bad.csv")


def test_the_exit_code_is_the_verdict(kleash_, good: Path, bad: Path, tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = kleash_("watch", good)
    assert code == GOOD and out.startswith("HEALTHY")
    code, out, _ = kleash_("watch", bad)
    assert code == FOUND and out.splitlines()[0].endswith("exit 1")
    code, out, _ = kleash_("watch", good, bad)
    told = "".join(out.split())  # a long path may be wrapped
    assert code == FOUND and told.index("good.csv") < told.index("bad.csv")
    sentence(kleash_("watch", tmp_path / "nowhere"), FAILED, "there is no")
    empty = tmp_path / "empty"
    empty.mkdir()
    sentence(kleash_("watch", empty), FAILED, "has no training log that kleash knows")


def test_real_logs_of_trl_are_told(kleash_) -> None:  # noqa: F811
    code, out, _ = kleash_("watch", FIXTURES / "trl-1.16" / "grpo")
    assert code == GOOD and "`kl` = drift from the reference, k3, per token" in out
    code, out, _ = kleash_("watch", FIXTURES / "trl-1.16" / "grpo-beta-0")
    assert "no KL to a reference" in out


def test_json_is_one_object_or_a_list(kleash_, good: Path, bad: Path) -> None:  # noqa: F811
    _, out, _ = kleash_("watch", bad, "--json")
    assert json.loads(out)["verdict"] == "findings"
    _, out, _ = kleash_("watch", good, bad, "--json")
    assert [one["exit"] for one in json.loads(out)] == [0, 1]


def test_a_budget_of_ones_own(kleash_, good: Path) -> None:  # noqa: F811
    code, out, _ = kleash_("watch", good, "--budget", "1 nats/sequence")
    assert code == FOUND and "over" in out
    sentence(kleash_("watch", good, "--budget", "much"), WRONG, "KL budget 'much' has no unit")


def test_columns_by_name(kleash_, tmp_path: Path) -> None:  # noqa: F811
    path = write_csv(healthy(), tmp_path / "mine.csv")
    path.write_text(path.read_text().replace("kl_ref", "drift").replace("reward", "points"))
    code, out, _ = kleash_("watch", path, "--columns", "reward=points,kl_ref=drift:nats/token")
    assert code == GOOD and "`drift` = drift from the reference" in out
    sentence(kleash_("watch", path, "--columns", "reward"), WRONG, "--columns 'reward' is no NAME=KEY")


def test_follow_ends_with_the_run(kleash_, tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = kleash_("watch", FIXTURES / "trl-1.16" / "grpo", "--follow")
    assert code == GOOD and out.startswith("HEALTHY")
    code, out, _ = kleash_("watch", FIXTURES / "trl-1.16" / "grpo", "--follow", "--json")
    assert code == GOOD and len(out.splitlines()) == 1 and json.loads(out)["verdict"] == "healthy"


def test_alerts_of_one_look(kleash_, bad: Path, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "heard"
    code, _, err = kleash_("watch", bad, "--on-finding", f"echo $KLEASH_RULE >> {out}", "--on-finding", "exit 4")
    assert code == FOUND and "ended with code 4" in err
    assert len(out.read_text().splitlines()) == err.count("ended with code 4") > 0


def test_serve_says_its_address_and_ends_at_ctrl_c(good: Path) -> None:
    command = [sys.executable, "-m", "kleash.cli", "watch", str(good), "--serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            address = json.loads(served.stdout.readline())["page"]
            with urllib.request.urlopen(address, timeout=10) as page:
                assert "HEALTHY" in page.read().decode()
            served.send_signal(signal.SIGINT)
            assert served.wait(10) == STOPPED
        finally:
            served.kill()  # or a failure would wait for it for ever


def test_a_taken_port_and_a_wrong_one(kleash_, good: Path) -> None:  # noqa: F811
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        sentence(kleash_("watch", good, "--serve", "--port", port), FAILED, f"cannot serve on port {port}", "--port 0")
    assert kleash_("watch", good, "--serve", "--port", "99999")[0] == WRONG


def test_a_foreign_log_has_a_report(kleash_, good: Path, tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = kleash_("report", good, "--out", tmp_path / "page.html", "--json")
    assert code == GOOD and Path(json.loads(out)["report"]).read_text().startswith("<!doctype html>")
    sentence(kleash_("report", tmp_path / "nowhere"), FAILED, "there is no")


def test_it_starts_without_torch_or_a_page(good: Path) -> None:
    program = (
        "import sys\nfrom kleash import cli\nsys.argv = ['kleash', 'watch', sys.argv[1]]\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'transformers', 'pyarrow', 'jinja2', 'datasets'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(good)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
