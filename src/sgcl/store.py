"""Files we write: whole or not at all, and without anything that has to be unpickled."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from sgcl.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; flushed and renamed to ``path`` if nothing was raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: the file is missing or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return value


def read_results(path: Path) -> list[dict[str, Any]]:
    """The records of a benchmark's results file, one JSON object per line; none if there is no file.

    Raises:
        InputError: a line is not a record of a benchmark.
    """
    records = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a results file ({error}); name another file") from None
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number} is not JSON ({error}); name another file") from None
        if not isinstance(record, dict) or not {"key", "graph", "method"} <= set(record):
            raise InputError(f"{path}: line {number} is not a record of a benchmark; name another file")
        records.append(record)
    return records


def write_tensors(path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any] | None = None) -> None:
    """Write tensors, and ``note`` as JSON, into one safetensors file."""
    content: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        # safetensors refuses shared memory, which modules that share a layer have.
        content[name] = plain.clone() if (memory := plain.untyped_storage().data_ptr()) in seen else plain
        seen.add(memory)
    with replacing(path) as temporary:
        safetensors.torch.save_file(content, temporary, {"note": json.dumps(note or {})})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a file written by :func:`write_tensors`.

    Raises:
        InputError: the file is missing, damaged, or of another kind.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            note = json.loads((file.metadata() or {}).get("note", "{}"))
    except (OSError, safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: cannot be read as safetensors ({error})") from None
    return tensors, note


@dataclass(frozen=True)
class Embeddings:
    """Vectors with the ids of their nodes and, where known, labels.

    Attributes:
        vectors: float32 ``[N, d]``.
        ids: what the nodes are called, ``[N]``.
        columns: further columns by name, each ``[N]``.
        note: what made them.
    """

    vectors: NDArray[np.float32]
    ids: NDArray[Any]
    columns: Mapping[str, NDArray[Any]]
    note: Mapping[str, Any]


def write_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Write ``.parquet`` (``id``, further columns, ``embedding`` as fixed-size lists of float32) or ``.npy``.

    Raises:
        InputError: the ending is another.
    """
    check_embeddings_path(path)
    vectors = np.ascontiguousarray(embeddings.vectors, dtype=np.float32)
    if path.suffix == ".npy":
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
        return
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    table = pa.table({"id": pa.array(embeddings.ids), **embeddings.columns, "embedding": lists})
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata({"sgcl": json.dumps(dict(embeddings.note))}), temporary)


def check_embeddings_path(path: Path) -> None:
    """Refuse an ending that :func:`write_embeddings` does not know."""
    if path.suffix not in (".parquet", ".npy"):
        raise InputError(f"embeddings file: must end in .parquet or .npy, got {str(path)!r}")
    if path.is_dir():
        raise InputError(f"embeddings file: {str(path)!r} is a folder; give a file name in it")


def read_embeddings(path: Path, columns: Sequence[str] = ()) -> Embeddings:
    """Read what :func:`write_embeddings` wrote, or any file of the same form, with the named columns.

    Raises:
        InputError: the file is missing, of another form, lacks a column, or holds NaN or infinite values.
    """
    check_embeddings_path(path)
    if not path.exists():
        raise InputError(f"{path}: cannot be read as embeddings (there is no such file)")
    found: dict[str, NDArray[Any]] = {}
    note: dict[str, Any] = {}
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                vectors, ids = np.lib.format.read_array(file, allow_pickle=False), None
        else:
            vectors, ids, found, note = _from_table(path, pq.read_table(path), columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as embeddings ({error})") from None
    if columns and path.suffix == ".npy":
        raise InputError(f"{path}: .npy files have no columns, so no {columns[0]!r}; give a .parquet file")
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or 0 in vectors.shape:
        raise InputError(f"{path}: needs an [N, d] array of numbers, got {vectors.dtype} {list(vectors.shape)}")
    vectors = np.array(vectors, dtype=np.float32)  # a copy: what Arrow gives cannot be written to
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise InputError(f"{path}: row {row} holds NaN or infinite values; embeddings must be finite")
    return Embeddings(vectors, np.arange(len(vectors)) if ids is None else ids, found, note)


def _from_table(path: Path, table: pa.Table, columns: Sequence[str]) -> tuple[Any, Any, dict[str, Any], Any]:
    names = table.column_names
    if missing := [name for name in ("embedding", *columns) if name not in names]:
        raise InputError(f"{path}: has no column {missing[0]!r}; its columns are {', '.join(names)}")
    lists = table.column("embedding").combine_chunks()
    if len(lists) == 0:
        raise InputError(f"{path}: has no rows")
    kinds = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    if not any(is_kind(lists.type) for is_kind in kinds):
        raise InputError(f"{path}: column 'embedding' must hold lists of numbers, got {lists.type}")
    if lists.null_count:
        raise InputError(f"{path}: column 'embedding' has {lists.null_count} missing values; every row needs a vector")
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    if len(flat) % len(lists) or (lists.value_lengths().unique().to_pylist() != [len(flat) // len(lists)]):
        raise InputError(f"{path}: column 'embedding' holds lists of different lengths; all must be of one")
    ids = table.column("id").to_numpy() if "id" in names else None
    note = json.loads((table.schema.metadata or {}).get(b"sgcl", b"{}"))
    return flat.reshape(len(lists), -1), ids, {name: table.column(name).to_numpy() for name in columns}, note
