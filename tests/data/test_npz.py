import numpy as np
import pytest
import scipy.sparse
import torch

from sgcl.data import open_source
from sgcl.data.npz import read_npz
from sgcl.errors import InputError

X = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], dtype=np.float32)
PAIRS = np.array([[0, 1], [1, 2]])
LABELS = np.array([0, 1, 1])
BOTH = [[1, 0, 2, 1], [0, 1, 1, 2]]


def csr_parts(prefix, matrix):
    matrix = scipy.sparse.csr_matrix(matrix)
    names = ("data", "indices", "indptr", "shape")
    parts = (matrix.data, matrix.indices, matrix.indptr, matrix.shape)
    return {f"{prefix}_{name}": part for name, part in zip(names, parts, strict=True)}


def adjacency():
    return csr_parts("adj", scipy.sparse.coo_matrix((np.ones(2, dtype=np.float32), PAIRS), shape=(3, 3)))


@pytest.fixture
def write(tmp_path):
    def to(name="mine.npz", save=np.savez, **arrays):
        save(tmp_path / name, **arrays)
        return tmp_path / name

    return to


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_simple_layout(write, save):
    source = open_source(write(save=save, edge_index=PAIRS, x=X, y=LABELS))
    assert source.name == "mine" and source.ids is None
    assert source.data.edge_index.tolist() == BOTH
    assert source.data.x.tolist() == X.tolist() and source.data.y.tolist() == LABELS.tolist()


def test_simple_layout_without_labels(write):
    assert "y" not in open_source(write(edge_index=PAIRS, x=X)).data


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_layout_of_the_benchmark_sets(write, sparse):
    features = csr_parts("attr", X) if sparse else {"attr_matrix": X}
    data = open_source(write(**adjacency(), **features, labels=LABELS)).data
    assert data.edge_index.tolist() == BOTH and data.y.tolist() == LABELS.tolist()
    assert (data.x.layout == torch.sparse_csr) == sparse
    assert data.x.to_dense().tolist() == X.tolist()


def test_directions_are_kept_if_asked(write):
    for arrays in ({"edge_index": PAIRS, "x": X}, {**adjacency(), "attr_matrix": X}):
        assert open_source(write(**arrays), directed=True).data.edge_index.tolist() == PAIRS.tolist()


def test_features_and_labels_given_come_before_those_of_the_file(write):
    data = open_source(write(edge_index=PAIRS, x=X, y=LABELS), 2 * X, 1 - LABELS).data
    assert data.x.tolist() == (2 * X).tolist() and data.y.tolist() == (1 - LABELS).tolist()


def test_a_file_with_the_name_of_a_data_set_does_not_pass_for_it(write):
    assert open_source(write("photo.npz", edge_index=PAIRS, x=X)).name == "photo.npz"


def test_missing_features_and_unusable_labels_are_said(write):
    with pytest.raises(InputError, match=r"^graph: has no features; "):
        open_source(write(**adjacency()))
    with pytest.raises(InputError, match=r"^labels: need one per node, got shape \[2\] for 3 nodes$"):
        open_source(write(edge_index=PAIRS, x=X, y=LABELS[:2]))


def test_other_layouts_are_answered_with_the_known_ones(write):
    needs = r"needs arrays edge_index and x, or adj_indptr, \.\.\. and attr_indptr, \.\.\.; has nodes, links$"
    with pytest.raises(InputError, match=rf"mine\.npz: {needs}"):
        read_npz(write(nodes=X, links=PAIRS))


def test_a_pickle_is_never_opened(write):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    path = write(edge_index=PAIRS, x=np.array([Bomb()], dtype=object))
    with pytest.raises(
        InputError, match=r"mine\.npz: cannot be read as .* \(Object arrays cannot be loaded when allow_p"
    ):
        read_npz(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(
        InputError, match=r"none\.npz: cannot be read as an \.npz file of plain arrays \(.*No such file"
    ):
        open_source(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match=r"folder\.npz: cannot be read as an \.npz .* \(.*Is a directory"):
        open_source(str(tmp_path / "folder.npz"))


def test_damaged_files(write):
    path = write(save=np.savez_compressed, edge_index=np.arange(2000).reshape(2, -1), x=np.random.rand(1000, 30))
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:300] + bytes(200) + whole[500:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"mine\.npz: cannot be read as an \.npz file of plain arrays \("):
            read_npz(path)
    with path.open("wb") as file:
        np.save(file, X)  # one array, not an archive
    with pytest.raises(InputError, match=r"mine\.npz: cannot be read as .* \(File is not a zip file\)$"):
        read_npz(path)


def test_parts_that_make_no_matrix(write):
    incomplete = adjacency()
    del incomplete["adj_shape"]
    with pytest.raises(InputError, match=r"mine\.npz: cannot be read as .*adj_shape is not a file in the archive"):
        read_npz(write(**incomplete))
    outside = csr_parts("attr", X)
    outside["attr_indices"] = outside["attr_indices"] + 1  # column 2 of 2
    with pytest.raises(InputError, match=r"mine\.npz: cannot be read as .* \(indices must be < 2\)$"):
        read_npz(write(**adjacency(), **outside))
