"""Memory and time of a run before it: counted memory, and a short calibration on a random graph of the same shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from sgcl.data import Source
from sgcl.graph import View, is_csr
from sgcl.kernels import SparseMatrix, build_csr
from sgcl.methods import method_named
from sgcl.pipeline import Settings, build, seeded, train_config
from sgcl.training import train

CALIBRATION_SECONDS = 2.0
_OVERHEAD = 60 << 20
"""Bytes that libraries set aside whatever the graph: thread pools, packed matrices, compiled loops."""

_DECOMPOSITION = 40 << 20
"""Bytes that reducing features and whitening set aside."""


@dataclass(frozen=True)
class Shape:
    """The counts that cost depends on.

    Attributes:
        nodes: N.
        pairs: ordered pairs.
        features: columns.
        stored: stored entries of sparse features, ``None`` for dense ones.
    """

    nodes: int
    pairs: int
    features: int
    stored: int | None = None

    @classmethod
    def of(cls, source: Source) -> Shape:
        """The counts of a graph."""
        x = source.data.x
        nodes, features = x.shape
        return cls(nodes, source.data.edge_index.shape[1], features, len(x.values()) if is_csr(x) else None)


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        memory: peak bytes above the imports, graph included.
        step_seconds: one training step.
        run_seconds: all steps of the recipe.
        available: bytes that the machine has free, ``None`` where it does not say.
    """

    memory: int
    step_seconds: float
    run_seconds: float
    available: int | None

    @property
    def fits(self) -> bool:
        """Whether the memory is there."""
        return self.available is None or self.memory <= self.available


def estimate(shape: Shape, settings: Settings, device: torch.device | str = "cpu") -> Estimate:
    """Peak memory from counts, and time from at most two seconds of training on a random graph of the same shape."""
    seconds, available = step_seconds(shape, settings, device), available_memory(device)
    return Estimate(peak_memory(shape, settings), seconds, seconds * settings.recipe.steps, available)


def peak_memory(shape: Shape, settings: Settings) -> int:
    """Bytes above the imports while the graph is read, trained on as a whole, and embedded."""
    recipe, nodes = settings.recipe, shape.nodes
    graph = 16 * shape.pairs + _features(shape)
    read = 24 * shape.pairs + 2 * _features(shape)  # copies while symmetrising and normalising
    seen = trained_on(shape, settings)
    widths, _ = method_named(settings.method).plan(shape.features, recipe.hidden, recipe.dim)
    if seen is shape:
        return max(read, graph + _training(seen, settings, widths)) + _OVERHEAD
    reduced = _features(seen)
    reducing = 2 * _features(shape) + 2 * reduced  # unit rows, their product
    averaged = 8 * shape.pairs + _features(shape) + 2 * reduced + 16 * nodes * recipe.dim  # halves, hops, and result
    step = _training(seen, settings, widths)
    return max(read, graph + reduced + max(reducing, step, averaged)) + _OVERHEAD + _DECOMPOSITION


def trained_on(shape: Shape, settings: Settings) -> Shape:
    """The shape of the graph that training sees: with reduced features where the method reduces them."""
    method = method_named(settings.method)
    if not method.reduces_features:
        return shape
    (features, *_), _ = method.plan(shape.features, settings.recipe.hidden, settings.recipe.dim)
    return replace(shape, features=features, stored=None)


def _training(shape: Shape, settings: Settings, widths: list[int]) -> int:
    """Bytes of a step beside the graph."""
    nodes, entry = shape.nodes, 2 if settings.precision == "bf16" else 4
    _, *hidden, dim = widths
    kept = int(shape.pairs * (1 - settings.recipe.edge_drop)) + nodes
    if shape.stored is None:
        converted = entry * nodes * shape.features if entry == 2 else 0
        averaged = entry * nodes * shape.features if shape.features < 3 * widths[1] else 0
        held = converted + averaged
    else:
        held = 16 * shape.stored  # 32-bit indices and the transpose
    thinned = 16 * kept + 8 * kept * 2
    layers = nodes * (2 * entry * sum(hidden) + 8 * dim)  # input of each norm, and its output
    backward = nodes * max(widths[1:]) * (2 * entry + 4)
    targets = 2 * 4 * nodes * dim
    loss = 3 * entry * nodes * dim
    return held + thinned + layers + max(backward, loss) + targets + _weights(widths)


def _features(shape: Shape) -> int:
    return 4 * shape.nodes * shape.features if shape.stored is None else 12 * shape.stored + 8 * shape.nodes


def _weights(sizes: list[int]) -> int:
    parameters = sum(a * b + 3 * b + 1 for a, b in pairwise(sizes))
    return 4 * 5 * parameters  # itself, gradient, two moments, and one in transit


def step_seconds(shape: Shape, settings: Settings, device: torch.device | str = "cpu") -> float:
    """Seconds of a step, extrapolated from random graphs of growing size that two seconds suffice for.

    Features per node, stored entries per node, degree and widths are those of the real graph. A part of the cost, that
    of the weights, does not grow with the nodes: the last two sizes tell which.
    """
    shape = trained_on(shape, settings)
    deadline = time.perf_counter() + CALIBRATION_SECONDS
    nodes, smaller, before = min(shape.nodes, 1024), 0, 0.0
    _timed(min(shape.nodes, 256), shape, settings, 1, device)  # loops are compiled or loaded
    while True:
        seconds = _timed(nodes, shape, settings, 3, device)
        slope = (seconds - before) / (nodes - smaller)
        if slope <= 0:  # noise
            slope = seconds / nodes
        # Another size costs making the graph, the first view, and four steps, which is less than eight steps.
        room = deadline - time.perf_counter()
        larger = min(shape.nodes, 4 * nodes, int(room / (8 * seconds) * nodes))
        if nodes == shape.nodes or larger < 1.5 * nodes:
            return seconds + slope * (shape.nodes - nodes)
        nodes, smaller, before = larger, nodes, seconds


def _timed(nodes: int, shape: Shape, settings: Settings, steps: int, device: torch.device | str) -> float:
    view = _random_view(nodes, shape).to(device)
    with seeded(0):
        method = build(settings, shape.features).to(device)
        run = iter(train(method, view, replace(train_config(settings.recipe), steps=10**9)))
        times = [_seconds_of(lambda: next(run), device) for _ in range(steps + 1)]
    return statistics.median(times[1:])


def _seconds_of(call: Callable[[], object], device: torch.device | str) -> float:
    start = time.perf_counter()
    call()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _random_view(nodes: int, shape: Shape) -> View:
    draw = torch.Generator().manual_seed(0)
    pairs = max(1, round(shape.pairs * nodes / shape.nodes))
    receiver = torch.randint(nodes, (pairs,), generator=draw).sort().values
    edge_index = torch.stack([torch.randint(nodes, (pairs,), generator=draw), receiver])
    if shape.stored is None:
        return View(torch.rand(nodes, shape.features, generator=draw), edge_index)
    stored = max(1, round(shape.stored * nodes / shape.nodes))
    rows = torch.randint(nodes, (stored,), generator=draw)
    crow = torch.zeros(nodes + 1, dtype=torch.int64)
    crow[1:] = torch.bincount(rows, minlength=nodes).cumsum(0)
    col = (torch.rand(stored, generator=draw).square_() * shape.features).long().clamp_(max=shape.features - 1)
    x = SparseMatrix.from_torch(build_csr(crow, col, torch.rand(stored, generator=draw), (nodes, shape.features)))
    return View(x, edge_index)


def available_memory(device: torch.device | str = "cpu") -> int | None:
    """Bytes that can be had on the device, on the CPU without swapping and where the system says (Linux)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
