"""Every path that a document names exists."""

import re
import unittest

from documents import GENERATED, ROOT, documents, inline_code

# Not json: documents speak of models' config.json.
FILE_ENDINGS = r"\.(md|h|cc|c|cu|cuh|py|pyi|sh|txt|toml|cmake|in)$"


def is_path(word):
    """Inline code that can only mean a path here: it starts at a top-level entry, or ends like a file of ours."""
    if not re.fullmatch(r"[\w.+/-]+", word) or word.startswith(("/", "-", "./")):
        return False
    first, slash, _ = word.partition("/")
    return (bool(slash) and (ROOT / first).exists()) or bool(re.search(FILE_ENDINGS, word))


def exists(word, document):
    if word.startswith(GENERATED):
        return True
    # A header is named as a program includes it: below include/.
    return any((base / word).exists() for base in (ROOT, ROOT / "include", document.parent))


def link_targets(text):
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]


class Paths(unittest.TestCase):
    def test_every_named_path_exists(self):
        checked = 0
        missing = []
        for document in documents():
            text = document.read_text(encoding="utf-8")
            for word in [word for word in inline_code(text) if is_path(word)]:
                checked += 1
                if not exists(word, document):
                    missing.append(f"{document.relative_to(ROOT)}: {word}")
            for target in link_targets(text):
                checked += 1
                if not (document.parent / target).exists():
                    missing.append(f"{document.relative_to(ROOT)}: link to {target}")
        self.assertEqual(missing, [])
        self.assertGreater(checked, 20, "the check found hardly any path: is it still reading the documents?")

    def test_a_dead_path_is_seen(self):
        readme = ROOT / "README.md"
        for word in ("src/no_such_folder/", "docs/no-such-document.md", "flashmla/no_such_header.h"):
            self.assertTrue(is_path(word), word)
            self.assertFalse(exists(word, readme), word)


class Sizes(unittest.TestCase):
    def test_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()), 200)

    def test_sources_are_short(self):
        folders = ("include", "src", "cli", "python", "cases", "tests", "bench", "tools")
        endings = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh"}
        sources = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in endings]
        lines = {f.relative_to(ROOT): len(f.read_text(encoding="utf-8").splitlines()) for f in sources}
        self.assertGreater(len(lines), 50)
        self.assertEqual({str(f): n for f, n in lines.items() if n > 500}, {})


if __name__ == "__main__":
    unittest.main()
