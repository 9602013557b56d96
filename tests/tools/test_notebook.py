"""tools/run_notebook.py: outputs are stored, in order; a cell that raises ends the run."""

import base64
import json
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "run_notebook.py"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def run(folder, *sources):
    (folder / "pixel.png").write_bytes(PIXEL)
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}]
    for source in sources:
        cells.append({"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": [source]})
    (folder / "in.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    command = [sys.executable, str(TOOL), "in.ipynb", "--out", "out.ipynb"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    stored = json.loads((folder / "out.ipynb").read_text())["cells"]
    return done.returncode, [cell for cell in stored if cell["cell_type"] == "code"]


def test_text_and_pictures_are_stored(tmp_path):
    show = "from IPython.display import Image, display\nprint(value)\ndisplay(Image('pixel.png'))"
    code, cells = run(tmp_path, "value = 6 * 7", show)
    assert code == 0
    assert [cell["execution_count"] for cell in cells] == [1, 2] and cells[0]["outputs"] == []
    text, picture = cells[1]["outputs"]
    assert text["text"] == ["42\n"] and base64.b64decode(picture["data"]["image/png"]) == PIXEL


def test_a_cell_that_raises_ends_the_run(tmp_path):
    code, cells = run(tmp_path, "print('before')", "1 / 0", "print('never')")
    assert code == 1
    assert cells[0]["outputs"][0]["text"] == ["before\n"]
    assert "ZeroDivisionError" in "".join(cells[1]["outputs"][0]["text"]) and cells[2]["outputs"] == []
