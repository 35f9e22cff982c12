"""Tables made from results files, and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgcl.errors import InputError
from sgcl.recipes import PAPER
from sgcl.store import read_results, replacing

PAPER_ACCURACY = {  # Sun et al., node classification: SGCL's row, chosen on the test set after up to 10,000 steps
    "wikics": "79.85 ± 0.53",
    "computers": "90.70 ± 0.30",
    "photo": "93.46 ± 0.30",
    "cs": "93.29 ± 0.17",
    "physics": "95.78 ± 0.11",
    "arxiv": "70.99 ± 0.09",
    "mag": "32.71 ± 0.09",
    "products": "75.96 ± 0.11",
}
TRAINING_FREE = ("raw features", "one hop", "two hops", "side by side")


def results_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of SGCL under the protocol ``validation``, beside the paper's figure and what costs no training.

    Two lines per graph and recipe, one per judge: the record's own probe, and the second one, which sees the last
    checkpoint only. Where a recipe was judged at checkpoints of different number, the fewest
    count; where a seed was run twice, the later record; where both precisions were run, bfloat16's, and
    :func:`precision_table` compares them. Mean and population deviation in per cent, over all splits of all seeds.
    """
    header = ["graph", "judge", "paper", "sgcl", *TRAINING_FREE, "steps", "precision", "seeds × splits", "command"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for (graph, _), found in _coarsest(_trained(records)).items():
        trained = list(_preferred(found).values())
        free = {record["method"]: record for record in records if record["graph"] == graph and record["seed"] is None}
        for own in (True, False):
            judged = [record if own else record["second_probe"] for record in trained]
            beside = {name: record if own else record["second_probe"] for name, record in free.items()}
            cells = [
                graph,
                judged[0]["probe"],
                PAPER_ACCURACY.get(graph, "-") if own else "-",
                _pooled([one["per_split"] for one in judged]),
                *(_pooled([beside[name]["per_split"]]) if name in beside else "-" for name in TRAINING_FREE),
                str(trained[0]["settings"]["recipe"]["steps"]),
                precision_of(trained[0]),
                f"{len(judged)} × {len(judged[0]['per_split'])}",
                f"`{trained[0]['command']}`",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


_Runs = dict[tuple[str, str, int], dict[str, dict[int, dict[str, Any]]]]


def _trained(records: Sequence[dict[str, Any]]) -> _Runs:
    """Short runs by linear probe and ``validation``, by graph, recipe and checkpoints, precision, seed."""
    groups: _Runs = {}
    for record in records:
        judge = record["probe"], record["protocol"]
        if record["method"] == "sgcl" and judge == ("linear probe", "validation") and not _is_full(record):
            values = {"minimise": False, **record["settings"]["recipe"]}  # older than the switch: it was off
            recipe = json.dumps(values, sort_keys=True)
            by_precision = groups.setdefault((record["graph"], recipe, record["checkpoints"]["every"]), {})
            by_precision.setdefault(precision_of(record), {})[record["seed"]] = record
    return groups


def _coarsest(groups: _Runs) -> dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]]:
    """Per graph and recipe, the runs that were judged at the fewest checkpoints."""
    ordered = sorted(groups.items(), key=lambda item: item[0][2])
    last = {(graph, recipe): found for (graph, recipe, _), found in ordered}
    return {key[:2]: last[key[:2]] for key in groups}


