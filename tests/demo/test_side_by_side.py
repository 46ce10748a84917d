"""Whatever ends the command that trains several runs ends them too."""

import os
import signal
import subprocess
import sys
import time

import pytest

#: Children that note their process id and sleep, in the place of `kleash train`.
PROGRAM = """
import sys
from kleash.demo import side_by_side as s

CHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
s.command = lambda run: [sys.executable, "-c", CHILD]
runs = [s.Planned(label=n, config={"out": f"{sys.argv[1]}/{n}", "train": {"steps": 1}}) for n in "ab"]
s.train_all(runs, lambda *_: None, at_once=2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=["TERM", "HUP", "INT"])
def test_a_signal_leaves_no_child_running(tmp_path, number):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stderr=subprocess.DEVNULL) as process:
        said = [tmp_path / f"{name}.txt" for name in "ab"]
        end = time.monotonic() + 60
        while not all(path.exists() and path.read_text().endswith("\n") for path in said):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(timeout=30)
    for path in said:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
