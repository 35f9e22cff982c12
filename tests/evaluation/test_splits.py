import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from torch_geometric.data import Data

from sgcl.errors import InputError
from sgcl.evaluation import CHECK_SEEDS, TEST_SEEDS, TUNING_SEEDS, Split, public_splits, random_splits, splits_of
from sgcl.evaluation.splits import check_splits


def nodes(*numbers):
    return torch.tensor(numbers)


@pytest.mark.parametrize(
    "count, sizes",
    [(7_650, (765, 765, 6_120)), (13_752, (1_375, 1_375, 11_002)), (18_333, (1_833, 1_833, 14_667)),
     (34_493, (3_449, 3_449, 27_595)), (10, (1, 1, 8))],
)  # fmt: skip
def test_sizes_of_the_published_divisions(count, sizes):
    for split in random_splits(torch.zeros(count, dtype=torch.long), [1, 7]):
        assert tuple(map(len, split)) == sizes
        assert torch.equal(torch.cat(list(split)).sort().values, torch.arange(count))  # disjoint and complete


def test_divisions_are_scikit_learns_with_the_seed_given_twice():
    for seed, split in zip((1, 20), random_splits(torch.zeros(137, dtype=torch.long), (1, 20)), strict=True):
        rest, test = train_test_split(np.arange(137), test_size=0.8, random_state=seed)
        train, val = train_test_split(rest, test_size=0.5, random_state=seed)
        assert [part.tolist() for part in split] == [train.tolist(), val.tolist(), test.tolist()]


def test_figures_tuning_and_the_second_probe_use_different_seeds():
    assert list(TEST_SEEDS) == list(range(1, 21))
    assert not set(TEST_SEEDS) & set(TUNING_SEEDS) and not set(TEST_SEEDS) & set(CHECK_SEEDS)
    assert not set(TUNING_SEEDS) & set(CHECK_SEEDS)
    assert len(random_splits(torch.zeros(20, dtype=torch.long))) == 20


def test_unlabelled_nodes_are_in_no_part():
    labels = torch.arange(60) % 3 - 1
    (split,) = random_splits(labels, [5])
    assert torch.equal(torch.cat(list(split)).sort().values, (labels >= 0).nonzero().squeeze(1))


def test_numpy_labels_divide_alike_and_stay_as_they_are():
    labels = np.arange(60) % 3 - 1
    labels.flags.writeable = False
    for ours, theirs in zip(
        random_splits(labels, [5])[0], random_splits(torch.arange(60) % 3 - 1, [5])[0], strict=True
    ):
        assert torch.equal(ours, theirs)


def test_labels_that_cannot_be_divided():
    with pytest.raises(InputError, match=r"^splits: need at least 10 labelled nodes, got 9$"):
        random_splits(torch.tensor([0] * 9 + [-1] * 9))
    with pytest.raises(InputError, match=r"^labels: must be integer classes, got torch\.float32$"):
        random_splits(torch.zeros(20))
    with pytest.raises(InputError, match=r"^labels: must be integer classes, got <U1$"):
        random_splits(np.array(["a"] * 20))
    with pytest.raises(InputError, match=r"^labels: must be \[N\], one per node, got shape \[20, 1\]$"):
        random_splits(torch.zeros(20, 1, dtype=torch.long))


def test_public_masks_of_one_division():
    train, val, test = torch.eye(3, dtype=torch.bool)
    (split,) = public_splits(Data(train_mask=train, val_mask=val, test_mask=test))
    assert [part.tolist() for part in split] == [[0], [1], [2]]


def test_public_masks_of_twenty_divisions_share_one_test_mask():
    train, val = torch.zeros(42, 20, dtype=torch.bool), torch.zeros(42, 20, dtype=torch.bool)
    for i in range(20):
        train[i, i], val[i + 20, i] = True, True
    test = torch.arange(42) >= 40
    splits = public_splits(Data(train_mask=train, val_mask=val, test_mask=test))
    assert [[part.tolist() for part in split] for split in splits] == [[[i], [i + 20], [40, 41]] for i in range(20)]


def test_public_splits_come_first_and_a_missing_mask_means_none():
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), torch.eye(3, dtype=torch.bool), strict=True))
    labels = torch.zeros(20, dtype=torch.long)
    assert len(splits_of(Data(y=labels, **masks))) == 1
    del masks["val_mask"]
    assert public_splits(Data(y=labels, **masks)) is None
    assert len(splits_of(Data(y=labels, **masks), seeds=range(3))) == 3


LABELS = torch.tensor([0, 1, 0, 1, -1])
FINE = Split(nodes(0), nodes(1), nodes(2, 3))


@pytest.mark.parametrize(
    "splits, sentence",
    [
        ([], r"splits: need at least one, got none"),
        ([FINE, Split(nodes(0), nodes(1)[:0], nodes(2))], r"splits: the val part of split 1 is empty"),
        ([Split(nodes(0), nodes(1), nodes(2, 5))], r"splits: node 5 in split 0 is not among the 5 labels"),
        ([Split(nodes(-2), nodes(1), nodes(2))], r"splits: node -2 in split 0 is not among the 5 labels"),
        ([FINE, Split(nodes(0), nodes(1), nodes(2, 4))], r"splits: the test part of split 1 holds unlabelled nodes"),
        ([Split(nodes(0, 1), nodes(1), nodes(2))],
         r"splits: split 0 has a node twice; train, val and test must be disjoint"),
        ([Split(nodes(0), nodes(1), nodes(2, 2))],
         r"splits: split 0 has a node twice; train, val and test must be disjoint"),
        ([Split(*(LABELS == i for i in (0, 1, -1)))],
         r"splits: the train part of split 0 must hold node numbers \(int64\), got torch\.bool"),
    ],
)  # fmt: skip
def test_what_is_no_division(splits, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        check_splits(splits, LABELS)


def test_a_good_division_passes():
    check_splits([FINE], LABELS)
