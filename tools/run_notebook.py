#!/usr/bin/env python3
"""Runs the code cells of a notebook in one Python process and stores what they print and display in it.

    python tools/run_notebook.py examples/tutorial.ipynb --out tutorial.ipynb

For machines without Jupyter. Only printed text and PNG pictures given to IPython.display are stored; IPython itself is
not wanted. Exit code 1 when a cell raises; its output so far and the cells before it are stored.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import pathlib
import sys
import traceback
import types


class Picture:
    """IPython.display.Image for PNG files."""

    def __init__(self, file):
        self.png = base64.b64encode(pathlib.Path(file).read_bytes()).decode()


def display_module(show) -> types.ModuleType:
    package = types.ModuleType("IPython")
    module = types.ModuleType("IPython.display")
    module.Image = Picture
    module.display = show
    package.display = module
    package.version_info = (9, 0)  # matplotlib asks for both
    package.get_ipython = lambda: None
    return package


def run_cell(source: str, name: str, namespace: dict) -> tuple[list[dict], bool]:
    """The outputs of a cell, and whether it ran to its end."""
    printed = io.StringIO()
    pictures: list[dict] = []
    package = display_module(lambda picture: pictures.append({"image/png": picture.png}))
    sys.modules.update({"IPython": package, "IPython.display": package.display})
    done = True
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, name, "exec"), namespace)  # noqa: S102
        except Exception:
            traceback.print_exc(file=printed)
            done = False
    outputs = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    outputs += [{"output_type": "display_data", "metadata": {}, "data": data} for data in pictures]
    return outputs, done


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("notebook", type=pathlib.Path)
    arguments.add_argument("--out", type=pathlib.Path, required=True, help="the notebook with outputs")
    given = arguments.parse_args()
    notebook = json.loads(given.notebook.read_text(encoding="utf-8"))
    namespace = {"__name__": "__main__"}
    done = True
    for number, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), start=1):
        if not done:
            break
        cell["outputs"], done = run_cell("".join(cell["source"]), f"cell {number}", namespace)
        cell["execution_count"] = number
        given.out.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
