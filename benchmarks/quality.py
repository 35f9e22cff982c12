"""What was tried beside the default, judged on the validation nodes of splits 101-120: the figures of docs/quality.md.

Four parts, each a table: what duo's embeddings are put together from; how duo is trained; what the choice among
candidate settings without labels (``--tune``) gives against the recipe, the best candidate by validation labels, and
for sgcl the data set's own recipe; and among how many checkpoints of sgcl to choose. Judged by the exact logistic
regression, checkpoints by the linear probe, seed 0. What the report holds is not made again, so an interrupted run goes
on with the same command.

    python benchmarks/quality.py digits photo computers cs physics
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgcl.data import Source, open_source
from sgcl.evaluation import PROBES, TUNING_SEEDS, ProbeConfig, Split, Validation, random_splits, training_free
from sgcl.evaluation.probe import check_probe_input
from sgcl.functional import diffused
from sgcl.graph import View
from sgcl.kernels import SparseMatrix
from sgcl.methods import Duo
from sgcl.pipeline import Run, Settings, pick_device, pick_precision, probe_config, versions
from sgcl.recipes import DUO, Recipe, recipe_for
from sgcl.store import replacing
from sgcl.training import Step
from sgcl.tuning import CANDIDATES, Budget, Trial, best, trials


@dataclass
class Pieces:
    """What duo's embeddings are put together from; ``share`` is what a node keeps of its own features."""

    own: Tensor
    learned: Tensor
    adjacency: SparseMatrix
    share: float

    @property
    def half(self) -> float:
        return min(self.share, 0.5)

    @property
    def weight(self) -> float:
        return self.half / (1 - self.half)

    def averaged(self, rows: Tensor, share: float) -> Tensor:
        return F.normalize(diffused(rows, self.adjacency, share), dim=1)

    def whitened(self, power: float = 0.5) -> Tensor:
        """Learned embeddings with deviations along principal axes raised to ``power``, unit rows."""
        centred = (self.learned - self.learned.mean(dim=0)).double()
        values, axes = torch.linalg.eigh(centred.T @ centred)
        values = values.clamp(min=1e-12 * float(values[-1]))
        return F.normalize(centred @ (axes * values.pow((power - 1) / 2)), dim=1).float()

    def join(self, learned: Tensor, own: Tensor, weight: float | None = None) -> Tensor:
        return torch.cat([learned, (self.weight if weight is None else weight) * own], dim=1)

    def duo(self, power: float = 0.5, weight: float = 1.0, share: float | None = None) -> Tensor:
        learned = self.averaged(self.whitened(power), self.half)
        return self.join(learned, self.averaged(self.own, self.share if share is None else share), weight * self.weight)


MADE: dict[str, Callable[[Pieces], Tensor]] = {
    "duo": lambda one: one.duo(),
    "learned alone": lambda one: one.averaged(one.whitened(), one.half),
    "own alone": lambda one: one.averaged(one.own, one.share),
    "learned, centred only": lambda one: one.duo(power=1.0),
    "learned, fully whitened": lambda one: one.duo(power=0.0),
    "own kept by a half at most": lambda one: one.duo(share=one.half),
    "own not averaged": lambda one: one.duo(share=1.0),
    "learned not averaged": lambda one: one.join(one.whitened(), one.averaged(one.own, one.share)),
    "own weighs 1.4 times as much": lambda one: one.duo(weight=1.4),
    "own weighs 0.7 times as much": lambda one: one.duo(weight=0.7),
    "own weighs 1": lambda one: one.duo(weight=1 / one.weight),
}

TRAINED: dict[str, dict[str, Any]] = {
    "minimised similarity": {"minimise": True},
    "one layer": {"hidden": ()},
    "three layers": {"hidden": (512, 512)},
    "1,024 hidden columns": {"hidden": (1024,)},
    "another seed": {},
}


def judged(source: Source, embeddings: Tensor) -> list[float]:
    """Validation accuracy per split, in per cent."""
    splits = random_splits(source.data.y, TUNING_SEEDS)
    rows, labels = check_probe_input(embeddings, source.data.y, splits)
    return [100 * one.val_accuracy for one in PROBES["logistic"](ProbeConfig())(rows, labels, splits)]


def run(source: Source, method: str, recipe: Recipe, seed: int = 0) -> Run:
    settings = Settings(method, recipe, seed, pick_precision("auto", pick_device("auto")), early_stop=method == "duo")
    return Run(source, settings)()


def pieces(source: Source, trained: Run) -> Pieces:
    assert isinstance(trained.method, Duo)
    view = View.of(source.data)
    read = trained.method.halves.read(view)
    share = float(trained.method.halves.share)
    return Pieces(read.x, trained.method.represented(view), read.adjacency, share)


def by_checkpoints(source: Source, every: int = 50) -> dict[str, float]:
    """Accuracy on one half of the validation nodes of the checkpoints that the other half chooses, per split."""
    recipe, labels = recipe_for(source.name), source.data.y
    splits = []
    for split in random_splits(labels, TUNING_SEEDS):
        order = split.val[torch.randperm(len(split.val), generator=torch.Generator().manual_seed(0))]
        one, other = order.chunk(2)
        splits += [Split(split.train, one, other), Split(split.train, other, one)]
    probe = PROBES["linear"](probe_config(recipe))
    rules = {title: Validation(labels, splits, probe) for title in (f"every {every} steps", "first and last", "last")}
    settings = Settings("sgcl", recipe, 0, pick_precision("auto", pick_device("auto")))
    training = Run(source, settings)

    def look(step: Step) -> None:
        first, last = step.step == 1, step.step == recipe.steps
        if first or last or step.step % every == 0:
            every_rule, ends, end = rules.values()
            found = every_rule.judge(step.step, training.embeddings())
            for rule, asked in ((every_rule, True), (ends, first or last), (end, last)):
                if asked:
                    rule.take(found)

    training(on_step=look)
    return {title: rule.score().mean for title, rule in rules.items()}


