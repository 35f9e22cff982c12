import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from sgcl import bench
from sgcl.bench import Bench
from sgcl.data import open_source
from sgcl.errors import InputError
from sgcl.evaluation import PROBES, linear_probe, logistic_regression, random_splits, splits_of
from sgcl.evaluation.probe import LinearFit
from sgcl.pipeline import Run, Settings, pick_device, pick_precision, probe_config
from sgcl.recipes import Recipe
from sgcl.store import read_results

GRAPH = "synthetic:nodes=200,edges=2000,features=16,classes=3"
PRECISION = pick_precision("auto", pick_device("auto"))
RECIPE = Recipe(hidden=(8,), dim=4, steps=5)
FREE = ["raw features", "one hop", "two hops", "side by side"]


@pytest.fixture(autouse=True)
def recipe(monkeypatch):
    """Short runs, quickly judged by the second probe; call it with another recipe to change them."""

    def use(recipe):
        monkeypatch.setattr(bench, "recipe_for", lambda graph, schedule, method: recipe)

    use(RECIPE)
    monkeypatch.setattr(bench, "CHECK_SEEDS", range(201, 203))
    return use


@pytest.fixture
def plan(tmp_path):
    return Bench(tmp_path / "results.jsonl", seeds=2, every=2)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The records of a whole benchmark, its progress and its file."""
    plan, progress = Bench(tmp_path_factory.mktemp("bench") / "results.jsonl", seeds=2, every=2), Progress()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "recipe_for", lambda graph, schedule, method: RECIPE)
        return list(plan.run(GRAPH, progress)), progress, plan.out


@pytest.fixture
def done(plan, first):
    """A plan whose file holds all it asks for."""
    shutil.copy(first[2], plan.out)
    return plan


class Progress:
    """Counts the training runs that were begun and the steps that were shown."""

    def __init__(self, stop_at_run=None):
        self.runs, self.steps, self.stop_at_run = 0, [], stop_at_run

    @contextmanager
    def __call__(self, steps):
        self.runs += 1
        if self.runs == self.stop_at_run:
            raise KeyboardInterrupt
        yield lambda step: self.steps.append(step.step)


def test_records_are_complete(first):
    records, progress, out = first
    assert records == read_results(out)
    assert [(record["method"], record["seed"]) for record in records] == [
        *((name, None) for name in FREE), ("sgcl", 0), ("sgcl", 1),
    ]  # fmt: skip
    assert progress.steps == [1, 2, 3, 4, 5] * 2
    for record in records:
        assert record["graph"] == GRAPH
        assert (record["protocol"], record["probe"]) == ("validation", "linear probe")
        assert len(record["per_split"]) == len(record["chosen"]) == 20
        assert record["mean"] == pytest.approx(np.mean(record["per_split"]))
        assert record["std"] == pytest.approx(np.std(record["per_split"]))
        second = record["second_probe"]
        assert (second["probe"], second["splits"]) == ("logistic regression", "random, seeds 201 to 220")
        assert len(second["per_split"]) == 20 and second["mean"] == pytest.approx(np.mean(second["per_split"]))
        assert {"torch", "sgcl", "machine"} <= set(record["made_by"]) and len(record["date"]) == 10
        assert record["command"] == f"sgcl bench {GRAPH} --out {out} --seeds 2 --every 2"


def test_records_of_training_say_what_was_trained_and_when_it_was_judged(first):
    record = first[0][-1]
    assert Settings.from_dict(record["settings"]) == Settings("sgcl", RECIPE, 1, PRECISION)
    checkpoints = record["checkpoints"]
    assert checkpoints["every"] == 2 and list(checkpoints["validation_accuracy"]) == ["1", "2", "4", "5"]
    assert {one["step"] for one in record["chosen"]} <= {1, 2, 4, 5}
    assert record["training_seconds"] > 0 and set(record["signals"]) == {"loss", "effective_rank", "spread"}


def test_figures_are_those_of_the_parts_put_together_by_hand(first):
    raw, trained = first[0][0], first[0][-1]
    data = open_source(GRAPH).data
    assert raw["per_split"] == linear_probe(data.x, data.y, splits_of(data), probe_config(RECIPE)).per_split
    # Seed 1 without anybody watching: judging checkpoints does not change the run.
    run = Run(open_source(GRAPH), Settings("sgcl", RECIPE, 1, PRECISION))()
    assert trained["signals"]["loss"] == run.history[-1]["loss"]
    last = logistic_regression(run.method.embed(data), data.y, random_splits(data.y, range(201, 221)))
    assert trained["second_probe"]["per_split"] == last.per_split


def test_what_stops_by_itself_is_judged_once(plan):
    stopping = replace(plan, method="duo", seeds=1, early_stop=True)
    record = list(stopping.run(GRAPH, Progress()))[-1]
    assert (record["method"], record["probe"], record["stopped"]) == ("duo", "linear probe", None)
    assert record["settings"]["early_stop"] and list(record["checkpoints"]["validation_accuracy"]) == ["5"]
    assert {one["step"] for one in record["chosen"]} == {5}
    assert record["command"].endswith("--method duo --seeds 1 --every 2 --early-stop")
    watched = list(replace(stopping, early_stop=False).run(GRAPH, Progress()))[-1]
    assert watched["key"] != record["key"] and len(watched["checkpoints"]["validation_accuracy"]) == 4


def test_either_probe_serves_the_protocol(plan, monkeypatch):
    asked = []
    monkeypatch.setitem(bench.PROBES, "logistic", lambda config: asked.append(config) or LinearFit(config))
    [*_, record] = replace(plan, seeds=1, probe="logistic").run(GRAPH, Progress())
    assert asked == [probe_config(RECIPE)] and record["command"].endswith("--probe logistic")
    [*_, other] = replace(plan, seeds=1).run(GRAPH, Progress())
    assert other["key"] != record["key"] and other["per_split"] == record["per_split"]
    assert PROBES["linear"](probe_config(RECIPE)).name == "linear probe"


def test_a_second_run_trains_nothing_and_yields_the_same(done, first):
    content, progress = done.out.read_bytes(), Progress()
    assert list(done.run(GRAPH, progress)) == first[0]
    assert progress.runs == 0 and done.out.read_bytes() == content


def test_more_seeds_only_add(done, first):
    progress = Progress()
    more = list(replace(done, seeds=3).run(GRAPH, progress))
    assert more[:-1] == first[0] and more[-1]["seed"] == 2 and progress.runs == 1


def test_killed_between_records_nothing_is_lost(plan):
    with pytest.raises(KeyboardInterrupt):
        list(plan.run(GRAPH, Progress(stop_at_run=2)))
    kept = read_results(plan.out)
    assert [record["seed"] for record in kept] == [None] * 4 + [0]
    progress = Progress()
    assert list(plan.run(GRAPH, progress))[:-1] == kept and progress.runs == 1


@pytest.mark.parametrize(
    "change", [{"steps": 6}, {"lr": 1e-3}, {"edge_drop": 0.1}, {"probe_lr": 0.02}, {"probe_decay": 0.0}], ids=str
)
def test_a_changed_recipe_runs_anew(done, recipe, change):
    ((name, value),) = change.items()
    recipe(replace(RECIPE, **change))
    progress = Progress()
    record = list(replace(done, seeds=1).run(GRAPH, progress))[-1]
    assert progress.runs == 1 and record["settings"]["recipe"][name] == value
    added = 5 if name.startswith("probe") else 1  # another probe judges what costs no training anew
    assert len(read_results(done.out)) == 6 + added


def test_another_protocol_or_other_checkpoints_run_anew(done):
    for other in (replace(done, protocol="paper_best_test", seeds=1), replace(done, every=3, seeds=1)):
        progress = Progress()
        record = list(other.run(GRAPH, progress))[-1]
        assert progress.runs == 1 and record["protocol"] in other.protocol
    assert len(read_results(done.out)) == 8


def test_the_papers_rule_is_named_in_record_and_command(done):
    record = list(replace(done, protocol="paper_best_test", seeds=1).run(GRAPH, Progress()))[-1]
    assert record["protocol"] == "paper_best_test"
    assert record["command"].endswith("--seeds 1 --protocol paper_best_test --every 2")
    assert len({one["step"] for one in record["chosen"]}) == 1  # one checkpoint for all splits


def test_the_first_and_the_last_checkpoint_unless_said(done):
    record = list(replace(done, every=None, seeds=1).run(GRAPH, Progress()))[-1]
    assert record["checkpoints"]["every"] == 5 and list(record["checkpoints"]["validation_accuracy"]) == ["1", "5"]


def test_one_run_serves_several_protocols_and_probes(done):
    alone = replace(done, protocol="paper_best_test", seeds=1)
    apart = [list(replace(alone, probe=probe).run(GRAPH, Progress()))[-1] for probe in ("linear", "logistic")]
    done.out.write_text("")
    progress, protocols, probes = Progress(), ("validation", "paper_best_test"), ("linear", "logistic")
    together = list(replace(done, protocol=protocols, probe=probes, seeds=1).run(GRAPH, progress))[-4:]
    assert progress.runs == 1 and [one["protocol"] for one in together] == [*protocols, *protocols]
    assert [one["per_split"] for one in together[1::2]] == [one["per_split"] for one in apart]
    flags = "--protocol validation --protocol paper_best_test --every 2 --probe linear --probe logistic"
    assert together[0]["command"].endswith(flags)


def graph_file(path, labels, **masks):
    rng = np.random.default_rng(0)
    np.savez(path, edge_index=rng.integers(60, size=(2, 300)), x=rng.random((60, 4)), y=labels, **masks)
    return str(path)


def test_other_labels_of_the_same_graph_run_anew(plan, tmp_path):
    labels = np.arange(60) % 3
    plan = replace(plan, seeds=1)
    first = list(plan.run(graph_file(tmp_path / "own.npz", labels), Progress()))
    progress = Progress()
    second = list(plan.run(graph_file(tmp_path / "own.npz", np.roll(labels, 1)), progress))
    assert progress.runs == 1 and not {record["key"] for record in first} & {record["key"] for record in second}
    assert first[0]["graph"] == "own" and str(tmp_path / "own.npz") in first[0]["command"]


def test_public_splits_serve_both_probes(plan, monkeypatch):
    source = open_source(GRAPH)
    parts = random_splits(source.data.y, [1])[0]
    for name, part in zip(("train_mask", "val_mask", "test_mask"), parts, strict=True):
        source.data[name] = source.data.y.new_zeros(200).index_fill(0, part, 1).bool()
    monkeypatch.setattr(bench, "open_source", lambda graph: source)
    for record in replace(plan, seeds=1).run(GRAPH, Progress()):
        assert len(record["per_split"]) == len(record["second_probe"]["per_split"]) == 1
        assert record["second_probe"]["splits"] == "public"


@pytest.mark.parametrize("graph", ["foto", "synthetics", "none.npz"])
def test_unknown_graphs_are_refused_before_anything_runs(plan, graph):
    with pytest.raises(
        InputError, match=rf"^bench: '{graph}' is not known; give some of digits, .*, synthetic:\.\.\., or"
    ):
        plan.check(graph)


def test_known_graphs_pass(plan, tmp_path):
    for graph in ("digits", "photo", GRAPH, graph_file(tmp_path / "own.npz", np.arange(60) % 3)):
        plan.check(graph)
    assert not plan.out.exists()


def test_graphs_without_labels_are_refused(plan, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "bare.npz", edge_index=rng.integers(9, size=(2, 30)), x=rng.random((9, 4)))
    with pytest.raises(InputError, match=r"^bench: '.*bare\.npz' has no labels to judge by$"):
        list(plan.run(str(tmp_path / "bare.npz"), Progress()))


@pytest.mark.parametrize(
    "content, problem", [("not json", "line 1 is not JSON"), (json.dumps({"step": 1}), "line 1 is not a record")]
)
def test_another_files_content_is_never_overwritten(plan, content, problem):
    plan.out.write_text(content)
    for use in (lambda: plan.check(GRAPH), lambda: list(plan.run(GRAPH, Progress()))):
        with pytest.raises(InputError, match=rf"results\.jsonl: {problem}.*; name another file$"):
            use()
    assert plan.out.read_text() == content


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"protocol": ()}, r"protocol: must be one of validation, paper_best_test, got 'none'"),
        ({"protocol": "best"}, r"protocol: must be one of validation, paper_best_test, got 'best'"),
        ({"seeds": 0}, r"bench: seeds must be at least 1, got 0"),
        ({"every": 0}, r"bench: every must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range(tmp_path, settings, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        Bench(tmp_path / "results.jsonl", **settings)
