import json

import pytest

from sgcl import InputError, NodeEmbedder
from sgcl import tuning as module
from sgcl.cli import main
from sgcl.data import open_source
from sgcl.errors import TrainingStopped
from sgcl.graph import View
from sgcl.pipeline import Run, Settings
from sgcl.recipes import Recipe
from sgcl.tuning import CANDIDATES, Budget, Trial, best, stability, tuned

GRAPH = "synthetic:nodes=200,edges=2000,features=16,classes=3"
SETTINGS = Settings("sgcl", Recipe((8,), 4))


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "STEPS", 5)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def source():
    return open_source(GRAPH)


def test_the_most_stable_candidate_that_has_not_collapsed_is_taken():
    flat, good, fair = Trial({"lr": 1.0}, 0.9, 4.9, 1), Trial({}, 0.5, 10, 1), Trial({"lr": 2.0}, 0.4, 9, 1)
    assert best([flat, good, fair, Trial({}, None, 0, 0)]) is good
    assert best([good, Trial({"lr": 1.0}, 0.9, 5.0, 1)]).stability == 0.9
    with pytest.raises(TrainingStopped, match=r"^tune: no candidate could be trained"):
        best([Trial({}, None, 0, 0)])


def test_trials_are_short_runs_of_the_candidates(source):
    settings, found = tuned(source, SETTINGS, Budget(3))
    assert [one.changes for one in found] == list(CANDIDATES["sgcl"][:3])
    run = Run(source, Settings("sgcl", Recipe((8,), 4, edge_drop=0.8, feature_drop=0.0, steps=5)))()
    assert run.history[-1]["step"] == 5
    assert found[1].effective_rank == pytest.approx(module.effective_rank(run.method.represented(View.of(source.data))))
    chosen = best(found).changes
    assert settings.recipe == Recipe((8,), 4, **chosen) and not settings.early_stop


def test_values_that_were_chosen_by_hand_are_left_alone():
    assert Budget(9, frozenset({"lr"})).candidates("sgcl") == [one for one in CANDIDATES["sgcl"] if "lr" not in one]
    for budget in (Budget(1), Budget(5, frozenset({"lr", "edge_drop", "feature_drop"}))):
        with pytest.raises(InputError, match=r"^tune: needs at least 2 short runs and 2 candidates"):
            budget.candidates("duo")


def test_nodes_that_hear_nobody_are_perfectly_stable(source):
    run = Run(source, Settings("sgcl", Recipe((8,), 4, steps=2)))()
    view = View.of(source.data)
    assert 0 < stability(run.method, view) < 1
    assert stability(run.method, view.replace(edge_index=view.edge_index[:, :0])) == 1


def test_a_resumed_run_does_not_try_again(source, monkeypatch, tmp_path):
    stop = iter([False] * 30 + [True])
    embedder = NodeEmbedder("sgcl", 4, 40, hidden=(8,), tune=2)
    embedder.fit(source, folder=tmp_path / "m", should_stop=lambda: next(stop))
    assert not embedder.run_.finished and len(embedder.trials_) == 2
    with pytest.raises(InputError, match=r"m: holds an unfinished run; add --resume"):
        NodeEmbedder("sgcl", 4, 40, hidden=(8,), tune=2).fit(source, folder=tmp_path / "m")
    monkeypatch.setattr(module, "trials", lambda *_: pytest.fail("tried again"))
    again = NodeEmbedder("sgcl", 4, 40, hidden=(8,), tune=2).fit(source, folder=tmp_path / "m", resume=True)
    assert again.run_.finished and again.trials_ == embedder.trials_


def test_trials_are_those_of_the_model_beside_them(source, tmp_path):
    NodeEmbedder("sgcl", 4, 2, hidden=(8,), tune=2).fit(source, folder=tmp_path)
    kept = json.loads((tmp_path / "tuning.json").read_text())
    (tmp_path / "tuning.json").write_text(json.dumps({**kept, "trials": [{"no": 1}]}))
    with pytest.raises(InputError, match=r"tuning.json: holds no trials that can be read; delete it to try anew$"):
        NodeEmbedder("sgcl", 4, 2, hidden=(8,), tune=2).fit(source, folder=tmp_path, resume=True)
    (tmp_path / "checkpoint.safetensors").unlink()
    NodeEmbedder("sgcl", 4, 2, hidden=(8,)).fit(source, folder=tmp_path)
    assert not (tmp_path / "tuning.json").exists()


def test_the_papers_settings_are_not_tuned():
    with pytest.raises(InputError, match=r"^tune: would change the paper's own settings"):
        NodeEmbedder("sgcl", tune=2, schedule="paper").settings_for("photo")


def test_interrupted_trials_leave_nothing_behind(source, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        NodeEmbedder(tune=2, steps=3).fit(source, folder=tmp_path / "m", should_stop=lambda: True)
    assert not (tmp_path / "m").exists()


def test_the_command_says_what_was_tried(capsys):
    assert main(["embed", GRAPH, "--tune", "3", "--steps", "4", "--dim", "8", "--no-evaluate"]) == 0
    printed = capsys.readouterr()
    assert "of 3 settings tried" in printed.out and printed.err.count("of neighbours stable") == 3
    assert main(["embed", GRAPH, "--tune", "2", "--steps", "4", "--dim", "8", "--json", "--out", "z.npy"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [trial["changes"] for trial in report["tuning"]] == list(CANDIDATES["duo"][:2])
    assert main(["embed", GRAPH, "--tune", "-1"]) == 2
    assert "tune: must be a number of short runs, 0 for none, got -1" in capsys.readouterr().err
