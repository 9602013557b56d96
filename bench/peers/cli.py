"""The command line: `flashmla bench decode --peers ...`, `./dev peers ...` and `python -m flashmla.peers ...`."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import sys
from typing import NoReturn

import torch

from . import report, sets
from .adapters import ADAPTERS, LIBRARIES, Adapter
from .cases import Case
from .run import Entry, Options, Run, load, run

EXIT_RIGHT, EXIT_WRONG_RESULT, EXIT_BAD_USAGE = 0, 1, 2

EXAMPLES = """\
Sets: {sets}

Examples:
  flashmla bench decode --peers all --plot pictures
  flashmla bench decode --peers torch,flashinfer_fa3 --set low-batch,ragged --json out.json --csv out.csv
  flashmla bench decode --peers all --batch 1 --heads-q 16 --seq-k 512,4096,32768
  python -m flashmla.peers plot out.json --out pictures

Exit codes: 0 right, 1 a wrong result or a failure of flashmla's, 2 bad usage."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"flashmla: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(EXIT_BAD_USAGE)


def _names_of(known: tuple[str, ...], what: str):
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"got '{name}'; want {what}: {', '.join(known)}")
        return names

    return parse


def _peers(text: str) -> list[str]:
    return list(LIBRARIES) if text == "all" else _names_of((*LIBRARIES, "all"), "'all' or names of")(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got '{text}'; want a whole number of at least 1")
    return int(text)


def parser() -> argparse.ArgumentParser:
    names = "\n      ".join(f"{name:18} {about}" for name, about in sets.ABOUT.items())
    made = _Parser(
        "flashmla bench decode --peers", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Decode attention of flashmla and of other libraries, in turns on the same inputs.",
        epilog=EXAMPLES.format(sets=names.strip()),
    )  # fmt: skip
    made.add_argument("--peers", type=_peers, default=list(LIBRARIES), metavar="all|LIST",
                      help=f"libraries beside flashmla, joined with commas: {', '.join(LIBRARIES[1:])}")  # fmt: skip
    made.add_argument("--set", dest="sets", type=_names_of(tuple(sets.SETS), "sets of"), metavar="LIST",
                      help="named sets of shapes (tutorial on a GPU, cpu without one)")  # fmt: skip
    made.add_argument("--batch", type=_positive, help="a shape of your own: requests (1)")
    made.add_argument("--heads-q", type=_positive, help="query heads (16)")
    made.add_argument("--seq-q", type=_positive, help="new tokens of each request (1)")
    made.add_argument(
        "--seq-k", metavar="N[,N..]|LO:HI", help="cached tokens: a shape each, or drawn for each request (4096)"
    )
    made.add_argument("--page-size", type=_positive, help="tokens of a page (64)")
    made.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU where there is one")
    made.add_argument(
        "--seconds", type=float, default=90.0, help="time for the whole run; every case gets five rounds (90)"
    )
    made.add_argument("--hot", action="store_true", help="also after one second of load: the column chip_hot_us")
    made.add_argument("--eager", action="store_true", help="also without CUDA graphs: the column eager_us")
    made.add_argument("--json", metavar="FILE", help="results; written after every case")
    made.add_argument("--csv", metavar="FILE", help="rows; with the set tutorial also FILE.tutorial.csv in its format")
    made.add_argument("--plot", metavar="FOLDER", help="draw the pictures there (needs matplotlib)")
    made.add_argument("--format", choices=("png", "svg"), default="png", help="of the pictures (png)")
    made.add_argument("--log", metavar="FILE", help="tracebacks of libraries that fail (standard error)")
    made.add_argument("--commit", default="", help="commit named in the JSON; left out: the checkout's")
    return made


def cases_of(options: argparse.Namespace, device: torch.device) -> tuple[list[str], list[Case]]:
    """Names of the sets, and the cases; raises ValueError for flags that contradict each other."""
    own = {name: getattr(options, name) for name in ("batch", "heads_q", "seq_q", "seq_k", "page_size")}
    given = [f"--{name.replace('_', '-')}" for name, value in own.items() if value is not None]
    if options.sets and given:
        raise ValueError(f"{given[0]}: got it together with --set, which decides the shapes; want one or the other")
    if not given:
        names = options.sets or ["tutorial" if device.type == "cuda" else "cpu"]
        return names, sets.cases_of(names)
    batch, tokens = options.batch or 1, options.seq_q or 1
    made = []
    for name, lengths in _lengths(options.seq_k or "4096", batch):
        if min(lengths) < tokens:
            raise ValueError(
                f"--seq-k: got {min(lengths)} with --seq-q {tokens}; want at least as many cached tokens as new ones"
            )
        title = f"b{batch} h{options.heads_q or 16}{f' s_q {tokens}' if tokens > 1 else ''} {name}"
        made.append(Case(title, options.heads_q or 16, lengths, tokens, options.page_size or 64))
    return [], made


def _lengths(text: str, batch: int) -> list[tuple[str, tuple[int, ...]]]:
    least, colon, most = text.partition(":")
    words = [least, most] if colon else text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words) or (colon and int(least) > int(most)):
        raise ValueError(f"--seq-k: got '{text}'; want N, N,N,.. or LO:HI, each at least 1")
    if colon:
        draw = random.Random(1)
        return [(f"{least}-{most}", tuple(draw.randint(int(least), int(most)) for _ in range(batch)))]
    return [(word, (int(word),) * batch) for word in words]


