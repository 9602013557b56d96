"""Adds up the test results of ./dev test and ends with 'N passed, N failed, N skipped'.

Reads FOLDER/stages.tsv (name, exit code, seconds) and FOLDER/<name>.xml, the JUnit files of ctest and pytest.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


class Stage:
    def __init__(self, name, exit_code, seconds):
        self.name = name
        self.exit_code = exit_code
        self.seconds = seconds
        self.passed = 0
        self.failed = []  # names of tests
        self.skipped = []  # (name, reason)

    def read(self, path):
        if path.exists():
            for case in ElementTree.parse(path).iter("testcase"):
                self.add(case)
        # A stage that broke off, or that ran nothing, must not look like one that passed.
        if self.exit_code != 0 and not self.failed:
            self.failed.append(f"the stage itself (exit code {self.exit_code}; see its output above)")
        elif self.passed + len(self.failed) + len(self.skipped) == 0:
            self.failed.append("the stage itself (it ran no test)")

    def add(self, case):
        name = case.get("name")
        if case.get("classname", name) != name:
            name = f"{case.get('classname')}::{name}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            self.failed.append(name)
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            self.skipped.append((name, skip_reason(case, skipped)))
        else:
            self.passed += 1


def skip_reason(case, skipped):
    """pytest states it in an attribute; GoogleTest's is the line after 'Skipped' in what ctest kept of the output."""
    output = case.findtext("system-out") or ""
    found = re.search(r"Skipped\n(.+)", output)
    if found:
        return found.group(1).strip()
    return skipped.get("message", "no reason given") if skipped is not None else "disabled"


def print_grouped(title, entries):
    """One line for each (stage, reason): the count, the reason, the names."""
    groups = {}
    for stage, name, reason in entries:
        groups.setdefault((stage, reason), []).append(name)
    if groups:
        print(f"\n{title}:")
    for (stage, reason), names in groups.items():
        print(f"  {stage}: {len(names)} x {reason}" if reason else f"  {stage}:")
        for name in names:
            print(f"      {name}")


def main():
    folder = pathlib.Path(sys.argv[1])
    stages = []
    for line in (folder / "stages.tsv").read_text().splitlines():
        name, exit_code, seconds = line.split("\t")
        stage = Stage(name, int(exit_code), int(seconds))
        stage.read(folder / f"{name}.xml")
        stages.append(stage)

    print_grouped("skipped", [(s.name, name, reason) for s in stages for name, reason in s.skipped])
    print_grouped("failed", [(s.name, name, "") for s in stages for name in s.failed])
    print(f"\n{'stage':10} {'passed':>8} {'failed':>8} {'skipped':>8} {'seconds':>8}")
    for s in stages:
        print(f"{s.name:10} {s.passed:8} {len(s.failed):8} {len(s.skipped):8} {s.seconds:8}")
    passed = sum(s.passed for s in stages)
    failed = sum(len(s.failed) for s in stages)
    skipped = sum(len(s.skipped) for s in stages)
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
