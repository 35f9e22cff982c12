import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sgcl.cli import main
from sgcl.data import DATASETS

TINY = "synthetic:nodes=300,edges=3000,features=16,classes=3"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_embed_writes_embeddings_and_model_and_says_how_good_they_are(capsys, tmp_path):
    assert run("embed", TINY, "--steps", 20, "--dim", 8) == 0
    printed = capsys.readouterr()
    for word in ("synthetic.parquet", "synthetic-model", "duo", "raw features", "two hops", "side by side"):
        assert word in printed.out
    assert "step 20 of 20" in printed.err and "effective rank" in printed.err
    table = pq.read_table("synthetic.parquet")
    assert table.column_names == ["id", "label", "embedding"] and table.num_rows == 300
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[8]"
    assert sorted(os.listdir("synthetic-model")) == ["config.json", "metrics.jsonl", "model.safetensors"]
    records = parsed("synthetic-model/metrics.jsonl")
    assert [record["step"] for record in records] == [1, 10, 20]
    assert set(records[0]) == {"step", "loss", "lr", "effective_rank", "spread", "seconds"}


def test_json_is_one_object_and_nothing_else(capsys):
    assert run("embed", TINY, "--steps", 3, "--out", "z.npy", "--model", "m", "--json") == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.err == ""
    assert report["shape"] == [300, 512] and report["settings"]["recipe"]["steps"] == 3
    assert set(report["accuracy"]) == {"duo", "raw features", "one hop", "two hops", "side by side"}
    assert set(report["accuracy"]["duo"]) == {"linear", "logistic"}
    assert np.load("z.npy").shape == (300, 512)


def test_labels_too_few_to_judge_by_do_not_spoil_the_embeddings(capsys):
    name = save_graph(y=np.array([0, 1, 1]))
    assert run("embed", name, "--steps", 2, "--out", "z.npy", "--json") == 0
    printed = capsys.readouterr()
    assert "accuracy" not in json.loads(printed.out) and np.load("z.npy").shape == (3, 512)
    assert "not judged: splits: need at least 10 labelled nodes, got 3" in printed.err


def test_estimate_says_memory_time_and_why(capsys):
    assert run("estimate", TINY, "--dim", 8, "--steps", 50, "--precision", "fp32") == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("memory", "a step", "50 steps", "fp32", "as asked", "features dense"))
    assert run("estimate", TINY, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] and report["memory"] > 0 and report["settings"]["precision"] in ("fp32", "bf16")
    assert report["run_seconds"] == pytest.approx(400 * report["step_seconds"])
    assert os.listdir() == []


def test_embed_warns_of_memory_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr("sgcl.estimate.available_memory", lambda device: 1 << 20)
    assert run("embed", TINY, "--steps", 2, "--no-evaluate") == 0
    assert "training needs about 0.1 GiB, but 0.0 GiB are free" in capsys.readouterr().err


def test_precision_decides_the_result_and_is_kept(capsys):
    found = {}
    for precision in ("fp32", "bf16"):
        name = f"{precision}.npy"
        arguments = ("--steps", 5, "--no-evaluate", "--json", "--out", name, "--model", precision)
        assert run("embed", TINY, "--precision", precision, *arguments) == 0
        assert json.loads(capsys.readouterr().out)["settings"]["precision"] == precision
        found[precision] = np.load(name)
    assert not np.array_equal(found["fp32"], found["bf16"])
    assert np.corrcoef(found["fp32"].ravel(), found["bf16"].ravel())[0, 1] > 0.99


def test_a_run_that_stops_by_itself_says_when_and_why(capsys):
    assert run("embed", "digits", "--no-evaluate") == 0
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert re.search(r"stopped after step \d+ of 400: \d+% of nearest neighbours stayed since step \d+", printed), (
        printed
    )
    assert run("embed", TINY, "--no-evaluate", "--steps", 60, "--minimise", "--model", "m", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["stopped"] is None and report["settings"]["recipe"]["minimise"]


def test_quiet_prints_nothing(capsys):
    assert run("embed", TINY, "--steps", 2, "--quiet", "--no-evaluate") == 0
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_same_seed_same_file_content(capsys):
    for name in ("a", "b"):
        assert run("embed", TINY, "--steps", 4, "--out", f"{name}.npy", "--model", name, "-q", "--no-evaluate") == 0
    assert np.array_equal(np.load("a.npy"), np.load("b.npy"))


def test_a_toml_file_holds_defaults_that_the_command_line_overrides(capsys, tmp_path):
    (tmp_path / "c.toml").write_text("dim = 4\nsteps = 2\nedge-drop = 0.25\nno_such = 1\n")
    assert run("embed", TINY, "--config", "c.toml") == 2
    assert "c.toml: unknown setting 'no_such'; known are as_json, checkpoint_every" in capsys.readouterr().err
    (tmp_path / "c.toml").write_text(f'graph = "{TINY}"\ndim = 4\nsteps = 2\nedge-drop = 0.25\nevaluate = false\n')
    assert run("embed", "--config", "c.toml", "--dim", 6, "--json") == 0
    recipe = json.loads(capsys.readouterr().out)["settings"]["recipe"]
    assert (recipe["dim"], recipe["steps"], recipe["edge_drop"]) == (6, 2, 0.25)


def test_evaluate_any_embeddings_file(capsys):
    run("embed", TINY, "--steps", 5, "-q", "--no-evaluate")
    assert run("evaluate", "synthetic.parquet", "--splits", 3) == 0
    printed = capsys.readouterr().out
    assert "3 splits" in printed and "linear probe" in printed and "logistic regression" in printed
    assert run("evaluate", "synthetic.parquet", "--graph", TINY, "--probe", "logistic", "--splits", 2, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["accuracy"]) == {"embeddings", "raw features", "one hop", "two hops", "side by side"}
    assert list(report["accuracy"]["embeddings"]) == ["logistic"]
    assert len(report["accuracy"]["embeddings"]["logistic"]["per_split"]) == 2


def test_datasets_and_methods_are_listed(capsys):
    assert run("datasets") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in DATASETS)
    assert run("datasets", "--json") == 0
    assert json.loads(capsys.readouterr().out)["photo"]["pairs"] == 238_162
    assert run("methods") == 0
    assert "WSDM 2024" in capsys.readouterr().out


