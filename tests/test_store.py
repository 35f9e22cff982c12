import json
import os
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from sgcl.errors import InputError
from sgcl.store import (
    Embeddings,
    check_embeddings_path,
    read_embeddings,
    read_json,
    read_results,
    read_tensors,
    replacing,
    write_embeddings,
    write_json,
    write_tensors,
)

VECTORS = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, 1.5]], dtype=np.float32)


def embeddings(**changes):
    parts = {"vectors": VECTORS, "ids": np.array(["ada", "bob"]), "columns": {"label": np.array([1, -1])}}
    return Embeddings(**{**parts, "note": {"seed": 3}, **changes})


def parquet(path, column, **columns):
    pq.write_table(pa.table({**columns, "embedding": column}), path)
    return path


def test_replacing_writes_whole_files_with_usual_rights(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with replacing(path) as temporary:
        assert temporary.parent == path.parent and not path.exists()
        temporary.write_text("all of it")
    assert path.read_text() == "all of it" and os.listdir(path.parent) == ["file.txt"]
    before = os.umask(0o022)
    os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_replacing_leaves_the_old_file_and_nothing_else_after_an_exception(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half of")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_json_roundtrip(tmp_path):
    write_json(tmp_path / "a.json", {"name": "Café", "values": [1, 0.1]})
    assert read_json(tmp_path / "a.json") == {"name": "Café", "values": [1, 0.1]}


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, r"cannot be read as JSON \(.*No such file"),
        (b"{", r"cannot be read as JSON \(Expecting property name"),
        (b"\xff", r"cannot be read as JSON \(.*can't decode byte 0xff"),
        (b"[1]", r"must hold a JSON object, got list$"),
    ],
)
def test_what_is_no_json_object(tmp_path, content, sentence):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json: " + sentence):
        read_json(path)


def test_tensors_roundtrip_with_their_note(tmp_path):
    tensors = {
        "weight": torch.randn(3, 2).T.requires_grad_(),
        "step": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "random": torch.get_rng_state(),
    }
    write_tensors(tmp_path / "a.safetensors", tensors, {"step": 7, "graph": {"name": "ö"}})
    found, note = read_tensors(tmp_path / "a.safetensors")
    assert set(found) == set(tensors) and note == {"step": 7, "graph": {"name": "ö"}}
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


def test_modules_that_share_a_layer_can_be_written(tmp_path):
    activation = torch.nn.PReLU()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), activation, torch.nn.Linear(2, 2), activation)
    write_tensors(tmp_path / "a.safetensors", model.state_dict())
    model.load_state_dict(read_tensors(tmp_path / "a.safetensors")[0])


def test_what_is_no_tensor_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.safetensors: cannot be read as safetensors \(No such file"):
        read_tensors(tmp_path / "none.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    write_tensors(damaged, {"a": torch.ones(5)})
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"damaged\.safetensors: cannot be read as safetensors \("):
        read_tensors(damaged)
    save_file({"a": torch.ones(1)}, damaged, {"note": "{"})
    with pytest.raises(InputError, match=r"damaged\.safetensors: cannot be read as safetensors \(Expecting property"):
        read_tensors(damaged)


def test_results_are_read_line_by_line(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    record = {"key": "a", "graph": "g", "method": "m"}
    path.write_text(json.dumps(record) + "\n")
    assert read_results(path) == [record]


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("{", r"line 2 is not JSON \(.*\); name another file"),
        ("[1]", r"line 2 is not a record of a benchmark; name another file"),
        ('{"step": 1, "loss": 0.5}', r"line 2 is not a record of a benchmark; name another file"),
        ("\udcff", r"cannot be read as a results file \(.*can't decode byte 0xff.*\); name another file"),
    ],
)
def test_other_files_are_not_results(tmp_path, line, sentence):
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "a", "graph": "g", "method": "m"}\n' + line + "\n", errors="surrogateescape")
    with pytest.raises(InputError, match=rf"results\.jsonl: {sentence}$"):
        read_results(path)
    with pytest.raises(InputError, match=r"cannot be read as a results file \(.*Is a directory"):
        read_results(tmp_path)


def test_parquet_roundtrip(tmp_path):
    path = tmp_path / "z.parquet"
    write_embeddings(path, embeddings())
    table = pq.read_table(path)
    assert table.column_names == ["id", "label", "embedding"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)  # fixed size
    found = read_embeddings(path, ["label"])
    assert found.vectors.tolist() == VECTORS.tolist() and found.vectors.dtype == np.float32
    assert found.vectors.flags.writeable  # torch warns of arrays that are not
    assert found.ids.tolist() == ["ada", "bob"] and found.columns["label"].tolist() == [1, -1]
    assert found.note == {"seed": 3} and read_embeddings(path).columns == {}


