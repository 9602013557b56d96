"""Runs the flashmla program for the tests in this folder."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEMO_MODEL = REPOSITORY / "models" / "demo"
FIRST_LINE = r"^Using (cpu|reference) MLA back end \(\S.*: .+\)$"  # of every subcommand that runs a model
PROGRAM = os.environ.get("FLASHMLA_PROGRAM", "build/cpu/cli/flashmla")


def run(*arguments):
    """Exit code, stdout and stderr of one run."""
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=500, check=False)


def tiny_config(folder, **changes):
    """config.json of a tiny model, for --random-weights; returns its path."""
    fixture = json.loads((REPOSITORY / "tests" / "fixtures" / "models" / "v2lite-tiny.json").read_text())
    path = folder / "config.json"
    path.write_text(json.dumps({**fixture["config"], **changes}))
    return path


class ProgramTest(unittest.TestCase):
    """Has a folder of its own that is gone afterwards."""

    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def right(self, *arguments):
        """Stdout of a run that exits with 0 and prints nothing to stderr."""
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def refused(self, *arguments):
        """The text of a run that exits with 2 and does nothing else."""
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}\n{done.stdout}{done.stderr}")
        self.assertEqual(done.stdout, "", arguments)
        self.assertTrue(done.stderr.startswith("flashmla: "), done.stderr)
        self.assertRegex(done.stderr, r"\nTry 'flashmla[a-z ]* --help'\.\n$")
        return done.stderr

    def json_of(self, *arguments):
        """The JSON that a right run writes."""
        path = self.folder / "out.json"
        self.right(*arguments, "--json", path)
        return json.loads(path.read_text())

    def check_header(self, document, command):
        """What every results file says about its run."""
        for key in ("version", "commit", "processor", "date"):
            self.assertIsInstance(document[key], str)
            self.assertNotEqual(document[key], "")
        self.assertEqual(document["library"], "flashmla")
        self.assertRegex(document["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(document["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertGreaterEqual(document["threads"], 1)
        self.assertTrue(document["command_line"].startswith(f"flashmla {command}"), document["command_line"])