def test_every_command_teaches_by_example(capsys):
    for command in ("embed", "estimate", "evaluate", "bench", "datasets", "methods"):
        assert run(command, "--help") == 0
        printed = capsys.readouterr().out
        assert f"sgcl {command}" in printed.split("Example")[1]
    assert run() == 0
    assert "sgcl embed digits" in capsys.readouterr().out
    assert run("--version") == 0


def save_graph(name="g.npz", **changes):
    arrays = {"edge_index": np.array([[0, 1, 2], [1, 2, 0]]), "x": np.eye(3, dtype=np.float32)}
    np.savez(name, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})
    return name


GRAPHS = [
    ({"edge_index": np.array([[0, 9], [1, 2]])}, r"node numbers must lie in 0 to 2 .* got 9 -> 2 in column 1"),
    ({"edge_index": np.array([[0, 1], [1, -1]])}, r"got 1 -> -1 in column 1"),
    (
        {"edge_index": np.array([[0, 1], [1, 2], [2, 0]])},
        r"edge_index: must be \[2, E\], .* got shape \[3, 2\]; transpose",
    ),
    ({"edge_index": np.array([[0.0], [1.0]])}, "edge_index: must hold integers, got torch.float64"),
    ({"edge_index": np.array([[1], [1]])}, "has no edges between different nodes"),
    ({"x": np.array([[1.0], [np.nan], [0]])}, "features: must be finite, got nan in row 1, column 0"),
    ({"x": np.array([[1.0], [2], [np.inf]])}, "got inf in row 2, column 0"),
    ({"x": np.ones(3)}, r"features: must be \[N, F\], a row per node, got shape \[3\]"),
    ({"x": np.empty((0, 4))}, "graph: is empty, 0 nodes"),
    ({"x": np.ones((1, 4)), "edge_index": np.array([[0], [0]])}, "graph: has one node"),
    ({"x": None}, "graph: has no features"),
    ({"x": np.array([["a"], ["b"], ["c"]])}, "features: must be numbers"),
    ({"x": np.ones((3, 2))}, "duo: the features, each row scaled to length 1, are the same for every node"),
    ({"y": np.array([0, 1])}, r"labels: need one per node, got shape \[2\] for 3 nodes"),
]


@pytest.mark.parametrize("changes, sentence", GRAPHS, ids=[sentence for _, sentence in GRAPHS])
def test_a_bad_graph_takes_one_sentence_and_status_2_and_writes_nothing(capsys, changes, sentence):
    name = save_graph(**changes)
    assert run("embed", name) == 2
    printed = capsys.readouterr().err
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and re.search(sentence, errors[0]) and "Traceback" not in printed, printed
    assert os.listdir() == ["g.npz"]


