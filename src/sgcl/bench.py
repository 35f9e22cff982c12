"""Methods on graphs with several seeds, judged by one or more protocols, into one results file to continue."""

from __future__ import annotations

import datetime
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from sgcl.data import DATASETS, Source, open_source
from sgcl.errors import InputError
from sgcl.evaluation import (
    CHECK_SEEDS,
    PROBES,
    PROTOCOLS,
    CheckpointRule,
    Score,
    linear_probe,
    logistic_regression,
    public_splits,
    random_splits,
    splits_of,
    training_free,
)
from sgcl.pipeline import Run, Settings, pick_device, pick_precision, probe_config, versions
from sgcl.recipes import recipe_for
from sgcl.store import read_results, replacing
from sgcl.training import Step

Progress = Callable[[int], AbstractContextManager[Callable[[Step], None]]]


@dataclass(frozen=True)
class Bench:
    """A benchmark: which method, how many seeds, how judged, and the file that holds the records.

    Attributes:
        out: results, one JSON object per line.
        method: name of the method.
        seeds: training runs per graph, with seeds 0, 1, ...
        schedule: see :func:`sgcl.recipes.recipe_for`.
        protocol: one or several, see :data:`sgcl.evaluation.PROTOCOLS`; a run is trained once for all.
        every: steps between judged checkpoints; by default only the first and the last are judged. Checkpoints of a run
            differ by less than a few hundred validation nodes can tell: a choice among many is a choice of noise.
        device: see :func:`sgcl.pipeline.pick_device`.
        precision: see :func:`sgcl.pipeline.pick_precision`.
        probe: the protocols' classifier, one or several of :data:`sgcl.evaluation.PROBES`.
        early_stop: stop by label-free signals, and judge only what training kept.
    """

    out: Path
    method: str = "sgcl"
    seeds: int = 3
    schedule: str = "short"
    protocol: str | tuple[str, ...] = ("validation",)
    every: int | None = None
    device: str = "auto"
    precision: str = "auto"
    probe: str | tuple[str, ...] = ("linear",)
    early_stop: bool = False

    def __post_init__(self) -> None:
        for what, given, known in (("protocol", self.protocol, PROTOCOLS), ("probe", self.probe, PROBES)):
            for name in _several(given) or ("none",):
                if name not in known:
                    raise InputError(f"{what}: must be one of {', '.join(known)}, got {name!r}")
        for what, count in (("seeds", self.seeds), ("every", self.every)):
            if count is not None and count < 1:
                raise InputError(f"bench: {what} must be at least 1, got {count}")

    def check(self, graph: str) -> None:
        """Refuse what cannot be run before anything is.

        Raises:
            InputError: the graph or a setting is unknown, or the results file is of another kind.
        """
        file = graph.endswith(".npz") and Path(graph).is_file()
        if graph not in DATASETS and graph.partition(":")[0] != "synthetic" and not file:
            known = ", ".join(DATASETS)
            raise InputError(f"bench: {graph!r} is not known; give some of {known}, synthetic:..., or an .npz file")
        self._settings(graph, 0)
        read_results(self.out)

    def run(self, graph: str, progress: Progress) -> Iterator[dict[str, Any]]:
        """Do what the file does not hold yet; yields every record of this benchmark on ``graph``, old ones too."""
        source = open_source(graph)
        if "y" not in source.data:
            raise InputError(f"bench: {graph!r} has no labels to judge by")
        command = self._command(graph)
        yield from self._training_free(source, command)
        for seed in range(self.seeds):
            settings = self._settings(source.name, seed)
            every = self.every or settings.recipe.steps
            # The key holds the settings, so that a changed recipe is run anew.
            keys = {
                (probe, protocol): self._key(
                    source, settings.method, settings.as_key(), protocol, every, *([probe] * (probe != "linear"))
                )
                for probe in _several(self.probe)
                for protocol in _several(self.protocol)
            }
            if missing := [judge for judge, key in keys.items() if self._find(key) is None]:
                made = self._train(source, settings, missing, every, progress)
                self._append(*({"key": keys[judge], **one, "command": command} for judge, one in made.items()))
            yield from filter(None, map(self._find, keys.values()))

    def _settings(self, graph: str, seed: int) -> Settings:
        precision = pick_precision(self.precision, pick_device(self.device))
        recipe = recipe_for(graph, self.schedule, self.method)
        return Settings(self.method, recipe, seed, precision, self.early_stop)

    def _train(
        self, source: Source, settings: Settings, judges: Sequence[tuple[str, str]], every: int, progress: Progress
    ) -> dict[tuple[str, str], dict[str, Any]]:
        """One run, with every checkpoint shown to the judges, and the last one to a second probe on other splits.

        A judge is a probe and a protocol; the probes that several protocols share are trained once.
        """
        data, steps = source.data, settings.recipe.steps
        rules: dict[str, list[CheckpointRule]] = {}
        for probe, protocol in judges:
            classifier = PROBES[probe](probe_config(settings.recipe))
            rules.setdefault(probe, []).append(PROTOCOLS[protocol](data.y, splits_of(data), classifier))
        run = Run(source, settings, device=self.device)
        validation: dict[str, dict[str, float]] = {probe: {} for probe in rules}

        def observe(step: int, embeddings: Tensor) -> None:
            for probe, asked in rules.items():
                found = asked[0].judge(step, embeddings)
                for rule in asked:
                    rule.take(found)
                validation[probe][str(step)] = 100 * sum(one.val_accuracy for one in found) / len(found)

        with progress(steps) as show:

            def judge(step: Step) -> None:
                show(step)
                if not self.early_stop and (step.step in (1, steps) or step.step % every == 0):
                    observe(step.step, run.embeddings())

            run(on_step=judge)
        last, final = run.embeddings(), run.history[-1]
        if self.early_stop:
            observe(final["step"], last)
        second = _second_probe(last, data)
        return {
            (probe, rule.name): {
                **self._described(source, settings.method, rule.score()),
                "seed": settings.seed,
                "settings": settings.as_dict(),
                "checkpoints": {"every": every, "validation_accuracy": validation[probe]},
                "second_probe": second,
                "stopped": run.stopped,
                "training_seconds": final["seconds"],
                "signals": {name: final[name] for name in ("loss", "effective_rank", "spread")},
            }
            for probe, asked in rules.items()
            for rule in asked
        }

    def _training_free(self, source: Source, command: str) -> Iterator[dict[str, Any]]:
        """What costs no training, on the same splits by the same probe, and by the second one."""
        made: dict[str, Tensor] = {}
        probe = probe_config(self._settings(source.name, 0).recipe)
        for name in ("raw features", "one hop", "two hops", "side by side"):
            key = self._key(source, name, asdict(probe))
            if (record := self._find(key)) is None:
                made = made or training_free(source.data)
                score = linear_probe(made[name], source.data.y, splits_of(source.data), probe)
                record = {
                    "key": key,
                    **self._described(source, name, score),
                    "seed": None,
                    "second_probe": _second_probe(made[name], source.data),
                    "command": command,
                }
                self._append(record)
            yield record

    def _described(self, source: Source, method: str, score: Score) -> dict[str, Any]:
        return {
            "graph": source.name,
            "method": method,
            "protocol": score.protocol,
            "probe": score.probe,
            "mean": score.mean,
            "std": score.std,
            "per_split": score.per_split,
            "chosen": score.chosen,
            "made_by": versions(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }

    def _command(self, graph: str) -> str:
        """The command line that makes the records of ``graph``, whoever asked for them."""
        words = ["sgcl", "bench", graph]
        for one in fields(self):
            given = _several(getattr(self, one.name))
            if given != _several(one.default):
                flag = f"--{one.name.replace('_', '-')}"
                words += [flag] if given[0] is True else [word for value in given for word in (flag, str(value))]
        return shlex.join(words)

    def _key(self, source: Source, *parts: Any) -> str:
        digest = hashlib.sha256(json.dumps([source.fingerprint, *parts]).encode())
        for name in ("y", "train_mask", "val_mask", "test_mask"):
            if name in source.data:
                digest.update(source.data[name].numpy().tobytes())
        return digest.hexdigest()[:16]

    def _find(self, key: str) -> dict[str, Any] | None:
        return next((record for record in read_results(self.out) if record.get("key") == key), None)

    def _append(self, *records: dict[str, Any]) -> None:
        lines = [json.dumps(line) for line in (*read_results(self.out), *records)]
        with replacing(self.out) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _several(value: Any) -> tuple[Any, ...]:
    """One value or several, as several without repetition."""
    return tuple(dict.fromkeys(value)) if isinstance(value, (tuple, list)) else (value,)


def _second_probe(embeddings: Tensor, data: Data) -> dict[str, Any]:
    """Another classifier, on other splits where a graph has none of its own."""
    public = public_splits(data)
    score = logistic_regression(embeddings, data.y, public or random_splits(data.y, CHECK_SEEDS))
    return {
        "probe": score.probe,
        "splits": "public" if public else f"random, seeds {CHECK_SEEDS[0]} to {CHECK_SEEDS[-1]}",
        "mean": score.mean,
        "std": score.std,
        "per_split": score.per_split,
    }
