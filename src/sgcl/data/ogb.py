"""The paper's three graphs of the Open Graph Benchmark (Hu et al., 2020), read from its raw files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv
from torch import Tensor
from torch_geometric.data import Data

from sgcl.data.files import raw_folder
from sgcl.data.preprocess import normalize_rows, sort_by_receiver, symmetrise
from sgcl.errors import InputError

URL = "https://snap.stanford.edu/ogb/data/nodeproppred/{}.zip"


class Layout(NamedTuple):
    """Where a data set keeps what, below its folder."""

    counts: str
    edges: str
    features: str
    labels: str
    train: str
    valid: str
    test: str


def homogeneous(split: str) -> Layout:
    """Layout of a graph with one kind of node, whose public split is named ``split``."""
    raw = (f"raw/{name}.csv.gz" for name in ("num-node-list", "edge", "node-feat", "node-label"))
    return Layout(*raw, *(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test")))


PAPERS = Layout(
    "raw/num-node-dict.csv.gz",
    "raw/relations/paper___cites___paper/edge.csv.gz",
    "raw/node-feat/paper/node-feat.csv.gz",
    "raw/node-label/paper/node-label.csv.gz",
    *(f"split/time/paper/{part}.csv.gz" for part in ("train", "valid", "test")),
)


def arxiv() -> Data:
    """ogbn-arxiv: papers and their citations in both directions, each once; raw features; split by year."""
    data = _read("arxiv", homogeneous("time"))
    data.edge_index = symmetrise(data.edge_index, data.num_nodes)
    return data


def mag() -> Data:
    """ogbn-mag: papers and citations only, in both directions, each once; rows normalised; split by year."""
    data = _read("mag", PAPERS)
    data.x = normalize_rows(data.x)
    data.edge_index = symmetrise(data.edge_index, data.num_nodes)
    return data


def products() -> Data:
    """ogbn-products: products bought together; raw features; split by sales rank.

    The file holds each link once, and its inverse is added, nothing removed: the few self-links of the
    raw data are there twice, as in OGB's own loader, on whose pairs the official code trains.
    """
    data = _read("products", homogeneous("sales_ranking"))
    data.edge_index = sort_by_receiver(torch.cat([data.edge_index, data.edge_index.flip(0)], dim=1))
    return data


def _read(name: str, layout: Layout) -> Data:
    """The graph as the files have it: pairs in the stored direction and order, features unchanged."""
    folder = raw_folder(name, f"ogbn_{name}", layout, URL.format(name))
    nodes = _count(folder / layout.counts)
    x = _matrix(folder / layout.features, np.float32)
    labels = _matrix(folder / layout.labels, np.float64, width=1)
    for file, rows in ((layout.features, len(x)), (layout.labels, len(labels))):
        if rows != nodes:
            raise InputError(f"{folder / file}: {rows} rows, but {layout.counts} counts {nodes} nodes")
    masks = (_mask(folder / file, nodes) for file in (layout.train, layout.valid, layout.test))
    train_mask, val_mask, test_mask = masks
    return Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(_ids(folder / layout.edges, nodes, width=2).T),
        y=_classes(folder / layout.labels, labels[:, 0]),
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
    )


def _count(path: Path) -> int:
    """The number of nodes; of papers, where there is one number under the name of each kind of node."""
    try:
        with gzip.open(path, "rt") as file:
            text = file.read().strip()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    names, _, numbers = text.rpartition("\n")
    kind = "paper" if names else ""
    number = dict(zip(names.split(","), numbers.split(","), strict=False)).get(kind, "")
    if not number.isdecimal():
        raise InputError(f"{path}: must hold the number of nodes, got {text!r}")
    return int(number)


def _ids(path: Path, nodes: int, width: int) -> np.ndarray:
    """Node ids ``[rows, width]``, all of existing nodes."""
    ids = _matrix(path, np.int64, width)
    if ids.size and (ids.min() < 0 or ids.max() >= nodes):
        line, column = np.argwhere((ids < 0) | (ids >= nodes))[0]
        raise InputError(
            f"{path}: line {line + 1} names node {ids[line, column]}, but there are {nodes} nodes (0 to {nodes - 1})"
        )
    return ids


def _mask(path: Path, nodes: int) -> Tensor:
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[torch.from_numpy(_ids(path, nodes, width=1)[:, 0])] = True
    return mask


def _classes(path: Path, labels: np.ndarray) -> Tensor:
    """Labels as int64, -1 where the file has none."""
    missing = np.isnan(labels)
    if len(bad := np.flatnonzero(~missing & ((labels < 0) | (labels % 1 != 0)))):
        raise InputError(f"{path}: line {bad[0] + 1} is no class number: {labels[bad[0]]:g}")
    return torch.from_numpy(np.where(missing, -1, labels).astype(np.int64))


def _matrix(path: Path, dtype: type[np.number], width: int | None = None) -> np.ndarray:
    """A CSV file without header as a row-major matrix; only float64 may miss values, which become NaN."""
    try:
        with gzip.open(path, "rt") as file:
            columns = file.readline().count(",") + 1
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(autogenerate_column_names=True, block_size=8 << 20),
            convert_options=csv.ConvertOptions(
                column_types={f"f{column}": pa.from_numpy_dtype(dtype) for column in range(columns)},
                null_values=None if dtype is np.float64 else [],
            ),
        )
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot be read as a table of {dtype.__name__} ({error})") from None
    if width not in (None, columns):
        raise InputError(f"{path}: number of columns must be {width}, got {columns}")
    matrix = np.empty((table.num_rows, columns), dtype=dtype)
    start = 0
    for batch in table.to_batches():
        for column, values in enumerate(batch.columns):
            matrix[start : start + batch.num_rows, column] = values.to_numpy(zero_copy_only=False)
        start += batch.num_rows
    return matrix
