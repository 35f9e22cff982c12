"""Cost per step against size, on synthetic graphs: time should grow linearly in nodes, pairs and stored features.

python benchmarks/scaling.py --largest 1000000
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import statistics
import sys
import time
from pathlib import Path

from sgcl.pipeline import stepper, versions

SERIES = {  # what grows, and a graph of n
    "nodes, pairs and dense features": "synthetic:nodes={n},edges={ten},features=64",
    "nodes, pairs and sparse features": "synthetic:nodes={n},edges={ten},features=2000,density=0.005",
    "pairs of a fixed number of nodes": "synthetic:nodes=20000,edges={n},features=64",
}


def milliseconds(graph: str, steps: int) -> float:
    step = stepper(graph)
    times = []
    for turn in range(steps + 2):
        start = time.perf_counter()
        step()
        if turn >= 2:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "made_by": versions(),
        "unit": "milliseconds per step",
    }
    for what, graph in SERIES.items():
        sizes = [n for n in (10_000, 31_622, 100_000, 316_228, 1_000_000) if n <= arguments.largest]
        found = {}
        for n in sizes:
            found[n] = milliseconds(graph.format(n=n // 2 * 2, ten=10 * n), arguments.steps)
            gc.collect()
            print(what, n, f"{found[n]:.1f} ms", flush=True)
        report[what] = found
    path = arguments.out / f"scaling-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