def device_of(name: str | None) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device: got cuda, but torch sees no GPU here; want cpu, or a machine with an NVIDIA GPU")
    kind = name or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device("cpu")


def _check_folders(options: argparse.Namespace) -> None:
    for flag in ("json", "csv", "log"):
        path = getattr(options, flag)
        if path and not pathlib.Path(path).resolve().parent.is_dir():
            raise ValueError(f"--{flag}: got '{path}', whose folder does not exist; want a path in a folder that does")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["plot"]:
        from .plots import main as plot

        return plot(arguments[1:])
    made = parser()
    options = made.parse_args(arguments)
    try:
        device = device_of(options.device)
        names, cases = cases_of(options, device)
        _check_folders(options)
    except ValueError as error:
        made.error(str(error))
    adapters = [a for a in ADAPTERS if a.library in options.peers or a.library == report.OURS]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(options.log, "w", encoding="utf-8")) if options.log else sys.stderr
        return _bench(options, device, names, cases, adapters, log)


def _bench(options, device, names: list[str], cases: list[Case], adapters: list[Adapter], log) -> int:
    present, _ = load(adapters, device)
    header = report.header_of(device, names, options.commit)
    print(f"{header['device']}; {', '.join(f'{a.library} ({a.version()})' for a in present)}", flush=True)
    table = report.Table([(adapter.library, adapter.kernel) for adapter in present])

    def after_case(so_far: Run, entries: list[Entry]) -> None:
        table.add(entries)
        if options.json:
            report.write_json(options.json, report.document_of(so_far, header))

    how = Options(device, options.seconds, options.hot, options.eager, log)
    result = run(cases, adapters, how, after_case)
    rows = report.rows_of(result)
    print(report.closing_text(result, rows), flush=True)
    if options.csv:
        pathlib.Path(options.csv).write_text(report.csv_of(rows), encoding="utf-8")
        if any(row["name"].startswith("tutorial ") for row in rows):
            pathlib.Path(options.csv).with_suffix(".tutorial.csv").write_text(
                report.tutorial_csv_of(rows), encoding="utf-8"
            )
    if options.plot:
        from .plots import draw_or_say_why

        draw_or_say_why(report.document_of(result, header), options.plot, options.format)
    ours_right = all(entry.status in ("ok", "unsupported") for entry in result.entries if entry.library == report.OURS)
    return EXIT_RIGHT if ours_right else EXIT_WRONG_RESULT
