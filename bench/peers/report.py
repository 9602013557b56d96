"""Results as rows, JSON, CSV and a table."""

from __future__ import annotations

import csv
import datetime
import io
import json
import pathlib
import platform
import shlex
import subprocess
import sys
from typing import Any

import torch

from .cases import LATENT, ROPE, Case
from .run import Entry, Run
from .sets import TUTORIAL_LENGTHS

OURS = "flashmla"
GPU_METHOD = (
    "CUDA graphs of calls, planning outside; contenders replay in turns, after 15 ms of rest; time_us: keys rotate "
    "over 300 MiB or more (L2 cold), an ordinary kernel between the calls, its time subtracted; l2_warm_us: the same "
    "with the same keys each time; chain_us: calls back to back, L2 cold; chip_hot_us: as time_us, after a second of "
    "load; eager_us: calls without a graph"
)
CPU_METHOD = "contenders take turns of one untimed and four timed calls; the caches rotate over 96 MiB or more"


def row_of(entry: Entry, ceilings: dict[str, float]) -> dict[str, Any]:
    """One timed entry. Times in us, gbps in 1e9 bytes a second, tflops in 1e12."""
    case, time = entry.case, entry.columns["time"]
    row: dict[str, Any] = {
        "library": entry.library, "backend": "", "kernel": entry.kernel, "library_version": entry.version,
        "name": case.name, "batch": case.batch, "seq_q": case.seq_q, "heads_q": case.heads_q, "heads_kv": 1,
        "seq_k": case.longest, "seq_k_mean": case.mean_length, "page_size": case.page_size, "latent_dim": LATENT,
        "rope_dim": ROPE, "dtype": "bf16", "causal": True, "right": True, "time_us": time.median_us,
        "time_us_p10": time.p10_us, "time_us_p90": time.p90_us, "repeats": time.count,
    }  # fmt: skip
    for column in ("chain", "l2_warm", "chip_hot", "eager"):
        if column in entry.columns:
            row[f"{column}_us"] = entry.columns[column].median_us
            row[f"{column}_us_p10"] = entry.columns[column].p10_us
            row[f"{column}_us_p90"] = entry.columns[column].p90_us
    row.update(
        gbps=case.bytes / time.median_us * 1e-3, tflops=case.flops / time.median_us * 1e-6, flops=case.flops,
        bytes=case.bytes, buffer_copies=entry.copies, relative_error=entry.error,
    )  # fmt: skip
    if entry.sm_clock_mhz is not None:
        row["sm_clock_mhz"] = entry.sm_clock_mhz
    if {"gemm_tflops", "read_gbps"} <= ceilings.keys():
        compute_us = case.flops / ceilings["gemm_tflops"] * 1e-6
        memory_us = case.bytes / ceilings["read_gbps"] * 1e-3
        row.update(
            peak_tflops=ceilings["gemm_tflops"], peak_gbps=ceilings["read_gbps"],
            bound="compute" if compute_us > memory_us else "memory",
            share_of_bound=max(compute_us, memory_us) / time.median_us,
        )  # fmt: skip
    if case.target_us is not None:
        row["target_us"] = case.target_us
    return row


def rows_of(run: Run) -> list[dict[str, Any]]:
    rows = [row_of(entry, run.ceilings) for entry in run.entries if entry.status == "ok"]
    for row in rows:
        row["backend"] = run.device.type
    return rows


def left_out_of(run: Run) -> list[dict[str, str]]:
    """Every library and case without a time, and why."""
    absent = [
        dict(library=n.split()[0], kernel=n.split()[-1], name="", status="absent", reason=r)
        for n, r in run.absent.items()
    ]
    return absent + [
        dict(library=e.library, kernel=e.kernel, name=e.case.name, status=e.status, reason=e.reason)
        for e in run.entries
        if e.status != "ok"
    ]


def header_of(device: torch.device, sets: list[str], commit: str) -> dict[str, Any]:
    try:
        import flashmla

        version = flashmla.__version__
    except ImportError:
        version = "not installed"
    header: dict[str, Any] = {
        "library": OURS, "version": version, "commit": commit or _commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command_line": shlex.join(["flashmla", "bench", "decode", *sys.argv[1:]]), "sets": sets,
        "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        header.update(
            device=properties.name, multiprocessors=properties.multi_processor_count, cuda=torch.version.cuda,
            method=GPU_METHOD,
        )  # fmt: skip
    else:
        header.update(device=_processor(), threads=torch.get_num_threads(), method=CPU_METHOD)
    return header


def _commit() -> str:
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        import flashmla

        return flashmla.cpu_info().model
    except ImportError:
        return platform.processor() or platform.machine()


def document_of(run: Run, header: dict[str, Any]) -> dict[str, Any]:
    return {**header, "ceilings": run.ceilings, "rows": rows_of(run), "left_out": left_out_of(run)}


