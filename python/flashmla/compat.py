"""`python -m flashmla.compat SCRIPT [ARGUMENT...]`: runs a Python script in which `import flash_mla` gives ours.

The script runs as `python SCRIPT` would: as `__main__`, with its arguments, its folder first on the module path.
"""

from __future__ import annotations

import os
import runpy
import sys

_USAGE = "usage: python -m flashmla.compat SCRIPT [ARGUMENT...]"


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__ if arguments else _USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    script = arguments[0]
    if not os.path.isfile(script):
        print(f"flashmla.compat: SCRIPT: got {script!r}; want an existing file\n{_USAGE}", file=sys.stderr)
        return 2
    from .flash_mla import install

    install()
    sys.argv = list(arguments)
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
