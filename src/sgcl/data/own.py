"""Graphs that users bring as Python objects, checked and brought into one form."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from sgcl.data.preprocess import csr_tensor, sort_by_receiver, symmetrise
from sgcl.errors import InputError
from sgcl.graph import is_csr
from sgcl.log import log


def as_data(graph: Any, features: Any = None, labels: Any = None, directed: bool = False) -> tuple[Data, Any]:
    """A checked PyG graph, and the ids of its nodes (``None`` where they are just numbers).

    Self-loops are removed (the encoders add their own), duplicate pairs merged, and, unless ``directed``, missing
    opposite directions added; a log line says how many of each. The input is left alone.

    Args:
        graph: PyG ``Data``, a SciPy sparse adjacency ``[N, N]`` (row sends to column), a NetworkX graph, or ordered
            pairs ``[2, E]``, senders over receivers.
        features: ``[N, F]``, dense or SciPy sparse; not needed where the graph carries its own (``Data.x``, or a
            vector ``x`` on each NetworkX node).
        labels: classes ``[N]``, only ever used for evaluation; instead of ``Data.y``, which is left out with a warning
            where it is something else.
        directed: keep pairs as they are.

    Raises:
        InputError: saying what is wrong with which value.
    """
    edge_index, found, classes, ids, known = _parts(graph)
    features = found if features is None else features
    if features is None:
        raise InputError(
            "graph: has no features; give an [N, F] matrix (fit(graph, features), or x in the graph), "
            "for instance one-hot degrees (torch_geometric.transforms.OneHotDegree)"
        )
    x = _features(features)
    nodes = x.shape[0]
    if known is not None and known != nodes:
        raise InputError(f"graph: has {known} nodes, but the features have {nodes} rows; they must agree")
    edge_index = _pairs(edge_index, nodes, directed)
    data = Data(x=x, edge_index=edge_index, num_nodes=nodes)
    if labels is not None:
        data.y = _labels(labels, nodes)
    elif classes is not None:
        try:
            data.y = _labels(classes, nodes)
        except InputError as error:  # learning needs none
            log.warning("what the graph has as y is left out (%s)", error)
    if isinstance(graph, Data):
        for name in ("train_mask", "val_mask", "test_mask"):
            if name in graph:
                data[name] = _mask(name, graph[name], nodes)
    return data, ids


def _parts(graph: Any) -> tuple[Any, Any, Any, Any, int | None]:
    """Ordered pairs, features, labels, ids and number of nodes, as far as ``graph`` tells them."""
    if isinstance(graph, Data):
        if graph.edge_index is None:
            raise InputError("graph: the Data object has no edge_index; give ordered pairs [2, E]")
        if graph.get("edge_weight") is not None or graph.get("edge_attr") is not None:
            log.warning("edge weights and attributes are not used")
        # Without features or a given number, Data would guess the number of nodes from the edges.
        told = "num_nodes" in graph or graph.x is not None
        known = graph.num_nodes if told else None
        return graph.edge_index, graph.x, graph.get("y"), None, known
    if scipy.sparse.issparse(graph):
        if len(graph.shape) != 2 or graph.shape[0] != graph.shape[1]:
            raise InputError(f"graph: an adjacency must be square, got shape {list(graph.shape)}")
        entries = graph.tocoo()
        if entries.nnz and not (entries.data == entries.data[0]).all():
            log.warning("weights in the adjacency are not used: every stored entry counts as one edge")
        keep = entries.data != 0
        return np.stack([entries.row[keep], entries.col[keep]]), None, None, None, graph.shape[0]
    if type(graph).__module__.partition(".")[0] == "networkx":
        return _from_networkx(graph)
    if isinstance(graph, (np.ndarray, Tensor, list)):
        return graph, None, None, None, None
    raise InputError(
        f"graph: cannot read a {type(graph).__module__}.{type(graph).__name__}; give PyG Data, a SciPy sparse "
        "adjacency, a NetworkX graph, an [2, E] array, or the name of a data set"
    )


def _from_networkx(graph: Any) -> tuple[Any, Any, Any, Any, int]:
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    pairs = [(number[a], number[b]) for a, b in graph.edges()]
    edge_index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    if not graph.is_directed():
        back = edge_index[::-1, edge_index[0] != edge_index[1]]
        edge_index = np.concatenate([edge_index, back], axis=1)
    if any("weight" in attributes for *_, attributes in graph.edges(data=True)):
        log.warning("edge weights are not used")
    having = [node for node in nodes if "x" in graph.nodes[node]]
    features: Any = None
    if having:
        if len(having) < len(nodes):
            lacking = next(node for node in nodes if "x" not in graph.nodes[node])
            raise InputError(
                f"graph: node {lacking!r} has no attribute 'x'; every node needs a feature vector, or none"
            )
        try:
            features = np.array([graph.nodes[node]["x"] for node in nodes], dtype=np.float32)
        except (ValueError, TypeError) as error:
            raise InputError(f"graph: the attributes 'x' must be numeric vectors of one length ({error})") from None
    ids = np.array(nodes if all(type(node) is int for node in nodes) else [str(node) for node in nodes])
    return edge_index, features, None, ids, len(nodes)


def _features(features: Any) -> Tensor:
    """Finite float32 features with at least two rows and one column, dense or CSR."""
    if scipy.sparse.issparse(features):
        x = csr_tensor(features.tocsr())
    elif isinstance(features, Tensor) and features.layout not in (torch.strided, torch.sparse_csr):
        coo = features.detach().cpu().to_sparse_coo().coalesce()
        x = csr_tensor(scipy.sparse.coo_matrix((coo.values(), coo.indices()), coo.shape).tocsr())
    else:
        x = _tensor("features", features)
    if x.is_complex():
        raise InputError(f"features: must be real numbers, got {x.dtype}")
    if x.dim() != 2:
        raise InputError(f"features: must be [N, F], a row per node, got shape {list(x.shape)}")
    nodes, columns = x.shape
    if nodes == 0:
        raise InputError("graph: is empty, 0 nodes; embeddings need at least 2")
    if nodes == 1:
        raise InputError("graph: has one node; embeddings need at least 2, as they tell nodes apart")
    if columns == 0:
        raise InputError("features: have 0 columns; give at least one")
    x = x.float()
    values = x.values() if is_csr(x) else x
    if not bool(torch.isfinite(values).all()):
        place = int((~torch.isfinite(values.reshape(-1))).nonzero()[0])
        row = int(torch.searchsorted(x.crow_indices(), place, right=True)) - 1 if is_csr(x) else place // columns
        column = int(x.col_indices()[place]) if is_csr(x) else place % columns
        value = values.reshape(-1)[place].item()
        raise InputError(
            f"features: must be finite, got {value} in row {row}, column {column}; fill or drop such values"
        )
    return x


def _pairs(edge_index: Any, nodes: int, directed: bool) -> Tensor:
    """Checked pairs, sorted by receiver, without self-loops and duplicates."""
    pairs = _tensor("edge_index", edge_index)
    if pairs.dim() != 2 or pairs.shape[0] != 2:
        hint = "; transpose it" if pairs.dim() == 2 and pairs.shape[1] == 2 else ""
        raise InputError(f"edge_index: must be [2, E], senders over receivers, got shape {list(pairs.shape)}{hint}")
    if pairs.numel() and (pairs.is_floating_point() or pairs.is_complex() or pairs.dtype == torch.bool):
        raise InputError(f"edge_index: must hold integers, got {pairs.dtype}")
    pairs = pairs.long()
    outside = ((pairs < 0) | (pairs >= nodes)).any(dim=0).nonzero()
    if len(outside):
        column = int(outside[0])
        sender, receiver = pairs[:, column].tolist()
        more = f" and {len(outside) - 1} more such pairs" if len(outside) > 1 else ""
        raise InputError(
            f"edge_index: node numbers must lie in 0 to {nodes - 1} (the features have {nodes} rows), "
            f"got {sender} -> {receiver} in column {column}{more}"
        )
    loops = pairs[0] == pairs[1]
    kept = pairs[:, ~loops]
    unique = coalesce(kept, num_nodes=nodes)
    if unique.shape[1] == 0:
        raise InputError(
            f"graph: has no edges between different nodes ({nodes} nodes, {int(loops.sum())} self-loops); "
            "there is nothing to learn from"
        )
    if int(loops.sum()):
        log.info("removed %d self-loops (the encoder adds one per node)", int(loops.sum()))
    if kept.shape[1] > unique.shape[1]:
        log.info("merged %d duplicate pairs", kept.shape[1] - unique.shape[1])
    if directed:
        return sort_by_receiver(unique)
    both = symmetrise(unique, nodes)
    if both.shape[1] > unique.shape[1]:
        log.info("added %d opposite directions to make the graph undirected", both.shape[1] - unique.shape[1])
    return both


def _labels(labels: Any, nodes: int) -> Tensor:
    classes = _tensor("labels", labels)
    if classes.dim() == 2 and classes.shape[1] == 1:
        classes = classes.squeeze(1)
    if classes.dim() != 1 or len(classes) != nodes:
        raise InputError(f"labels: need one per node, got shape {list(classes.shape)} for {nodes} nodes")
    if classes.is_floating_point() or classes.is_complex():
        raise InputError(f"labels: must be integer classes, got {classes.dtype}")
    return classes.long()


def _mask(name: str, mask: Any, nodes: int) -> Tensor:
    found = _tensor(name, mask).bool()
    if found.dim() not in (1, 2) or len(found) != nodes:
        raise InputError(f"{name}: must be [N] or [N, splits], got shape {list(found.shape)} for {nodes} nodes")
    return found


def _tensor(name: str, values: Any) -> Tensor:
    """``values`` as a tensor on the CPU, sharing memory where torch can."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name}: cannot be read as an array ({error})") from None
    if array.dtype.kind not in "fciub":
        raise InputError(f"{name}: must be numbers, got an array of {array.dtype}")
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
