"""Validation accuracy against training seconds: the paper's schedule by the plain step and by the engine, ours, duo.

The runs are those of ``sgcl bench`` and stay in its results files; what is there is not trained again. Accuracy is the
mean of the linear probe over the validation nodes of splits 1-20 (or the public ones), seed 0. Seconds are steps times
the median step, all kinds of step timed by turns in one run (``benchmarks/step.py``); judging is not counted. The
paper's schedule is trained once, by the engine, and drawn twice: in the seconds of the plain step, which differs in
rounding only, and in the engine's. What costs no training starts at the second when it is ready.

    pip install -c constraints.txt ".[viz]"
    python benchmarks/time_to_accuracy.py photo computers cs physics
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from step import alternate

from sgcl.bench import Bench
from sgcl.data import Source, open_source
from sgcl.evaluation import PROBES, PROTOCOLS, Validation, splits_of, training_free
from sgcl.pipeline import pick_device, pick_precision, probe_config, versions
from sgcl.recipes import recipe_for
from sgcl.screen import progress
from sgcl.store import replacing

CURVES = {  # name: what is trained, and the kind of step that its seconds are counted in
    "plain step, paper's schedule": ({"schedule": "paper", "every": 100, "protocol": tuple(PROTOCOLS)}, "plain"),
    "engine, paper's schedule": ({"schedule": "paper", "every": 100, "protocol": tuple(PROTOCOLS)}, "auto"),
    "engine, our schedule": ({"every": 20}, "auto"),
    "duo": ({"method": "duo", "every": 20}, "duo"),
}

Curve = dict[int, float]
"""Mean validation accuracy by step."""


def curve(name: str, results: Path, **options: Any) -> tuple[Curve, str]:
    """What a run reached, by step, and the command that made it."""
    bench = Bench(results / f"{name}.jsonl", seeds=1, **options)
    console = Console(stderr=True)
    records = [one for one in bench.run(name, lambda steps: progress(console, steps)) if one["seed"] == 0]
    found = records[0]["checkpoints"]["validation_accuracy"]
    return {int(step): accuracy for step, accuracy in found.items()}, records[0]["command"]


def free(source: Source) -> dict[str, dict[str, float]]:
    """What costs no training: seconds until it is ready, and its accuracy."""
    start = time.perf_counter()
    made = training_free(source.data)
    seconds = time.perf_counter() - start
    probe = PROBES["linear"](probe_config(recipe_for(source.name)))
    rule = Validation(source.data.y, splits_of(source.data), probe)
    return {name: {"seconds": seconds, "accuracy": rule.observe(0, rows)} for name, rows in made.items()}


def first_time(found: Curve, least: float, milliseconds: float) -> float | None:
    """Seconds until a curve first reaches an accuracy."""
    reached = [step for step, accuracy in sorted(found.items()) if accuracy >= least]
    return reached[0] * milliseconds / 1000 if reached else None


def measure(name: str, results: Path) -> dict[str, Any]:
    """Everything about one graph; nothing else may run meanwhile, for the seconds' sake."""
    source = open_source(name)
    made = {title: curve(name, results, **options) for title, (options, _) in CURVES.items()}
    found = {title: points for title, (points, _) in made.items()}
    milliseconds, _ = alternate(name, 20, kinds=("plain", "auto", "duo"))
    plain, *others = CURVES
    least = found[plain][max(found[plain])] - 0.2
    seconds = {title: first_time(found[title], least, milliseconds[kind]) for title, (_, kind) in CURVES.items()}
    before = seconds[plain]
    return {
        "commands": {title: command for title, (_, command) in made.items()},
        "milliseconds": milliseconds,
        "curves": found,
        "training-free": free(source),
        "target": {"accuracy": least, "what": "final accuracy of the paper's schedule minus 0.2 points"},
        "seconds_to_target": seconds,
        "times_sooner": {one: before / seconds[one] if before and seconds[one] else None for one in others},
    }


def draw(report: dict[str, Any], graphs: list[str], path: Path) -> None:
    """One panel per graph."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(graphs), figsize=(4.6 * len(graphs), 4), squeeze=False, layout="constrained")
    for axis, name in zip(axes[0], graphs, strict=True):
        part = report[name]
        for (title, (_, kind)), style in zip(CURVES.items(), ("-", "--", "-.", ":"), strict=True):
            points = sorted((int(step), accuracy) for step, accuracy in part["curves"][title].items())
            seconds = [step * part["milliseconds"][kind] / 1000 for step, _ in points]
            axis.plot(seconds, [accuracy for _, accuracy in points], style, label=title)
        right = axis.get_xlim()[1]
        for shade, (title, one) in zip((0.75, 0.6, 0.45, 0.2), part["training-free"].items(), strict=True):
            axis.hlines(one["accuracy"], one["seconds"], right, color=str(shade), lw=1, label=title)
        best = max(max(points.values()) for points in part["curves"].values())
        axis.set(title=name, xscale="log", xlabel="training seconds", ylabel="validation accuracy, %")
        axis.set_ylim(best - 8, best + 0.5)
    axes[0][-1].legend(fontsize=7, loc="lower right")
    for ending in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    path = arguments.out / f"time-to-accuracy-{datetime.date.today().isoformat()}.json"
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "made_by": versions(),
        "precision": pick_precision("auto", pick_device("auto")),
    }
    if path.exists():  # other graphs of the same day
        report = {**json.loads(path.read_text()), **report}
    for name in arguments.graphs:
        report[name] = measure(name, arguments.results)
        print(name, json.dumps({key: report[name][key] for key in ("seconds_to_target", "times_sooner")}, indent=1))
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(report, indent=1) + "\n")
    report = json.loads(path.read_text())
    draw(report, [name for name in ("photo", "computers", "cs", "physics") if name in report], path)
    print(path)


if __name__ == "__main__":
    main()
