"""Validation accuracy against training seconds: the paper's schedule by the plain step and by the engine, ours, duo.

Accuracy is that of both probes on the validation nodes of splits 101-120, every ``--every`` steps. Seconds are steps
times the median step, all kinds timed in one run by turns (``benchmarks/step.py``); judging is not counted. The plain
step's accuracies are the engine's in float32. What costs no training is ready after the seconds that it took to make.
An interrupted run goes on where it stopped, with the same command.

    pip install -c constraints.txt ".[viz]"
    python benchmarks/time_to_accuracy.py photo computers cs physics
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from step import alternate

from sgcl.data import Source, open_source
from sgcl.evaluation import PROBES, TUNING_SEEDS, random_splits, training_free
from sgcl.evaluation.probe import check_probe_input
from sgcl.pipeline import Run, Settings, pick_device, pick_precision, probe_config, versions
from sgcl.recipes import recipe_for
from sgcl.store import replacing, write_json

CURVES = {  # name: method, schedule, precision of the run, kind of step that its seconds are counted in
    "plain step, paper's schedule": ("sgcl", "paper", "fp32", "plain"),
    "engine, paper's schedule": ("sgcl", "paper", "auto", "auto"),
    "engine, our schedule": ("sgcl", "short", "auto", "auto"),
    "duo": ("duo", "short", "auto", "duo"),
}


def judge(source: Source) -> Callable[[Any], dict[str, float]]:
    """Mean validation accuracy in per cent of embeddings, per probe."""
    data, config = source.data, probe_config(recipe_for(source.name))
    splits = random_splits(data.y, TUNING_SEEDS)

    def accuracies(embeddings: Any) -> dict[str, float]:
        rows, labels = check_probe_input(embeddings, data.y, splits)
        found = {name: probe(config)(rows, labels, splits) for name, probe in PROBES.items()}
        return {name: 100 * float(np.mean([one.val_accuracy for one in choices])) for name, choices in found.items()}

    return accuracies


def curve(source: Source, name: str, every: int, steps: int | None, work: Path) -> dict[int, dict[str, float]]:
    """Accuracies by step of a run, kept in ``work`` while it goes on."""
    method, schedule, precision, _ = CURVES[name]
    recipe = recipe_for(source.name, schedule, method)
    recipe = replace(recipe, steps=steps) if steps else recipe
    settings = Settings(method, recipe, 0, pick_precision(precision, pick_device("auto")))
    folder = work / f"{source.name}-{name.replace(' ', '-')}"
    kept, accuracies = folder / "accuracies.json", judge(source)
    found = {int(k): v for k, v in json.loads(kept.read_text()).items()} if kept.exists() else {}
    if recipe.steps in found:
        return found
    run = Run(source, settings, folder, checkpoint_every=every)

    def look(step: Any) -> None:
        if (step.step in (1, recipe.steps) or step.step % every == 0) and step.step not in found:
            found[step.step] = accuracies(run.embeddings())
            write_json(kept, found)
            print(source.name, name, step.step, found[step.step], flush=True)

    run(resume=True, on_step=look)
    return found


def free(source: Source) -> dict[str, dict[str, float]]:
    start = time.perf_counter()
    made = training_free(source.data)
    seconds, accuracies = time.perf_counter() - start, judge(source)
    return {name: {"seconds": seconds, **accuracies(rows)} for name, rows in made.items()}


def first_time(found: dict[int, dict[str, float]], probe: str, least: float, milliseconds: float) -> float | None:
    """Seconds until a curve first reaches an accuracy."""
    reached = [step for step, accuracy in sorted(found.items()) if accuracy[probe] >= least]
    return reached[0] * milliseconds / 1000 if reached else None


def measure(name: str, every: int, steps: int | None, work: Path) -> dict[str, Any]:
    source = open_source(name)
    found = {title: curve(source, title, every, steps, work) for title in CURVES}
    milliseconds, _ = alternate(name, 20, kinds=("plain", "fp32", "auto", "duo"))
    plain = found["plain step, paper's schedule"]
    least = plain[max(plain)]["linear"] - 0.2
    times = {
        title: first_time(points, "linear", least, milliseconds[CURVES[title][3]]) for title, points in found.items()
    }
    return {
        "milliseconds": milliseconds,
        "curves": found,
        "training-free": free(source),
        "target": {"accuracy": least, "probe": "linear", "what": "plain run's final accuracy minus 0.2 points"},
        "seconds_to_target": times,
    }


def draw(report: dict[str, Any], graphs: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(graphs), figsize=(4.6 * len(graphs), 4), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], graphs, strict=True):
        part = report[name]
        for title, style in zip(CURVES, ("-", "--", "-.", ":"), strict=True):
            points = part["curves"][title]
            steps = sorted(map(int, points))
            seconds = [step * part["milliseconds"][CURVES[title][3]] / 1000 for step in steps]
            values = [(points.get(step) or points[str(step)])["logistic"] for step in steps]
            axis.plot(seconds, values, style, label=title)
        right = axis.get_xlim()[1]
        for shade, (title, one) in zip((0.75, 0.6, 0.45, 0.2), part["training-free"].items(), strict=True):
            axis.hlines(one["logistic"], one["seconds"], right, color=str(shade), lw=1, label=title)
        axis.set(title=name, xscale="log", xlabel="training seconds", ylabel="validation accuracy, %")
    axes[0][-1].legend(fontsize=7, loc="lower right")
    for ending in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--steps", type=int, help="for all schedules, to try it out")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--work", type=Path, default=Path("time-to-accuracy-work"), help="unfinished runs")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "made_by": versions(),
        "splits": [TUNING_SEEDS[0], TUNING_SEEDS[-1]],
    }
    path = arguments.out / f"time-to-accuracy-{report['date']}.json"
    for name in arguments.graphs:
        report[name] = measure(name, arguments.every, arguments.steps, arguments.work)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n")
    draw(report, arguments.graphs, path)
    print(path)


if __name__ == "__main__":
    main()
