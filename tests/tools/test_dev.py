"""./dev says what is wrong: bad arguments, and a package that it could not get."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def dev(*arguments, root=ROOT):
    return subprocess.run([root / "dev", *arguments], capture_output=True, text=True, timeout=300, check=False)


class Dev(unittest.TestCase):
    def test_help(self):
        answer = dev("help")
        self.assertEqual(answer.returncode, 0)
        for command in ("demo", "test", "build", "bench", "wheel", "fmt", "tidy"):
            self.assertRegex(answer.stdout, rf"(?m)^  {command}\b")

    def test_bad_arguments_end_with_a_line_that_names_them(self):
        for arguments, part in (
            (["polish"], "no command 'polish'"),
            (["test", "--fast"], "'test' does not take '--fast'"),
            (["build", "all"], "'build' does not take 'all'"),
            (["build", "--wheelhouse", "/no/such/folder"], "no folder '/no/such/folder'"),
            (["build", "--wheelhouse"], "--wheelhouse needs a folder"),
        ):
            with self.subTest(arguments):
                answer = dev(*arguments)
                self.assertEqual(answer.returncode, 1)
                last = answer.stderr.rstrip("\n").rsplit("\n", 1)[-1]
                self.assertTrue(last.startswith("dev: error: ") and part in last, last)

    def test_a_package_that_cannot_be_had_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "checkout"
            shutil.copytree(ROOT / "tools", copy / "tools")
            shutil.copy(ROOT / "dev", copy / "dev")
            wheelhouse = pathlib.Path(folder) / "empty"
            wheelhouse.mkdir()
            answer = dev("fmt", "--wheelhouse", str(wheelhouse), root=copy)
        wanted = (ROOT / "tools" / "requirements" / "fmt.txt").read_text().splitlines()[-1]
        self.assertEqual(answer.returncode, 1)
        self.assertIn(f"dev: error: pip could not install {wanted}", answer.stderr)
        self.assertIn("--wheelhouse DIR", answer.stderr)


if __name__ == "__main__":
    unittest.main()