def write_json(path: str, document: dict[str, Any]) -> None:
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def csv_of(rows: list[dict[str, Any]]) -> str:
    """All rows; a column for every field that some row has."""
    fields = list(dict.fromkeys(field for row in rows for field in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def tutorial_csv_of(rows: list[dict[str, Any]]) -> str:
    """The published tutorial's file: `name,batch,seqlen,head,bw`, bw in GB/s, seqlen the mean length."""
    lines = ["name,batch,seqlen,head,bw"]
    for row in rows:
        if row["name"].startswith("tutorial "):
            lines.append(
                f"{contender_name(row)},{row['batch']},{row['seq_k_mean']:.0f},{row['heads_q']},{row['gbps']:.0f}"
            )
    return "\n".join(lines) + "\n"


def contender_name(row: dict[str, Any]) -> str:
    """Libraries by their name; torch has two forms."""
    return f"torch {row['kernel']}" if row["library"] == "torch" else row["library"]


def best_peer(rows: list[dict[str, Any]], column: str = "time_us") -> dict[str, Any] | None:
    """The fastest row of one case that is not ours."""
    peers = [row for row in rows if row["library"] != OURS and column in row]
    return min(peers, key=lambda row: row[column]) if peers else None


class Table:
    """One line a case: each contender's median in us, ours beside the best peer. Printed as the run goes."""

    WIDTHS = {"case": 34, "contender": 13}

    def __init__(self, contenders: list[tuple[str, str]], out=None) -> None:
        self._contenders = [f"torch {kernel}" if library == "torch" else library for library, kernel in contenders]
        self._out = out or sys.stdout
        titles = "".join(f"{_short(name):>{self.WIDTHS['contender']}}" for name in self._contenders)
        self._print(f"{'us, L2 cold':{self.WIDTHS['case']}}{titles}{'best peer':>20}{'its / ours':>11}{'aim':>7}")

    def add(self, entries: list[Entry]) -> None:
        if not entries:
            return
        case = entries[0].case
        shown = {("torch " + e.kernel if e.library == "torch" else e.library): e for e in entries}
        cells = "".join(f"{self._cell(shown.get(name)):>{self.WIDTHS['contender']}}" for name in self._contenders)
        self._print(f"{case.name:{self.WIDTHS['case']}}{cells}{self._verdict(case, entries)}")

    def _cell(self, entry: Entry | None) -> str:
        if entry is None:
            return ""
        if entry.status != "ok":
            return {"unsupported": "-"}.get(entry.status, entry.status.upper())
        time = entry.columns["time"]
        return f"{time.median_us:.2f} ±{50 * (time.p90_us - time.p10_us) / time.median_us:.0f}%"

    def _verdict(self, case: Case, entries: list[Entry]) -> str:
        timed = [entry for entry in entries if entry.status == "ok"]
        ours = next((entry for entry in timed if entry.library == OURS), None)
        peers = [entry for entry in timed if entry.library != OURS]
        aim = "" if case.target_us is None else f"{case.target_us:g}"
        if not peers:
            return f"{'':>20}{'':>11}{aim:>7}"
        best = min(peers, key=lambda entry: entry.columns["time"].median_us)
        name = _short("torch " + best.kernel if best.library == "torch" else best.library)
        ratio = "" if ours is None else f"{best.columns['time'].median_us / ours.columns['time'].median_us:.2f}"
        return f"{name:>20}{ratio:>11}{aim:>7}"

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def _short(name: str) -> str:
    return name.replace("upstream_flash_mla", "FlashMLA").replace("flashinfer_", "fi_")


def closing_text(run: Run, rows: list[dict[str, Any]]) -> str:
    """Ceilings, what took no part, and the tutorial's ratios."""
    lines = [
        "",
        "Ceilings of this run: " + (", ".join(f"{k} {v:.5g}" for k, v in run.ceilings.items()) or "not measured"),
    ]
    lines += [f"left out: {name}: {reason}" for name, reason in run.absent.items()]
    seen = set()
    for entry in run.entries:
        if entry.status != "ok" and (entry.library, entry.kernel, entry.reason) not in seen:
            seen.add((entry.library, entry.kernel, entry.reason))
            lines.append(f"{entry.status}: {entry.library} {entry.kernel}, {entry.case.name}: {entry.reason}")
    for length in TUTORIAL_LENGTHS:
        of_length = [row for row in rows if row["name"].endswith(f" {length}") and row["name"].startswith("tutorial ")]
        for heads in sorted({row["heads_q"] for row in of_length}, reverse=True):
            times = {row["library"]: row["time_us"] for row in of_length if row["heads_q"] == heads}
            ours = times.get(OURS)
            ratios = [f"{n} {times[n] / ours:.2f}" for n in ("flashinfer_fa2", "flashinfer_fa3") if ours and n in times]
            if ratios:
                lines.append(f"h_q {heads}, L {length}: speed-up over {', '.join(ratios)}")
    return "\n".join(lines)