def test_vectors_of_another_type_and_order_are_written_as_float32(tmp_path):
    write_embeddings(tmp_path / "z.parquet", embeddings(vectors=np.asfortranarray(VECTORS.astype(np.float64))))
    assert read_embeddings(tmp_path / "z.parquet").vectors.tolist() == VECTORS.tolist()


def test_npy_roundtrip_numbers_the_rows(tmp_path):
    write_embeddings(tmp_path / "z.npy", embeddings())
    assert np.load(tmp_path / "z.npy").dtype == np.float32
    found = read_embeddings(tmp_path / "z.npy")
    assert found.vectors.tolist() == VECTORS.tolist() and found.ids.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"z\.npy: \.npy files have no columns, so no 'label'; give a \.parquet file$"):
        read_embeddings(tmp_path / "z.npy", ["label"])


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.float32(), 2)],
    ids=str,
)
def test_parquet_of_others_is_read(tmp_path, kind):
    path = parquet(tmp_path / "z.parquet", pa.array([[1, 2], [3, 4]], type=kind))
    found = read_embeddings(path)
    assert found.vectors.tolist() == [[1, 2], [3, 4]] and found.vectors.dtype == np.float32
    assert found.ids.tolist() == [0, 1] and found.note == {}


@pytest.mark.parametrize(
    "use", [check_embeddings_path, read_embeddings, lambda path: write_embeddings(path, embeddings())]
)
def test_other_endings_are_refused(tmp_path, use):
    with pytest.raises(InputError, match=r"^embeddings file: must end in \.parquet or \.npy, got '.*z\.csv'$"):
        use(tmp_path / "z.csv")
    (tmp_path / "z.npy").mkdir()
    with pytest.raises(InputError, match=r"^embeddings file: '.*z\.npy' is a folder; give a file name in it$"):
        use(tmp_path / "z.npy")


@pytest.mark.parametrize("name", ["z.parquet", "z.npy"])
def test_missing_and_damaged_files(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(InputError, match=rf"{name}: cannot be read as embeddings \(there is no such file\)$"):
        read_embeddings(path)
    write_embeddings(path, embeddings())
    whole = path.read_bytes()
    for content in (whole[:-4], b"", b"PK\x03\x04 something else"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}: cannot be read as embeddings \("):
            read_embeddings(path)


def test_a_pickle_is_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.save(tmp_path / "z.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"z\.npy: cannot be read as embeddings \(Object arrays cannot be loaded"):
        read_embeddings(tmp_path / "z.npy")


@pytest.mark.parametrize("name", ["z.parquet", "z.npy"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_must_be_finite(tmp_path, name, value):
    vectors = VECTORS.copy()
    vectors[1, 2] = value
    write_embeddings(tmp_path / name, embeddings(vectors=vectors))
    with pytest.raises(InputError, match=rf"{name}: row 1 holds NaN or infinite values; embeddings must be finite$"):
        read_embeddings(tmp_path / name)


@pytest.mark.parametrize(
    "array, found",
    [
        (np.ones(3), r"float64 \[3\]"),
        (np.ones((2, 0)), r"float64 \[2, 0\]"),
        (np.ones((2, 2), dtype=bool), r"bool \[2, 2\]"),
        (np.array([["a"]]), r"<U1 \[1, 1\]"),
    ],
)
def test_arrays_of_another_form(tmp_path, array, found):
    np.save(tmp_path / "z.npy", array)
    with pytest.raises(InputError, match=rf"z\.npy: needs an \[N, d\] array of numbers, got {found}$"):
        read_embeddings(tmp_path / "z.npy")


@pytest.mark.parametrize(
    "column, sentence",
    [
        ([[1.0, 2.0], [3.0]], r"column 'embedding' holds lists of different lengths; all must be of one"),
        (
            [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]],
            r"column 'embedding' holds lists of different lengths; all must be of one",
        ),
        ([[1.0], None], r"column 'embedding' has 1 missing values; every row needs a vector"),
        ([[1.0, None], [2.0, 3.0]], r"row 0 holds NaN or infinite values; embeddings must be finite"),
        ([1.0, 2.0], r"column 'embedding' must hold lists of numbers, got double"),
        ([["a"], ["b"]], r"needs an \[N, d\] array of numbers, got object \[2, 1\]"),
        (pa.array([], type=pa.list_(pa.float32())), r"has no rows"),
    ],
)
def test_columns_of_another_form(tmp_path, column, sentence):
    path = parquet(tmp_path / "z.parquet", column)
    with pytest.raises(InputError, match=rf"z\.parquet: {sentence}$"):
        read_embeddings(path)


def test_missing_columns_are_answered_with_those_there_are(tmp_path):
    path = parquet(tmp_path / "z.parquet", [[1.0], [2.0]], id=[1, 2], topic=[0, 1])
    with pytest.raises(InputError, match=r"z\.parquet: has no column 'label'; its columns are id, topic, embedding$"):
        read_embeddings(path, ["label"])
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(InputError, match=r"z\.parquet: has no column 'embedding'; its columns are x$"):
        read_embeddings(path)