COMMANDS = [
    (["embed", "karate"], "graph: 'karate' is not known; give one of digits, wikics"),
    (["embed", "nowhere.npz"], "nowhere.npz: cannot be read"),
    (["embed", "synthetic:nodes=x"], "synthetic: nodes must be a whole number, got 'x'"),
    (["embed", TINY, "--method", "sgc"], "method: 'sgc' is not known"),
    (["embed", TINY, "--steps", "few"], "--steps: must be a whole number or auto, got 'few'"),
    (["embed", TINY, "--steps", "0"], "steps: must be a whole number of at least 1"),
    (["embed", TINY, "--dim", "zero"], "Invalid value for '--dim'"),
    (["embed", TINY, "--dim", "-1"], "dim: must be at least 1, got -1"),
    (["embed", TINY, "--edge-drop", "1"], r"DropEdges: p must lie in [0, 1), got 1.0"),
    (["embed", TINY, "--out", "z.csv"], "must end in .parquet or .npy, got 'z.csv'"),
    (["embed", TINY, "--device", "tpu"], "device: 'tpu' cannot be used here"),
    (["embed", TINY, "--precision", "fp8"], "precision: must be one of auto, fp32, bf16, got 'fp8'"),
    (["estimate", "karate"], "graph: 'karate' is not known"),
    (["embed", TINY, "--checkpoint-every", "0"], "checkpoint_every: must be at least 1, got 0"),
    (["embed", TINY, "--schedule", "paper"], "the paper has no settings for"),
    (["embed"], "Missing argument 'GRAPH'"),
    (["embed", TINY, "--no-such"], "No such option"),
    (["embed", TINY, "--config", "no.toml"], "no.toml: cannot be read as TOML"),
    (["evaluate", "no.parquet"], "no.parquet: cannot be read"),
    (["evaluate", "z.txt"], "must end in .parquet or .npy"),
    (["bench", "karate"], "bench: 'karate' is not known"),
    (["bench", "digits", "--protocol", "test"], "protocol: must be one of validation, paper_best_test, got 'test'"),
    (["frobnicate"], "No such command 'frobnicate'"),
]


@pytest.mark.parametrize("arguments, sentence", COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_a_bad_command_takes_one_sentence_and_status_2_and_writes_nothing(capsys, arguments, sentence):
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    error = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and sentence in error[0], printed.err
    assert "Traceback" not in printed.err and os.listdir() == []


def test_bad_columns_are_refused(capsys):
    run("embed", TINY, "--steps", 2, "-q", "--no-evaluate", "--out", "z.parquet")
    for arguments, sentence in [
        (("--label", "colour"), "z.parquet: has no column 'colour'; its columns are id, label, embedding"),
        (("--label", "id"), "column 'id' has 300 different values in 300 rows; name a class column"),
        (("--graph", "digits"), "z.parquet: has 300 rows, 'digits' has 1797 nodes"),
        (("--probe", "svm"), "--probe: must be one of linear, logistic, both, got 'svm'"),
        (("--splits", "0"), "--splits must be at least 1"),
    ]:
        assert run("evaluate", "z.parquet", *arguments) == 2
        assert sentence in capsys.readouterr().err


def test_an_unfinished_run_is_not_overwritten_by_accident(capsys):
    arguments = ["embed", TINY, "--steps", "40", "--checkpoint-every", "5", "--no-evaluate"]
    process = start(arguments)
    wait_for(lambda: os.path.exists("synthetic-model/checkpoint.safetensors"), process)
    process.kill()
    process.wait()
    if not os.path.exists("synthetic-model/checkpoint.safetensors"):
        pytest.skip("finished before it could be killed")
    assert run(*arguments) == 2
    assert "holds an unfinished run; add --resume" in capsys.readouterr().err
    assert run(*arguments, "--restart", "-q") == 0
    assert not os.path.exists("synthetic-model/checkpoint.safetensors")


def start(arguments):
    command = [sys.executable, "-W", "ignore", "-m", "sgcl.cli", *arguments]
    with open("stderr", "w") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def wait_for(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.01)


def records(folder):
    return read(f"{folder}/metrics.jsonl").count("\n")


def read(path):
    return Path(path).read_text() if os.path.exists(path) else ""


def parsed(path):
    return [json.loads(line) for line in read(path).splitlines()]


KILLED = "synthetic:nodes=3000,edges=30000,features=64,classes=3"


@pytest.mark.parametrize("kills, steps", [(3, "150"), (2, "auto"), pytest.param(10, "auto", marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_bits(kills, steps):
    common = ["embed", KILLED, "--steps", steps, "--checkpoint-every", "7", "--no-evaluate"]
    whole = start([*common, "--out", "whole.npy", "--model", "whole"])
    assert whole.wait() == 0
    moments = np.random.default_rng()
    command = [*common, "--out", "killed.npy", "--model", "killed", "--resume"]
    for _ in range(kills):
        process, before = start(command), records("killed")
        wait_for(lambda before=before: records("killed") > before, process)
        time.sleep(moments.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(command).wait() == 0
    assert np.array_equal(np.load("whole.npy"), np.load("killed.npy"))
    whole, killed = ([(r["step"], r["loss"]) for r in parsed(f"{name}/metrics.jsonl")] for name in ("whole", "killed"))
    assert whole == killed
    assert not [name for name in os.listdir("killed") if "checkpoint" in name and not name.startswith(".")]


def test_sigint_saves_and_says_how_to_go_on():
    command = ["embed", KILLED, "--steps", "400", "--no-evaluate"]
    process = start(command)
    wait_for(lambda: records("synthetic-model") > 1, process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    error = read("stderr")
    assert "interrupted; saved in synthetic-model, go on with the same command and --resume" in error
    assert "Traceback" not in error and os.path.exists("synthetic-model/checkpoint.safetensors")
    assert not os.path.exists("synthetic.parquet")
