"""Pictures of a results file: bandwidth over length, TFLOP/s over heads, latency at batch 1, roofline, speed-up map.

Each is drawn where the rows give at least two points for it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections import defaultdict
from typing import Any

from .report import OURS, best_peer, contender_name

COLORS = {
    "flashmla": "#d62728", "upstream_flash_mla": "#1f77b4", "fa3": "#2ca02c", "flashinfer_fa3": "#9467bd",
    "flashinfer_fa2": "#c5b0d5", "triton": "#ff7f0e", "torch matmul": "#7f7f7f", "torch sdpa": "#c7c7c7",
}  # fmt: skip
Rows = list[dict[str, Any]]


def _series(rows: Rows, x: str) -> dict[str, Rows]:
    """Rows of each contender in order of `x`; contenders in the order of COLORS, ours last so that it lies on top."""
    found: dict[str, Rows] = defaultdict(list)
    for row in rows:
        found[contender_name(row)].append(row)
    order = [*list(COLORS)[1:], *sorted(set(found) - set(COLORS)), OURS]
    return {name: sorted(found[name], key=lambda row: row[x]) for name in order if name in found}


def _largest_group(rows: Rows, same: tuple[str, ...], x: str) -> Rows:
    """The rows that agree in the fields `same` and have the most values of `x` between them."""
    groups: dict[tuple, Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[field] for field in same)].append(row)
    return max(groups.values(), key=lambda group: len({row[x] for row in group}), default=[])


def _lines(axes: Any, rows: Rows, x: str, y: str) -> None:
    for name, points in _series(rows, x).items():
        times = [row["time_us"] for row in points]
        values = [row[y] for row in points]
        if y == "time_us":
            bars = [
                [t - r["time_us_p10"] for t, r in zip(times, points)],
                [r["time_us_p90"] - t for t, r in zip(times, points)],
            ]
        else:
            bars = [
                [v - v * t / r["time_us_p90"] for v, t, r in zip(values, times, points)],
                [v * t / r["time_us_p10"] - v for v, t, r in zip(values, times, points)],
            ]
        bars = [[max(0.0, bar) for bar in side] for side in bars]
        axes.errorbar(
            [row[x] for row in points], values, bars, label=name, color=COLORS.get(name), marker="o", markersize=4,
            linewidth=2.4 if name == OURS else 1.4, capsize=2,
        )  # fmt: skip
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _is_tutorial(row: dict[str, Any]) -> bool:
    return row["name"].startswith("tutorial ")


def bandwidth(axes: Any, document: dict[str, Any]) -> bool:
    rows = [row for row in document["rows"] if _is_tutorial(row)] or document["rows"]
    group = _largest_group(rows, ("batch", "heads_q", "seq_q"), "seq_k_mean")
    if len({row["seq_k_mean"] for row in group}) < 2:
        return False
    _lines(axes, group, "seq_k_mean", "gbps")
    peak = document["ceilings"].get("read_gbps")
    if peak:
        axes.axhline(peak, color="#444444", linestyle="--", linewidth=1)
        axes.text(
            0.99,
            peak,
            f"read ceiling {peak:.0f} GB/s",
            ha="right",
            va="bottom",
            fontsize=8,
            transform=axes.get_yaxis_transform(),
        )
    axes.set(
        xscale="log",
        xlabel="mean cached length",
        ylabel="GB/s",
        title=f"b {group[0]['batch']}, h_q {group[0]['heads_q']}",
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    return True


def heads(axes: Any, document: dict[str, Any]) -> bool:
    rows = [row for row in document["rows"] if row["seq_k"] == row["seq_k_mean"]]
    group = _largest_group(rows, ("batch", "seq_q", "seq_k"), "heads_q")
    if len({row["heads_q"] for row in group}) < 2:
        return False
    _lines(axes, group, "heads_q", "tflops")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="query heads", ylabel="TFLOP/s", title=f"b {group[0]['batch']}, s_k {group[0]['seq_k']}")
    axes.set_ylim(bottom=0)
    return True


def latency(axes: Any, document: dict[str, Any]) -> bool:
    rows = [row for row in document["rows"] if row["batch"] == 1 and row["seq_q"] == 1]
    group = _largest_group(rows, ("heads_q",), "seq_k")
    if len({row["seq_k"] for row in group}) < 2:
        return False
    _lines(axes, group, "seq_k", "time_us")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="cached length", ylabel="us", title=f"b 1, h_q {group[0]['heads_q']}")
    return True


def roofline(axes: Any, document: dict[str, Any]) -> bool:
    ceilings = document["ceilings"]
    if not {"read_gbps", "gemm_tflops"} <= ceilings.keys() or not document["rows"]:
        return False
    for name, points in _series(document["rows"], "flops").items():
        x = [row["flops"] / row["bytes"] for row in points]
        axes.scatter(x, [row["tflops"] for row in points], s=18, label=name, color=COLORS.get(name))
    most = (
        max(ceilings["gemm_tflops"] / ceilings["read_gbps"] * 1e3, *(r["flops"] / r["bytes"] for r in document["rows"]))
        * 2
    )
    least = min(row["flops"] / row["bytes"] for row in document["rows"]) / 2
    x = [least * (most / least) ** (i / 100) for i in range(101)]
    roof = [min(ceilings["gemm_tflops"], value * ceilings["read_gbps"] * 1e-3) for value in x]
    axes.plot(x, roof, color="#444444", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="flop/B", ylabel="TFLOP/s",
             title=f"{ceilings['read_gbps']:.0f} GB/s, {ceilings['gemm_tflops']:.3g} TFLOP/s")  # fmt: skip
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return True


def speed_up(axes: Any, document: dict[str, Any]) -> bool:
    """Time of the best peer over ours, a cell each for batch and length; of the head count with the most cells."""
    by_case: dict[str, Rows] = defaultdict(list)
    for row in document["rows"]:
        by_case[row["name"]].append(row)
    cells: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for rows in by_case.values():
        ours, peer = next((row for row in rows if row["library"] == OURS), None), best_peer(rows)
        if ours and peer and ours["seq_q"] == 1:
            cells[ours["heads_q"]][ours["batch"], round(ours["seq_k_mean"])] = peer["time_us"] / ours["time_us"]
    if not cells:
        return False
    heads_q = max(cells, key=lambda h: len(cells[h]))
    chosen = cells[heads_q]
    if len(chosen) < 2:
        return False
    batches, lengths = sorted({b for b, _ in chosen}), sorted({n for _, n in chosen})
    grid = [[chosen.get((b, n), float("nan")) for n in lengths] for b in batches]
    axes.imshow(grid, cmap="RdYlGn", vmin=0.5, vmax=1.5, aspect="auto", origin="lower")
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            if value == value:
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(lengths)), lengths, rotation=45)
    axes.set_yticks(range(len(batches)), batches)
    axes.set(xlabel="mean cached length", ylabel="batch", title=f"best peer's time / flashmla's, h_q {heads_q}")
    return True


PICTURES = {"bandwidth": bandwidth, "heads": heads, "latency": latency, "roofline": roofline, "speed-up": speed_up}


def draw(document: dict[str, Any], folder: str | pathlib.Path, ending: str = "png") -> list[pathlib.Path]:
    """Writes the pictures into the folder, which is made where it is missing; returns their paths. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, picture in PICTURES.items():
        figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        if picture(figure.add_subplot(), document):
            figure.suptitle(f"MLA decode, bf16, {document.get('device', '')}", fontsize=10)
            made.append(folder / f"{name}.{ending}")
            figure.savefig(made[-1])
    return made


def draw_or_say_why(document: dict[str, Any], folder: str, ending: str) -> bool:
    try:
        made = draw(document, folder, ending)
    except ModuleNotFoundError as error:
        print(f"no pictures: {error.name} is not installed: pip install matplotlib", file=sys.stderr)
        return False
    print(f"pictures: {', '.join(str(path) for path in made) or 'none: every one needs at least two shapes'}")
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("flashmla.peers plot", description="Draws the pictures of a results file.")
    parser.add_argument("file", help="results (JSON)")
    parser.add_argument("--out", default=".", metavar="FOLDER", help="where the pictures go (.)")
    parser.add_argument("--format", choices=("png", "svg"), default="png")
    options = parser.parse_args(arguments)
    try:
        document = json.loads(pathlib.Path(options.file).read_text(encoding="utf-8"))
        if "rows" not in document:
            raise ValueError("it has no rows")
    except (OSError, ValueError) as error:
        parser.error(f"file: got '{options.file}', which is no results file of flashmla bench: {error}")
    return 0 if draw_or_say_why(document, options.out, options.format) else 1
