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
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GCNConv

from sgcl.buffers import Buffers
from sgcl.data import load_graph
from sgcl.graph import View, is_csr
from sgcl.kernels import product
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
    if kind == "duo":
        return stepper(name, method="duo")
    return plain_stepper(name) if kind == "plain" else stepper(name, precision=kind)


def parts(name: str, precision: str, steps: int) -> dict[str, float]:
    """Median milliseconds of the verbs of a step; the online pass inside the loss is told apart."""
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

    encode = method.encoder.encode
    method.encoder.encode = lambda *view: clock(
        "forward" if method.learner.training else "target pass", lambda: encode(*view)
    )
    reused = Buffers()
    for _ in range(steps):
        with reused():
            view = clock("view", lambda: _ready(method.augment(whole)))
            loss = clock("forward and loss", lambda view=view: method.loss(view))
            clock("backward", lambda loss=loss: loss.backward())
            clock("update", optimizer.step)
            optimizer.zero_grad()
            clock("target", lambda view=view: method.update(view))
    median = {what: statistics.median(times) for what, times in seen.items()}
    del median["target pass"]
    median["loss"] = median.pop("forward and loss") - median["forward"]
    return median


def operations(name: str) -> dict[str, float]:
    """GFLOP of a step's products as we do them: dense ones, and sparse ones (averages, and sparse features)."""
    graph, recipe = load_graph(name), recipe_for(name)
    nodes, columns = graph.x.shape
    entries = graph.edge_index.shape[1] * (1 - recipe.edge_drop) + nodes
    used = columns * (1 - recipe.feature_drop)
    first, *_ = widths = [*recipe.hidden, recipe.dim]
    if is_csr(graph.x):  # online, gradient, target
        dense, sparse = 0.0, 3 * (len(graph.x.values()) * (1 - recipe.feature_drop) + entries) * first
    elif columns < 3 * first:
        dense, sparse = 3 * nodes * used * first, entries * columns
    else:
        dense, sparse = 3 * nodes * columns * first, 3 * entries * first
    for a, b in pairwise(widths):  # online, both gradients, target
        dense += 4 * nodes * a * b
        sparse += 3 * entries * b
    dense += 3 * nodes * recipe.dim**2  # predictor, prediction, its gradient
    return {"dense": 2 * dense / 1e9, "sparse": 2 * sparse / 1e9}


def _ready(view: View) -> View:
    assert view.adjacency is not None
    return view


def estimated(name: str, kind: str, milliseconds: float, mib: float) -> dict[str, float]:
    """What ``sgcl estimate`` says beforehand, and by how much that is off."""
    command = ["sgcl", "estimate", name, "--method", "sgcl", "--precision", kind, "--json"]
    found = json.loads(subprocess.check_output(command, text=True))
    said, memory = 1000 * found["step_seconds"], found["memory"] / 2**20
    return {
        "milliseconds": said, "off": said / milliseconds - 1, "mib": memory, "memory_off": memory / mib - 1,
    }  # fmt: skip


def work(kind: str, name: str) -> None:
    """Do one step for every line read, and answer with its seconds and the memory so far, in MiB above the imports."""
    import sgcl.kernels.loops  # noqa: F401 - an import as well, with its compiler

    before = resident("VmRSS")
    step = make(kind, name)
    for _ in sys.stdin:
        print(_seconds(step), resident("VmHWM") - before, flush=True)


def alternate(
    name: str, turns: int, untimed: int = 3, kinds: Sequence[str] = KINDS
) -> tuple[dict[str, float], dict[str, float]]:
    """Median milliseconds and peak MiB of every kind, one step of each in turn, each in a process of its own."""
    command = [sys.executable, __file__, "--work"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    workers = {kind: subprocess.Popen([*command, kind, name], **pipes) for kind in kinds}
    answers: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(turns + untimed):
        for kind, worker in workers.items():
            print("step", file=worker.stdin)
            answers[kind].append([float(value) for value in worker.stdout.readline().split()])
    for worker in workers.values():
        worker.communicate()
    median = {kind: 1000 * statistics.median(one for one, _ in found[untimed:]) for kind, found in answers.items()}
    return median, {kind: found[-1][1] for kind, found in answers.items()}


def resident(which: str) -> float:
    """MiB resident now (VmRSS) or at the most so far (VmHWM); getrusage would tell the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def product_peak(dtype: torch.dtype) -> float:
    """GFLOP/s of a large matrix product, by the fastest way that we know."""
    a, b = torch.randn(4096, 2048, dtype=torch.float32).to(dtype), torch.randn(2048, 2048).to(dtype)
    best = min(_seconds(lambda: product(a, b, dtype)) for _ in range(8))
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
    parser.add_argument("--work", nargs=2, metavar=("KIND", "GRAPH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*arguments.work)
        return
    peaks = {"fp32": product_peak(torch.float32), "bf16": product_peak(torch.bfloat16)}
    report: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "made_by": versions(),
        "peak_gflops": peaks,
        "auto": pick_precision("auto", torch.device("cpu")),
    }
    for name in arguments.graphs:
        median, memory = alternate(name, arguments.steps)
        products = operations(name)
        speed = {kind: 1000 * sum(products.values()) / median[kind] for kind in KINDS[1:]}
        report[name] = {
            "command": "python " + " ".join(sys.argv),
            "milliseconds": median,
            "times_faster": {kind: median["plain"] / median[kind] for kind in KINDS[1:]},
            "peak_mib": memory,
            "share_of_memory": {kind: memory[kind] / memory["plain"] for kind in KINDS[1:]},
            "parts": {kind: parts(name, kind, arguments.steps) for kind in KINDS[1:]},
            "gflop": products,
            "gflops": speed,
            "share_of_peak": {
                kind: speed[kind] / peaks[pick_precision(kind, torch.device("cpu"))] for kind in KINDS[1:]
            },
            "estimate": {kind: estimated(name, kind, median[kind], memory[kind]) for kind in KINDS[1:]},
        }
        print(name, json.dumps(report[name], indent=1))
    path = arguments.out / f"step-{report['date']}.json"
    if path.exists():  # other graphs of the same day
        report = {**json.loads(path.read_text()), **report}
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
