import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from sgcl.errors import InputError
from sgcl.evaluation import DECAYS, ProbeConfig, Score, Split, linear_probe, logistic_regression, probe, random_splits
from sgcl.evaluation.probe import LinearFit, LogisticFit, check_probe_input


def problem(nodes=120, classes=3, columns=5, seed=0):
    """Rows that tell the classes apart badly, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % classes
    rows = nn.functional.one_hot(labels, columns) + 0.8 * torch.randn(nodes, columns, generator=generator)
    return nn.functional.normalize(rows, dim=1), labels


def unequal_splits():
    order = torch.randperm(120, generator=torch.Generator().manual_seed(3))
    sizes = ((30, 20), (7, 9), (18, 40))
    return [Split(order[:a], order[a : a + b], order[a + b : 110]) for a, b in sizes]


def slow_probe(rows, labels, split, config, number):
    """One linear layer per decay, as anybody would write it; yields (epoch, decay, layer) after every epoch."""
    d, classes = rows.shape[1], int(labels.max()) + 1
    for decay in config.decays:
        generator = torch.Generator().manual_seed(config.seed + number)
        start = torch.empty(d + 1, classes).uniform_(-(d**-0.5), d**-0.5, generator=generator)
        layer = nn.Linear(d, classes)
        with torch.no_grad():
            layer.weight.copy_(start[:-1].T)
            layer.bias.copy_(start[-1])
        optimizer = torch.optim.Adam(layer.parameters(), lr=config.lr, weight_decay=decay)
        for epoch in range(1, config.epochs + 1):
            order = split.train
            if config.batch_size:
                order = order[torch.randperm(len(order), generator=generator)]
            for batch in order.split(config.batch_size or len(order)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(rows[batch]), labels[batch]).backward()
                optimizer.step()
            yield epoch, decay, layer


@torch.no_grad()
def accuracy(layer, rows, labels, part):
    return (layer(rows[part]).argmax(dim=1) == labels[part]).double().mean().item()


@torch.no_grad()
def predicted(layer, rows, part):
    return layer(rows[part]).argmax(dim=1)


def assert_same_choices(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.settings == other.settings and one.val_accuracy == other.val_accuracy
        assert torch.equal(one.test_prediction, other.test_prediction)


@pytest.fixture
def fitted(monkeypatch):
    """The batches of classifiers that a probe makes."""
    made = []

    class Remembered(probe._Classifiers):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(probe, "_Classifiers", Remembered)
    return made


def test_all_splits_and_decays_at_once_are_torchs_adam_one_by_one(fitted):
    rows, labels = problem()
    config = ProbeConfig(lr=0.05, epochs=40, decays=(0.0, 1e-3, 0.1), seed=4)
    splits = unequal_splits()
    choices = LinearFit(config)(rows, labels, splits)
    weight = fitted[0].weight.view(len(splits), 5, 3, 3)  # splits, columns, decays, classes
    bias = fitted[0].bias.view(len(splits), 3, 3)
    for i, (split, choice) in enumerate(zip(splits, choices, strict=True)):
        best = {}
        for epoch, decay, layer in slow_probe(rows, labels, split, config, i):
            if epoch == config.epochs:
                k = config.decays.index(decay)
                torch.testing.assert_close(weight[i, :, k], layer.weight.T, atol=2e-5, rtol=1e-4, check_stride=False)
                torch.testing.assert_close(bias[i, k], layer.bias, atol=2e-5, rtol=1e-4)
                best[decay] = accuracy(layer, rows, labels, split.val), predicted(layer, rows, split.test)
        decay = max(best, key=lambda decay: best[decay][0])  # the first of equals
        assert choice.settings == {"decay": decay}
        assert choice.val_accuracy == pytest.approx(best[decay][0])
        assert torch.equal(choice.test_prediction, best[decay][1])


@pytest.mark.parametrize("batch_size", [8, 1000])
def test_batches_keep_the_epoch_best_on_validation_nodes(batch_size):
    rows, labels = problem()
    config = ProbeConfig(lr=0.02, epochs=12, decays=(0.0, 0.02), batch_size=batch_size, seed=1)
    splits = unequal_splits()  # 30, 7 and 18 nodes: 4, 1 and 3 steps per epoch
    for i, (split, choice) in enumerate(zip(splits, LinearFit(config)(rows, labels, splits), strict=True)):
        steps = {
            (epoch, decay): (accuracy(layer, rows, labels, split.val), predicted(layer, rows, split.test))
            for epoch, decay, layer in slow_probe(rows, labels, split, config, i)
        }
        in_order = sorted(steps)  # by epoch, then decay: the first of equals is kept
        epoch, decay = best = max(in_order, key=lambda key: steps[key][0])
        assert choice.settings == {"decay": decay, "epoch": epoch}
        assert choice.val_accuracy == pytest.approx(steps[best][0])
        assert torch.equal(choice.test_prediction, steps[best][1])


@pytest.mark.parametrize("batch_size", [None, 8])
def test_neither_blocks_nor_later_splits_matter(monkeypatch, batch_size):
    rows, labels = problem()
    splits = unequal_splits() + random_splits(labels, [1, 2])
    fit = LinearFit(ProbeConfig(epochs=15, batch_size=batch_size))
    together = fit(rows, labels, splits)
    assert_same_choices(fit(rows, labels, splits[:2]), together[:2])
    monkeypatch.setattr(probe, "_BLOCK_BYTES", 1)
    assert_same_choices(fit(rows, labels, splits), together)


def test_initial_weights_are_those_of_a_linear_layer_and_the_same_for_all_decays():
    made = probe._Classifiers(64, 50, ProbeConfig(decays=(0.0, 1.0)), [torch.Generator().manual_seed(0)])
    assert made.weight.abs().max() < 1 / 8 and made.weight.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)
    assert torch.equal(made.weight[..., :50], made.weight[..., 50:]) and torch.equal(
        made.bias[..., :50], made.bias[..., 50:]
    )


def test_ties_go_to_the_smaller_decay():
    rows = torch.eye(2).repeat(20, 1)  # separable: every decay is right everywhere
    score = linear_probe(rows, torch.arange(40) % 2, random_splits(torch.arange(40) % 2, [1, 2]))
    assert score.per_split == [100.0, 100.0] and score.chosen == [{"decay": DECAYS[0]}] * 2


def test_each_split_chooses_its_decay():
    # A decay of 10 leaves little but the majority: right where all validation nodes are of that class.
    rows, labels = torch.eye(2).repeat(20, 1), torch.arange(40) % 2
    even, odd = torch.arange(0, 40, 2), torch.arange(1, 40, 2)
    splits = [
        Split(torch.cat([even[:5], odd[:1]]), val, torch.cat([even[10:], odd[10:]])) for val in (odd[5:9], even[5:9])
    ]
    config = ProbeConfig(decays=(10.0, 0.0), lr=0.1)
    assert linear_probe(rows, labels, splits, config).chosen == [{"decay": 0.0}, {"decay": 10.0}]


@pytest.mark.parametrize("fit", [LinearFit(ProbeConfig(epochs=20)), LinearFit(ProbeConfig(epochs=5, batch_size=8)),
                                 LogisticFit((1, 10))], ids=["full", "batches", "logistic"])  # fmt: skip
def test_test_labels_are_not_read_before_the_score(fit):
    rows, labels = problem()
    for split in unequal_splits():
        shuffled = labels.clone()
        shuffled[split.test] = labels[split.test].flip(0)
        assert not torch.equal(shuffled, labels)
        assert_same_choices(fit(rows, shuffled, [split]), fit(rows, labels, [split]))


@pytest.mark.parametrize("judge", [linear_probe, logistic_regression])
def test_accuracy_is_that_of_the_test_nodes(judge):
    rows, labels = torch.eye(2).repeat(20, 1), torch.arange(40) % 2
    splits = random_splits(labels, [1])
    labels[splits[0].test[:8]] = 1 - labels[splits[0].test[:8]]  # 8 of 32 test labels are wrong
    assert judge(rows, labels, splits).per_split == [75.0]


@pytest.mark.parametrize("judge", [linear_probe, logistic_regression])
def test_row_lengths_and_the_kind_of_array_do_not_matter(judge):
    rows, labels = problem()
    splits = random_splits(labels, [1])
    scaled = (rows * torch.arange(1, 121).unsqueeze(1)).double().numpy()
    scaled.flags.writeable = False
    assert judge(scaled, labels.int().numpy(), splits).per_split == judge(rows, labels, splits).per_split


def test_logistic_regression_on_separable_rows_is_always_right():
    labels = torch.arange(90) % 3
    score = logistic_regression(torch.eye(3)[labels] * 5, labels, random_splits(labels, [1, 2, 3]))
    assert score.per_split == [100.0] * 3 and score.chosen == [{"C": 1}] * 3  # ties go to the smallest strength
    assert (score.probe, score.protocol) == ("logistic regression", "validation")


def test_logistic_regression_finds_the_optimum_and_chooses_its_strength_on_validation_nodes():
    rows, labels = problem(nodes=300, columns=20, seed=2)
    splits = random_splits(labels, [1, 2, 3, 4])
    x, y, strengths = rows.double().numpy(), labels.numpy(), (0.01, 1, 1000)
    for split, choice in zip(splits, LogisticFit(strengths[::-1])(rows, labels, splits), strict=True):
        train, val, test = (part.numpy() for part in split)
        # Another solver, in float64, to the last digit.
        models = [LogisticRegression(C=c, solver="newton-cg", tol=1e-9).fit(x[train], y[train]) for c in strengths]
        on_validation = [model.score(x[val], y[val]) for model in models]
        best = int(np.argmax(on_validation))  # the smallest of equals
        assert choice.settings == {"C": strengths[best]} and choice.val_accuracy == pytest.approx(on_validation[best])
        assert choice.test_prediction.tolist() == models[best].predict(x[test]).tolist()


def test_score_has_mean_and_population_deviation():
    score = Score([90.0, 92.0, 94.0, 96.0], [{}] * 4, "validation", "linear probe")
    assert score.mean == 93 and score.std == pytest.approx(5**0.5)  # squares of 3, 1, 1, 3: 20 / 4
    assert str(score) == "93.00 ± 2.24 %"


def test_unlabelled_nodes_are_left_alone():
    rows, labels = problem()
    labels[:20] = -1  # node 0, with which shorter splits are padded, among them
    splits = [*random_splits(labels, [1]), Split(torch.arange(20, 25), torch.arange(30, 40), torch.arange(40, 120))]
    junk = rows.clone()
    junk[:20] = 7.0
    assert linear_probe(rows, labels, splits) == linear_probe(junk, labels, splits)


ROWS, LABELS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
SPLITS = random_splits(LABELS, [1])


def with_nan():
    rows = ROWS.clone()
    rows[7, 1] = torch.nan
    return rows


@pytest.mark.parametrize(
    "rows, labels, sentence",
    [
        (ROWS[0], LABELS, r"probe: embeddings must be \[N, d\], got shape \[3\]"),
        (ROWS[:, :0], LABELS, r"probe: embeddings must be \[N, d\], got shape \[20, 0\]"),
        (ROWS.to_sparse(), LABELS,
         r"probe: embeddings must be dense, got torch\.sparse_coo; see sgcl\.data\.reduce_features"),
        (ROWS, LABELS[:19], r"probe: needs one label per row, got 19 labels for 20 rows"),
        (ROWS, LABELS.unsqueeze(1), r"labels: must be \[N\], one per node, got shape \[20, 1\]"),
        (ROWS, LABELS.double(), r"labels: must be integer classes, got torch\.float64"),
        (ROWS, LABELS.bool(), r"labels: must be integer classes, got torch\.bool"),
        (with_nan(), LABELS, r"probe: embeddings must be finite, row 7 is not"),
        (ROWS.double() * 1e39, LABELS, r"probe: embeddings must be finite, row 0 is not"),
        (ROWS, torch.zeros_like(LABELS), r"probe: needs at least two classes among the labels, got one"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged(rows, labels, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        check_probe_input(rows, labels, SPLITS)


def test_splits_are_checked():
    with pytest.raises(InputError, match=r"^splits: need at least one, got none$"):
        linear_probe(ROWS, LABELS, [])


def test_logistic_regression_needs_two_classes_to_learn_from():
    fine, split = (Split(torch.tensor(train), torch.tensor([4]), torch.tensor([5])) for train in ([0, 1], [0, 2]))
    with pytest.raises(InputError, match=r"^logistic regression: the train part of split 1 holds one class, needs at"):
        logistic_regression(ROWS, LABELS, [fine, split])


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"decays": ()}, r"probe: decays must be one or more numbers of at least 0, got \(\)"),
        ({"decays": (0.1, -0.1)}, r"probe: decays must be one or more numbers of at least 0, got \(0\.1, -0\.1\)"),
        (
            {"decays": (0.1, float("nan"))},
            r"probe: decays must be one or more numbers of at least 0, got \(0\.1, nan\)",
        ),
        ({"lr": 0}, r"probe: lr must be positive, got 0"),
        ({"epochs": -1}, r"probe: epochs must be positive, got -1"),
        ({"batch_size": 0}, r"probe: batch_size must be positive or None, got 0"),
    ],
)
def test_settings_out_of_range(settings, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        ProbeConfig(**settings)


@pytest.mark.parametrize("strengths", [(), (1, 0)])
def test_strengths_out_of_range(strengths):
    with pytest.raises(InputError, match=r"^logistic regression: strengths must be positive numbers, got \("):
        logistic_regression(ROWS, LABELS, SPLITS, strengths)


def test_class_numbers_may_be_large_and_have_gaps():
    rows, labels = problem()
    splits = random_splits(labels, [1, 2])
    config = ProbeConfig(epochs=5)
    renamed = torch.tensor([7, 500_000, 10**12])[labels]
    assert linear_probe(rows, renamed, splits, config).per_split == linear_probe(rows, labels, splits, config).per_split