def _preferred(by_precision: dict[str, dict[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """Runs by seed of the precision that is shown: what most users get."""
    return by_precision.get("bf16", by_precision.get("fp32", {}))


def _is_full(record: dict[str, Any]) -> bool:
    """Whether a run of SGCL took the paper's own schedule."""
    paper = PAPER.get(record["graph"])
    return paper is not None and bool(record["settings"]["recipe"]["steps"] == paper.steps)


def paper_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of SGCL by the paper's own schedule, by either protocol, beside the paper's figure and ours."""
    header = ["graph", "judge", "checkpoint", "paper", "paper's schedule", "our schedule", "precision", "command"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    short = {key[0]: list(_preferred(found).values()) for key, found in _coarsest(_trained(records)).items()}
    full = [one for one in records if one["method"] == "sgcl" and one["probe"] == "linear probe" and _is_full(one)]
    for record in full:
        graph, honest = record["graph"], record["protocol"] == "validation"
        ours = short.get(graph, [])
        how = "by validation labels" if honest else "by **test** labels, as the paper's"
        judged = [(record, how, [one["per_split"] for one in ours] if honest else [])]
        if honest:
            judged.append((record["second_probe"], "last", [one["second_probe"]["per_split"] for one in ours]))
        for score, checkpoint, beside in judged:
            cells = [
                graph,
                score["probe"],
                checkpoint,
                "-" if honest else PAPER_ACCURACY[graph],
                _pooled([score["per_split"]]),
                _pooled(beside) if beside else "-",
                precision_of(record),
                f"`{record['command']}`",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def stopping_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what stopping duo without labels loses against the checkpoint that validation labels choose.

    A line per graph and probe; differences in points ± 2 standard errors over splits, over the seeds that both have.
    """
    header = ["graph", "judge", "without labels", "by validation labels", "lost", "seeds × splits", "commands"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    runs: dict[tuple[str, str], dict[bool, dict[int, dict[str, Any]]]] = {}
    for record in records:
        if record["method"] == "duo" and record["protocol"] == "validation":
            stops = bool(record["settings"].get("early_stop"))
            by_kind = runs.setdefault((record["graph"], record["probe"]), {True: {}, False: {}})
            by_kind[stops][record["seed"]] = record
    for (graph, probe), found in runs.items():
        seeds = sorted(set(found[True]) & set(found[False]))
        if not seeds:
            continue
        ours, best = ([found[stops][seed]["per_split"] for seed in seeds] for stops in (True, False))
        commands = (f"`{found[stops][seeds[0]]['command']}`" for stops in (True, False))
        count = f"{len(seeds)} × {len(ours[0])}"
        cells = [graph, probe, _pooled(ours), _pooled(best), _gain(best, ours), count, "<br>".join(commands)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def precision_of(record: dict[str, Any]) -> str:
    """What matrices were multiplied in; records made before there was a choice do not say, and were float32."""
    precision: str = record["settings"].get("precision", "fp32")
    return precision


def precision_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what bfloat16 products change: bf16 minus fp32, paired over seeds and splits, in points.

    Only runs that agree in everything else are paired. The interval is the mean ± 1.96 standard errors over pairs.
    """
    lines = ["| graph | bf16 - fp32 | 95 % interval | pairs | commands |", "|---|---|---|---|---|"]
    for (graph, *_), found in _trained(records).items():
        low, full = found.get("bf16", {}), found.get("fp32", {})
        pairs = [np.subtract(low[seed]["per_split"], full[seed]["per_split"]) for seed in low if seed in full]
        if pairs:
            differences = np.concatenate(pairs)
            mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
            interval = f"{mean - 1.96 * error:+.2f} to {mean + 1.96 * error:+.2f}"
            commands = "<br>".join(f"`{next(iter(runs.values()))['command']}`" for runs in (low, full))
            lines.append(f"| {graph} | {mean:+.2f} | {interval} | {len(differences)} | {commands} |")
    return "\n".join(lines)


def default_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of duo stopped without labels, and what it gains over sgcl and over what costs no training.

    A line per graph and judge. Gains are in points ± 2 standard errors, paired over splits, seeds averaged before.
    """
    header = [
        "graph", "judge", "duo", "more than sgcl", "more than side by side", "columns", "steps",
        "seeds × splits", "command",
    ]  # fmt: skip
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    beside = {key[0]: found for key, found in _coarsest(_trained(records)).items()}
    kept: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        if record["method"] == "duo" and record["settings"].get("early_stop") and record["probe"] == "linear probe":
            kept.setdefault(record["graph"], {})[record["seed"]] = record
    for graph, seeds in kept.items():
        found = beside.get(graph, {})
        paper = list(_preferred(found).values())
        free = [one for one in records if one["graph"] == graph and one["method"] == "side by side"]
        runs = list(seeds.values())
        for own in (True, False):
            ours, theirs, costless = (
                [one if own else one["second_probe"] for one in part] for part in (runs, paper, free)
            )
            duo = [one["per_split"] for one in ours]
            steps = sorted(int(next(iter(one["checkpoints"]["validation_accuracy"]))) for one in runs)
            cells = [
                graph,
                ours[0]["probe"],
                _pooled(duo),
                *(_gain(duo, [one["per_split"] for one in others]) for others in (theirs, costless)),
                str(runs[0]["settings"]["recipe"]["dim"]),
                "-".join(map(str, dict.fromkeys((steps[0], steps[-1])))),
                f"{len(duo)} × {len(duo[0])}",
                f"`{runs[0]['command']}`",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _gain(ours: list[list[float]], others: list[list[float]]) -> str:
    """Mean difference ± 2 standard errors over splits."""
    if not others:
        return "-"
    difference = np.mean(ours, axis=0) - np.mean(others, axis=0)
    error = difference.std(ddof=1) / len(difference) ** 0.5
    return f"{difference.mean():+.2f} ± {2 * error:.2f}"


def _pooled(per_split: list[list[float]]) -> str:
    """Mean and population deviation over all splits of all seeds."""
    values = np.concatenate([np.asarray(one) for one in per_split])
    return f"{values.mean():.2f} ± {values.std():.2f}"


def embed_table(text: str, name: str, table: str) -> str:
    """``text`` with ``table`` between the two marks of ``name``.

    Raises:
        InputError: the marks are not there.
    """
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    if not re.search(f"{begin}.*?{end}", text, re.DOTALL):
        raise InputError(f"report: the text has no lines {begin} and {end} to put the table between")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", text, flags=re.DOTALL)


def all_results(folder: Path) -> list[dict[str, Any]]:
    """The records of every results file in a folder.

    Raises:
        InputError: there are none.
    """
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in read_results(path)]
    if not records:
        raise InputError(f"{folder}: holds no records in files *.jsonl; make some with sgcl bench")
    return records


TABLES = {
    "default": default_table,
    "results": results_table,
    "precision": precision_table,
    "paper": paper_table,
    "stopping": stopping_table,
}


def with_tables(text: str, records: Sequence[dict[str, Any]]) -> str:
    """``text`` with the tables of ``records`` between the marks that it has.

    Raises:
        InputError: it has none.
    """
    names = [name for name in TABLES if f"<!-- {name}: begin -->" in text]
    if not names:
        raise InputError(f"report: no lines <!-- NAME: begin --> with NAME one of {', '.join(TABLES)}")
    for name in names:
        text = embed_table(text, name, TABLES[name](records))
    return text


def update(results: Path, *documents: Path) -> None:
    """Put the tables of a folder's results into documents: ``python -m sgcl.report results README.md``."""
    records = all_results(results)
    texts = {path: with_tables(path.read_text(encoding="utf-8"), records) for path in documents}
    for path, text in texts.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import sys

    update(*map(Path, sys.argv[1:]))
