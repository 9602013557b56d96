"""The report of ./dev test counts rightly and cannot end well when something broke."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

CTEST = """<testsuite>
<testcase name="Decode.Works" classname="Decode.Works" status="run"/>
<testcase name="Decode.Isa/avx2" classname="Decode.Isa/avx2" status="notrun"><skipped message="SKIP_REGULAR"/>
<system-out>tests/x.cc:7: Skipped
not on this processor
</system-out></testcase>
<testcase name="Decode.Off" classname="Decode.Off" status="disabled"/>
{more}</testsuite>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="test_decode" name="test_a"/>
<testcase classname="test_decode" name="test_b"><skipped message="needs torch"/></testcase>
{more}</testsuite></testsuites>"""
CTEST_FAILURE = '<testcase name="Merge.Wrong" classname="Merge.Wrong" status="fail"><failure message=""/></testcase>'
PYTEST_ERROR = '<testcase classname="test_merge" name="test_c"><error message="boom"/></testcase>'


class Report(unittest.TestCase):
    def report(self, stages, **files):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "stages.tsv").write_text("".join(f"{name}\t{code}\t5\n" for name, code in stages))
            for name, text in files.items():
                (path / f"{name}.xml").write_text(text)
            answer = subprocess.run(
                [sys.executable, ROOT / "tools" / "dev" / "report.py", folder], capture_output=True, text=True, check=False
            )
        self.assertEqual(answer.stderr, "")
        return answer.returncode, answer.stdout

    def last_line(self, text):
        return text.rstrip("\n").rsplit("\n", 1)[-1]

    def test_counts_and_names_what_was_skipped(self):
        code, text = self.report([("cpp", 0), ("python", 0)], cpp=CTEST.format(more=""), python=PYTEST.format(more=""))
        self.assertEqual((code, self.last_line(text)), (0, "2 passed, 0 failed, 3 skipped"))
        for part in ("Decode.Isa/avx2", "not on this processor", "Decode.Off", "test_decode::test_b", "needs torch"):
            self.assertIn(part, text)

    def test_failures_and_errors_count(self):
        code, text = self.report(
            [("cpp", 8), ("python", 1)], cpp=CTEST.format(more=CTEST_FAILURE), python=PYTEST.format(more=PYTEST_ERROR)
        )
        self.assertEqual((code, self.last_line(text)), (1, "2 passed, 2 failed, 3 skipped"))
        self.assertIn("Merge.Wrong", text)
        self.assertIn("test_merge::test_c", text)

    def test_a_stage_that_broke_off_fails(self):
        code, text = self.report([("cpp", 0), ("asan", 1)], cpp=CTEST.format(more=""))
        self.assertEqual((code, self.last_line(text)), (1, "1 passed, 1 failed, 2 skipped"))
        code, text = self.report([("cpp", 137)], cpp=CTEST.format(more=""))
        self.assertEqual((code, self.last_line(text)), (1, "1 passed, 1 failed, 2 skipped"))

    def test_a_stage_that_ran_nothing_fails(self):
        code, text = self.report([("cpp", 0)], cpp="<testsuite/>")
        self.assertEqual((code, self.last_line(text)), (1, "0 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