def measure(name: str, found: dict[str, Any]) -> Iterator[None]:
    """Fill ``found`` step by step, leaving out what it holds."""
    source = open_source(name)
    made = found.setdefault("made", {})
    if missing := [title for title in MADE if title not in made]:
        parts = pieces(source, run(source, "duo", DUO))
        for title in missing:
            made[title] = judged(source, MADE[title](parts))
            yield
    if "side by side" not in made:
        made["side by side"] = judged(source, training_free(source.data)["side by side"])
        yield
    trained = found.setdefault("trained", {})
    for title, changes in TRAINED.items():
        if title not in trained:
            seed = 1 if title == "another seed" else 0
            trained[title] = judged(source, run(source, "duo", replace(DUO, **changes), seed).embeddings())
            yield
    if "checkpoints" not in found:
        found["checkpoints"] = by_checkpoints(source)
        yield
    for method, recipe in (("duo", DUO), ("sgcl", Recipe())):
        part = found.setdefault(method, {"trials": [], "accuracy": {}})
        if not part["trials"]:
            settings = Settings(method, recipe, 0, pick_precision("auto", pick_device("auto")))
            part["trials"] = [asdict(one) for one in trials(source, settings, Budget(len(CANDIDATES[method])))]
            yield
        for trial in part["trials"]:
            title = str(Trial(**trial))
            if title not in part["accuracy"]:
                changed = replace(recipe, **trial["changes"])
                part["accuracy"][title] = judged(source, run(source, method, changed).embeddings())
                yield
        own = {} if method == "duo" else {"own recipe": False, "own recipe, similarity minimised": True}
        for title, minimise in own.items():
            if title not in part["accuracy"]:
                changed = replace(recipe_for(name), minimise=minimise)
                part["accuracy"][title] = judged(source, run(source, method, changed).embeddings())
                yield


def _against(values: list[float], others: list[float]) -> str:
    difference = np.subtract(values, others)
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return f"{np.mean(values):.2f} ({difference.mean():+.2f} ± {2 * error:.2f})"


def tables(report: dict[str, Any], graphs: list[str]) -> str:
    """Markdown: accuracy, and in brackets the difference from the table's first line ± 2 standard errors."""

    def lines(rows: dict[str, list[str]]) -> list[str]:
        head = ["| | " + " | ".join(graphs) + " |", "|---" * (len(graphs) + 1) + "|"]
        return [*head, *(f"| {title} | " + " | ".join(cells) + " |" for title, cells in rows.items()), ""]

    duo = {name: report[name]["made"]["duo"] for name in graphs}
    text: list[str] = []
    for part in ("made", "trained"):
        titles = report[graphs[0]][part]
        text += lines({title: [_against(report[one][part][title], duo[one]) for one in graphs] for title in titles})
    for method in ("duo", "sgcl"):
        parts = {name: report[name][method] for name in graphs}
        recipe = {name: part["accuracy"]["the recipe"] for name, part in parts.items()}
        rows: dict[str, list[str]] = {f"{method}, the recipe": []}
        for budget in (3, len(CANDIDATES[method])):
            rows[f"--tune {budget}"] = []
        rows["the best candidate by validation labels"] = []
        for name, part in parts.items():
            rows[f"{method}, the recipe"].append(f"{np.mean(recipe[name]):.2f}")
            for budget in (3, len(CANDIDATES[method])):
                chosen = best([Trial(**one) for one in part["trials"][:budget]])
                rows[f"--tune {budget}"].append(f"{_against(part['accuracy'][str(chosen)], recipe[name])}: {chosen}")
            tried = {title: values for title, values in part["accuracy"].items() if "own recipe" not in title}
            top = max(tried, key=lambda title: float(np.mean(tried[title])))
            rows["the best candidate by validation labels"].append(f"{_against(tried[top], recipe[name])}: {top}")
        for title in next(iter(parts.values()))["accuracy"]:
            if "own recipe" in title:
                rows[title] = [_against(part["accuracy"][title], recipe[name]) for name, part in parts.items()]
        text += lines(rows)
    kinds = report[graphs[0]]["checkpoints"]
    text += lines({title: [f"{report[one]['checkpoints'][title]:.2f}" for one in graphs] for title in kinds})
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument("--report", type=Path, default=Path(__file__).with_name("quality.json"))
    arguments = parser.parse_args()
    report: dict[str, Any] = json.loads(arguments.report.read_text()) if arguments.report.exists() else {}
    report["date"], report["made_by"] = datetime.date.today().isoformat(), versions()
    report["command"] = "python " + " ".join(sys.argv)
    for name in arguments.graphs:
        for _ in measure(name, report.setdefault(name, {})):
            with replacing(arguments.report) as temporary:
                temporary.write_text(json.dumps(report, indent=1) + "\n")
            print(name, {part: len(found) for part, found in report[name].items()}, file=sys.stderr, flush=True)
    print(tables(report, arguments.graphs))


if __name__ == "__main__":
    main()
