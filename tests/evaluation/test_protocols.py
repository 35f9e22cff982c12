import pytest
import torch

from sgcl.errors import InputError
from sgcl.evaluation import PROTOCOLS, PaperBestTest, ProbeConfig, Split, Validation, linear_probe
from sgcl.evaluation.probe import LinearFit

CONFIG = ProbeConfig(lr=0.1, epochs=60, decays=(0.0,))
LABELS = torch.arange(80) % 2
FIRST_HALF, SECOND_HALF = torch.arange(40), torch.arange(40, 80)
A = Split(FIRST_HALF[:8], FIRST_HALF[8:16], FIRST_HALF[16:])
B = Split(SECOND_HALF[:8], SECOND_HALF[8:16], SECOND_HALF[16:])


def checkpoint(*good):
    """Embeddings that give the classes of ``good`` nodes away and say the opposite for half of the others."""
    rows = torch.eye(2)[LABELS].clone()
    for part in (FIRST_HALF, SECOND_HALF):
        if not any(part is one for one in good):
            rows[part] = torch.eye(2)[(part // 2) % 2]  # independent of the labels: half of the nodes are right
    return rows


def protocol(name, splits=(A, B), labels=LABELS):
    return PROTOCOLS[name](labels, splits, LinearFit(CONFIG))


def test_names():
    assert list(PROTOCOLS) == ["validation", "paper_best_test"]
    assert (Validation.name, PaperBestTest.name) == ("validation", "paper_best_test")


def test_each_split_picks_its_own_checkpoint_on_validation():
    rule = protocol("validation")
    assert rule.observe(1, checkpoint(FIRST_HALF)) == 75.0  # 100 % on A's validation nodes, 50 % on B's
    assert rule.observe(20, checkpoint(SECOND_HALF)) == 75.0
    score = rule.score()
    assert score.per_split == [100.0, 100.0]
    assert score.chosen == [{"step": 1, "decay": 0.0}, {"step": 20, "decay": 0.0}]
    assert score.protocol == "validation" and score.probe == "linear probe"


def test_the_papers_rule_picks_one_checkpoint_for_all_splits_by_mean_test_accuracy():
    rule = protocol("paper_best_test")
    rule.observe(1, checkpoint())
    rule.observe(20, checkpoint(SECOND_HALF))
    rule.observe(40, checkpoint(FIRST_HALF))  # as good on average: the earlier stays
    score = rule.score()
    assert score.per_split == [50.0, 100.0]
    assert [one["step"] for one in score.chosen] == [20, 20]
    assert score.protocol == "paper_best_test"


def test_the_rules_part_where_validation_and_test_disagree():
    labels = LABELS.clone()
    labels[A.test] = 1 - labels[A.test]  # what serves the validation nodes is always wrong on the test nodes
    scores = {}
    for name in PROTOCOLS:
        rule = protocol(name, [A], labels)
        validation = [rule.observe(step, rows) for step, rows in ((1, checkpoint()), (2, checkpoint(FIRST_HALF)))]
        assert validation == [50.0, 100.0]
        scores[name] = rule.score()
    assert (scores["validation"].per_split, scores["validation"].chosen[0]["step"]) == ([0.0], 2)
    assert (scores["paper_best_test"].per_split, scores["paper_best_test"].chosen[0]["step"]) == ([50.0], 1)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_ties_go_to_the_earlier_checkpoint(name):
    rule = protocol(name)
    for step in (10, 20, 30):
        rule.observe(step, checkpoint(FIRST_HALF, SECOND_HALF))
    assert [one["step"] for one in rule.score().chosen] == [10, 10]


def test_validation_reads_test_labels_once_in_the_end():
    labels = LABELS.clone()
    rule = protocol("validation", [A], labels)
    labels[A.test] = 1 - labels[A.test]
    values = [rule.observe(step, rows) for step, rows in ((1, checkpoint(FIRST_HALF)), (2, checkpoint()))]
    labels[A.test] = 1 - labels[A.test]
    honest = protocol("validation", [A])
    assert values == [honest.observe(1, checkpoint(FIRST_HALF)), honest.observe(2, checkpoint())]
    assert rule.score() == honest.score()
    assert rule.score().per_split == [100.0]


def test_one_checkpoint_is_the_plain_probe():
    rows = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
    config = ProbeConfig(epochs=20)
    rule = Validation(LABELS, [A, B], LinearFit(config))
    validation = rule.observe(5, rows)
    score, plain = rule.score(), linear_probe(rows, LABELS, [A, B], config)
    assert score.per_split == plain.per_split
    assert score.chosen == [{"step": 5, **one} for one in plain.chosen]
    unit = torch.nn.functional.normalize(rows, dim=1)
    accuracies = [choice.val_accuracy for choice in LinearFit(config)(unit, LABELS, [A, B])]
    assert validation == pytest.approx(100 * sum(accuracies) / 2)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_nothing_was_observed(name):
    with pytest.raises(InputError, match=rf"^protocol {name}: no checkpoint was observed$"):
        protocol(name).score()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_embeddings_are_checked(name):
    with pytest.raises(InputError, match=r"^probe: embeddings must be finite, row 3 is not$"):
        protocol(name).observe(1, checkpoint().index_fill(0, torch.tensor([3]), torch.inf))
