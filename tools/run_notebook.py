"""Runs examples/quickstart.ipynb as a reader would: make notebook. With --write its outputs are kept in it.

python -m tools.run_notebook [--write]

It runs in a directory of its own, so that nothing in it names this machine; clock times are in none of its outputs.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
PATIENCE_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what came out in the notebook")
    given = parser.parse_args()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    began = time.monotonic()
    executed(notebook)
    print(f"{NOTEBOOK.name}: {len(notebook.cells)} cells in {time.monotonic() - began:.0f} s")
    if given.write:
        clean(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, NOTEBOOK)
        print(f"wrote its outputs: {NOTEBOOK.stat().st_size / 1000:.0f} kB")


def executed(notebook: Any) -> None:
    """Fails with the cell's own error where one fails."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where kleash is
    os.environ |= {"COLUMNS": "110", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": folder}}).execute()


def clean(notebook: Any) -> None:
    """What changes from run to run though nothing has changed, and what tells of a machine, is left out."""
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = joined([output for output in cell.outputs if output.get("name") != "stderr"])


def joined(outputs: list[Any]) -> list[Any]:
    """Text that was printed piece by piece, in one piece."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


if __name__ == "__main__":
    main()
