"""One door to graphs: a name, a file, or a Python object becomes a :class:`Source`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from sgcl.data.catalogue import DATASETS
from sgcl.data.npz import read_npz
from sgcl.data.own import as_data
from sgcl.data.synthetic import parse_synthetic
from sgcl.errors import InputError
from sgcl.graph import is_csr


@dataclass(frozen=True)
class Source:
    """A graph with what its user calls things.

    Attributes:
        name: the data set's name, or where the graph came from.
        data: features ``x``, ordered pairs ``edge_index``, labels ``y`` if known, masks if splits are public.
        ids: what the nodes are called; ``None`` means 0, 1, 2, ...
    """

    name: str
    data: Data
    ids: Any = None

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of features and edges: a checkpoint belongs to one graph."""
        x = self.data.x
        parts = [x.crow_indices(), x.col_indices(), x.values()] if is_csr(x) else [x]
        digest = hashlib.sha256()
        for part in [self.data.edge_index, *parts]:
            digest.update(f"{part.dtype} {list(part.shape)}".encode())
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()[:16]

    @property
    def node_ids(self) -> Any:
        """Ids, numbers where there are no others."""
        return np.arange(self.data.num_nodes) if self.ids is None else self.ids

    def __str__(self) -> str:
        pairs, (nodes, columns) = self.data.edge_index.shape[1], self.data.x.shape
        return f"{self.name}: {nodes:,} nodes, {pairs:,} ordered pairs, {columns:,} features"


def open_source(graph: Any, features: Any = None, labels: Any = None, directed: bool = False) -> Source:
    """Anything that stands for a graph, checked and ready.

    Args:
        graph: the name of a data set (``sgcl datasets``), ``synthetic:...``, an ``.npz`` file of plain arrays, or an
            object that :func:`sgcl.data.own.as_data` reads, alone or in a tuple ``(graph, features)``.
        features: ``[N, F]``, where the graph does not carry its own; also instead of those of an own graph.
        labels: classes ``[N]``, for evaluation only.
        directed: keep the directions of an own graph instead of adding the opposite ones.

    Raises:
        InputError: the graph cannot be found or used.
    """
    if isinstance(graph, Source):
        return graph
    if isinstance(graph, tuple) and len(graph) == 2 and features is None:
        graph, features = graph
    if isinstance(graph, (str, Path)):
        return _named(str(graph), features, labels, directed)
    data, ids = as_data(graph, features, labels, directed)
    return Source("own graph", data, ids)


def load_graph(graph: Any, features: Any = None, directed: bool = False) -> Data:
    """The PyG graph that :func:`open_source` makes of the same arguments.

    Example:
        >>> load_graph("digits")
        Data(x=[1797, 64], edge_index=[2, 27510], y=[1797])
    """
    return open_source(graph, features, directed=directed).data


def _named(name: str, features: Any, labels: Any, directed: bool) -> Source:
    if name.endswith(".npz"):
        arrays = read_npz(Path(name))
        data, _ = as_data(
            arrays.graph,
            arrays.features if features is None else features,
            arrays.labels if labels is None else labels,
            directed,
        )
        # A file is not the data set whose name it bears: it keeps its ending, and gets no recipe of that set.
        stem = Path(name).stem
        return Source(Path(name).name if stem in DATASETS else stem, data)
    is_synthetic = name.partition(":")[0] == "synthetic"
    if (name in DATASETS or is_synthetic) and not (features is None and labels is None):
        raise InputError(
            f"graph: {name!r} has features and labels of its own; for others, give load_graph({name!r}).edge_index"
        )
    if name in DATASETS:
        return Source(name, DATASETS[name].load())
    if is_synthetic:
        return Source(name, parse_synthetic(name))
    known = ", ".join(DATASETS)
    raise InputError(f"graph: {name!r} is not known; give one of {known}, synthetic:..., or a file ending in .npz")
