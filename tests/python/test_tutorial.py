"""The notebook runs from its first cell to its last, on the CPU."""

import json
import os
import pathlib
import subprocess
import sys

from conftest import need

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "tutorial.ipynb"


def test_every_cell_runs(tmp_path):
    need("torch")
    need("matplotlib")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    program = tmp_path / "cells.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    (tmp_path / "models").symlink_to(NOTEBOOK.parents[1] / "models")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "relative error" in done.stdout and "its / ours" in done.stdout and "reference: " in done.stdout
    assert (tmp_path / "tutorial-results" / "bandwidth.png").exists()
