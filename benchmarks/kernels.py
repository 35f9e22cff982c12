"""Sparse products: our compiled loop against torch's CSR product and SciPy, on whole graphs and on sparse features.

python benchmarks/kernels.py computers physics cs
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import scipy.sparse
import torch

from sgcl.data import load_graph
from sgcl.graph import View
from sgcl.kernels import SparseMatrix
from sgcl.pipeline import versions


def milliseconds(call: Callable[[], object], turns: int = 15) -> float:
    call()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def compare(matrix: SparseMatrix, width: int) -> dict[str, float]:
    dense = torch.randn(matrix.shape[1], width)
    parts = (matrix.values.numpy(), matrix.col.numpy(), matrix.crow.numpy())
    theirs = scipy.sparse.csr_matrix(parts, matrix.shape)
    return {
        "ours": milliseconds(lambda: matrix.times(dense, torch.float32)),
        "ours, bfloat16": milliseconds(lambda: matrix.times(dense.bfloat16(), torch.bfloat16)),
        "torch CSR, int32": milliseconds(lambda: matrix.csr @ dense),
        "SciPy": milliseconds(lambda: theirs @ dense.numpy()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=["photo"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "made_by": versions(),
        "unit": "milliseconds, median of 15",
    }
    for name in arguments.graphs:
        view = View.of(load_graph(name))
        report[f"{name}: adjacency, 256 columns"] = compare(view.adjacency, 256)
        if isinstance(view.features, SparseMatrix):
            report[f"{name}: features, 512 columns"] = compare(view.features, 512)
            report[f"{name}: features transposed, 512 columns"] = compare(view.features.T, 512)
    path = arguments.out / f"kernels-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
