"""One training step of SGCL: ours against the plain one, alternating in one run, and the memory of each.

The plain step is what PyG users would write: dense features, an edge list thinned per view, ``GCNConv``,
``BatchNorm1d``, ``PReLU``, two encoder passes, float32.

    python benchmarks/step.py photo computers cs physics
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch_geometric.nn import GCNConv

from sgcl.data import load_graph
from sgcl.graph import View, is_csr
from sgcl.pipeline import Settings, build, pick_precision, stepper, train_config, versions
from sgcl.recipes import recipe_for
from sgcl.training import train

KINDS = ("plain", "fp32", "auto")


class PlainEncoder(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        pairs = list(pairwise(sizes))
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b, momentum=0.99) for _, b in pairs)
        self.activations = nn.ModuleList(nn.PReLU() for _ in pairs)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for conv, norm, activation in zip(self.convs, self.norms, self.activations, strict=True):
            x = activation(norm(conv(x, edge_index)))
        return x


def plain_stepper(name: str, seed: int = 0) -> Callable[[], None]:
    graph, recipe = load_graph(name), recipe_for(name)
    x = graph.x.to_dense() if is_csr(graph.x) else graph.x
    edge_index = graph.edge_index
    del graph
    torch.manual_seed(seed)
    encoder = PlainEncoder([x.shape[1], *recipe.hidden, recipe.dim])
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)

    def view() -> tuple[torch.Tensor, torch.Tensor]:
        keep = torch.rand(edge_index.shape[1]) >= recipe.edge_drop
        masked = x.clone()
        masked[:, torch.rand(x.shape[1]) < recipe.feature_drop] = 0
        return masked, edge_index[:, keep]

    with torch.no_grad():
        target = encoder(*view())

    def step() -> None:
        nonlocal target
        encoder.train()
        augmented = view()
        online = encoder(*augmented)
        with torch.no_grad():
            rows = nn.functional.normalize(target - target.mean(dim=0), dim=1)
            predictor = rows.T @ rows / (len(rows) - 1)
        loss = 1 - nn.functional.cosine_similarity(online @ predictor, target).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        encoder.eval()
        with torch.no_grad():
            target = encoder(*augmented)

    return step


def make(kind: str, name: str) -> Callable[[], object]:
    return plain_stepper(name) if kind == "plain" else stepper(name, precision=kind)


def parts(name: str, precision: str, steps: int) -> dict[str, float]:
    """Median milliseconds of the verbs of a step."""
    data, recipe = load_graph(name), recipe_for(name)
    settings = Settings(recipe=recipe, precision=pick_precision(precision, torch.device("cpu")))
    method = build(settings, data.x.shape[1])
    training = train(method, data, train_config(recipe))
    whole, optimizer = View.of(data), training.optimizer
    method.train()
    method.prepare([method.augment(whole)])
    seen: dict[str, list[float]] = {}

    def clock(what: str, call: Callable[[], object]) -> object:
        start = time.perf_counter()
        result = call()
        seen.setdefault(what, []).append(1000 * (time.perf_counter() - start))
        return result

    for _ in range(steps):
        view = clock("view", lambda: _ready(method.augment(whole)))
        loss = clock("forward and loss", lambda view=view: method.loss(view))
        optimizer.zero_grad()
        clock("backward", lambda loss=loss: loss.backward())
        clock("update", optimizer.step)
        clock("target", lambda view=view: method.update(view))
    return {what: statistics.median(times) for what, times in seen.items()}


def _ready(view: View) -> View:
    assert view.adjacency is not None
    return view


def peak(kind: str, name: str) -> float:
    """MiB above the imports, highest resident, of a process that does five steps."""
    import sgcl.loops  # noqa: F401 - an import as well, with its compiler

    before = resident("VmRSS")
    step = make(kind, name)
    for _ in range(5):
        step()
    return resident("VmHWM") - before


def resident(which: str) -> float:
    """MiB resident now (VmRSS) or at the most so far (VmHWM); getrusage would tell the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def product_peak(dtype: torch.dtype) -> float:
    """GFLOP/s of a large matrix product."""
    a, b = torch.randn(4096, 2048, dtype=torch.float32).to(dtype), torch.randn(2048, 2048).to(dtype)
    best = min(_seconds(lambda: a @ b) for _ in range(8))
    return 2 * 4096 * 2048 * 2048 / best / 1e9


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=["photo"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--peak", nargs=2, metavar=("KIND", "GRAPH"), help="print the memory of one kind and stop")
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak(*arguments.peak))
        return
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "made_by": versions(),
        "peak_gflops": {str(dtype): product_peak(dtype) for dtype in (torch.float32, torch.bfloat16)},
    }
    for name in arguments.graphs:
        steppers = {kind: make(kind, name) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(arguments.steps + 2):
            for kind, step in steppers.items():
                seconds = _seconds(step)
                if turn >= 2:
                    times[kind].append(1000 * seconds)
        median = {kind: statistics.median(values) for kind, values in times.items()}
        del steppers
        memory = {
            kind: float(subprocess.check_output([sys.executable, __file__, "--peak", kind, name], text=True))
            for kind in KINDS
        }
        report[name] = {
            "command": "python " + " ".join(sys.argv),
            "milliseconds": median,
            "times_faster": {kind: median["plain"] / median[kind] for kind in KINDS[1:]},
            "peak_mib": memory,
            "share_of_memory": {kind: memory[kind] / memory["plain"] for kind in KINDS[1:]},
            "parts": {kind: parts(name, kind, arguments.steps) for kind in KINDS[1:]},
        }
        print(name, json.dumps(report[name], indent=1))
    path = arguments.out / f"step-{report['date']}.json"
    if path.exists():  # other graphs of the same day
        report = {**json.loads(path.read_text()), **report}
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
