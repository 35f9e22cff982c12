"""Methods on graphs with several seeds, judged by one protocol, into one results file that can be continued."""

from __future__ import annotations

import datetime
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
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
        protocol: see :data:`sgcl.evaluation.PROTOCOLS`.
        every: steps between judged checkpoints; the first and the last are judged as well.
        device: see :func:`sgcl.pipeline.pick_device`.
        precision: see :func:`sgcl.pipeline.pick_precision`.
        probe: the protocol's classifier, see :data:`sgcl.evaluation.PROBES`.
        early_stop: stop by label-free signals, and judge only what training kept.
    """

    out: Path
    method: str = "sgcl"
    seeds: int = 3
    schedule: str = "short"
    protocol: str = "validation"
    every: int = 20
    device: str = "auto"
    precision: str = "auto"
    probe: str = "linear"
    early_stop: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise InputError(f"protocol: must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self.probe not in PROBES:
            raise InputError(f"probe: must be one of {', '.join(PROBES)}, got {self.probe!r}")
        if self.seeds < 1 or self.every < 1:
            raise InputError(f"bench: seeds and every must be at least 1, got {self.seeds} and {self.every}")

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
            # The key holds the settings, so that a changed recipe is run anew.
            judged = [] if self.probe == "linear" else [self.probe]
            key = self._key(source, settings.method, settings.as_key(), self.protocol, self.every, *judged)
            if (record := self._find(key)) is None:
                record = self._append({"key": key, **self._train(source, settings, progress), "command": command})
            yield record

    def _settings(self, graph: str, seed: int) -> Settings:
        precision = pick_precision(self.precision, pick_device(self.device))
        recipe = recipe_for(graph, self.schedule, self.method)
        return Settings(self.method, recipe, seed, precision, self.early_stop)

    def _train(self, source: Source, settings: Settings, progress: Progress) -> dict[str, Any]:
        """One run, with every checkpoint shown to the protocol, and the last one to a second probe on other splits."""
        data, steps = source.data, settings.recipe.steps
        rule = PROTOCOLS[self.protocol](data.y, splits_of(data), PROBES[self.probe](probe_config(settings.recipe)))
        run = Run(source, settings, device=self.device)
        validation: dict[str, float] = {}

        with progress(steps) as show:

            def judge(step: Step) -> None:
                show(step)
                if not self.early_stop and (step.step in (1, steps) or step.step % self.every == 0):
                    validation[str(step.step)] = rule.observe(step.step, run.embeddings())

            run(on_step=judge)
        last, final = run.embeddings(), run.history[-1]
        if self.early_stop:
            validation[str(final["step"])] = rule.observe(final["step"], last)
        return {
            **self._described(source, settings.method, rule.score()),
            "seed": settings.seed,
            "settings": settings.as_dict(),
            "checkpoints": {"every": self.every, "validation_accuracy": validation},
            "second_probe": _second_probe(last, data),
            "stopped": run.stopped,
            "training_seconds": final["seconds"],
            "signals": {name: final[name] for name in ("loss", "effective_rank", "spread")},
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
                record = self._append(
                    {
                        "key": key,
                        **self._described(source, name, score),
                        "seed": None,
                        "second_probe": _second_probe(made[name], source.data),
                        "command": command,
                    }
                )
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
            if (value := getattr(self, one.name)) != one.default:
                flag = f"--{one.name.replace('_', '-')}"
                words += [flag] if value is True else [flag, str(value)]
        return shlex.join(words)

    def _key(self, source: Source, *parts: Any) -> str:
        digest = hashlib.sha256(json.dumps([source.fingerprint, *parts]).encode())
        for name in ("y", "train_mask", "val_mask", "test_mask"):
            if name in source.data:
                digest.update(source.data[name].numpy().tobytes())
        return digest.hexdigest()[:16]

    def _find(self, key: str) -> dict[str, Any] | None:
        return next((record for record in read_results(self.out) if record.get("key") == key), None)

    def _append(self, record: dict[str, Any]) -> dict[str, Any]:
        """Write the record; returns it as it will be read."""
        lines = [json.dumps(line) for line in (*read_results(self.out), record)]
        with replacing(self.out) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        written: dict[str, Any] = json.loads(lines[-1])
        return written


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
