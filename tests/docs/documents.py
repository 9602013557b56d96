"""The documents of this repository, as the checks here read them."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where a build made by ./dev lies; another one is named by FLASHMLA_BUILD.
BUILD = pathlib.Path(os.environ.get("FLASHMLA_BUILD", ROOT / "build" / "cpu"))
PROGRAM = BUILD / "cli" / "flashmla"

# Made by commands, so absent from a fresh checkout.
GENERATED = ("build/", "dist/", ".dev/")


def documents():
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert found, f"no documents below {ROOT}"
    return sorted(found)


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def code_blocks(text):
    """(language, code) of every fenced block."""
    return [(m.group(1), m.group(2)) for m in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


def inline_code(text):
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", without_blocks)


def shell_lines(text):
    """Commands in sh blocks: comments and continuation lines resolved."""
    lines = []
    for language, code in code_blocks(text):
        if language in ("sh", "bash", "console"):
            for line in code.replace("\\\n", " ").splitlines():
                command = re.sub(r"(^|\s)#.*", "", line).removeprefix("$ ").strip()
                if command:
                    lines.append(command)
    return lines


def commands(text):
    """Every command of ours that a document names, in a block or inline."""
    found = [*shell_lines(text), *(" ".join(code.split()) for code in inline_code(text))]
    return [command for command in found if re.match(r"(\./dev|flashmla)( |$)", command)]


def run(arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, **options)
