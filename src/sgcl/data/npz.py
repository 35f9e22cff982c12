"""Graphs in ``.npz`` files of plain arrays: the layout of the benchmark sets of Shchur et al., and a simpler one."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from sgcl.errors import InputError


@dataclass(frozen=True)
class Arrays:
    """What a file holds: ``graph`` an adjacency or an ``[2, E]`` array, features and labels if there are any."""

    graph: Any
    features: Any
    labels: Any


def read_npz(path: Path) -> Arrays:
    """Read a graph from plain arrays; pickled ones are refused by NumPy.

    Either CSR parts ``adj_data, adj_indices, adj_indptr, adj_shape`` and ``attr_*`` (or a dense ``attr_matrix``), with
    ``labels``; or ``edge_index`` ``[2, E]``, ``x`` ``[N, F]`` and optionally ``y``.

    Raises:
        InputError: the file is missing, damaged, or of another layout.
    """
    try:
        with path.open("rb") as raw, np.lib.npyio.NpzFile(raw, allow_pickle=False) as file:
            if "adj_indptr" in file:
                features = file["attr_matrix"] if "attr_matrix" in file else _csr(file, "attr")
                return Arrays(_csr(file, "adj"), features, file["labels"] if "labels" in file else None)
            if "edge_index" in file:
                return Arrays(file["edge_index"], *(file[name] if name in file else None for name in ("x", "y")))
            found = ", ".join(file.files)
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as an .npz file of plain arrays ({error})") from None
    raise InputError(f"{path}: needs arrays edge_index and x, or adj_indptr, ... and attr_indptr, ...; has {found}")


def _csr(file: Any, prefix: str) -> Any:
    if f"{prefix}_indptr" not in file:
        return None
    parts = [file[f"{prefix}_{name}"] for name in ("data", "indices", "indptr")]
    matrix = scipy.sparse.csr_matrix(tuple(parts), shape=tuple(file[f"{prefix}_shape"]))
    matrix.check_format(full_check=True)
    return matrix
