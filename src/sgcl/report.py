"""Tables made from results files, and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgcl.errors import InputError
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
    checkpoint only. Where a seed was run twice, the later record counts; where both precisions were run, bfloat16's,
    and :func:`precision_table` compares them. Mean and population deviation in per cent, over all splits of all seeds.
    """
    header = ["graph", "judge", "paper", "sgcl", *TRAINING_FREE, "steps", "precision", "seeds × splits", "command"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for (graph, _), found in _trained(records).items():
        trained = list(found.get("bf16", found.get("fp32", {})).values())
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


def _trained(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]]:
    """Runs under the protocol ``validation``: per graph and recipe, then per precision, then per seed."""
    groups: dict[tuple[str, str], dict[str, dict[int, dict[str, Any]]]] = {}
    for record in records:
        if record["method"] == "sgcl" and record["protocol"] == "validation":
            made = json.dumps([record["settings"]["recipe"], record["checkpoints"]["every"]], sort_keys=True)
            by_precision = groups.setdefault((record["graph"], made), {})
            by_precision.setdefault(precision_of(record), {})[record["seed"]] = record
    return groups


def precision_of(record: dict[str, Any]) -> str:
    """What matrices were multiplied in; records made before there was a choice do not say, and were float32."""
    precision: str = record["settings"].get("precision", "fp32")
    return precision


def precision_table(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of what bfloat16 products change: bf16 minus fp32, paired over seeds and splits, in points.

    Only runs that agree in everything else are paired. The interval is the mean ± 1.96 standard errors over pairs.
    """
    lines = ["| graph | bf16 - fp32 | 95 % interval | pairs |", "|---|---|---|---|"]
    for (graph, _), found in _trained(records).items():
        low, full = found.get("bf16", {}), found.get("fp32", {})
        pairs = [np.subtract(low[seed]["per_split"], full[seed]["per_split"]) for seed in low if seed in full]
        if pairs:
            differences = np.concatenate(pairs)
            mean, error = differences.mean(), differences.std(ddof=1) / len(differences) ** 0.5
            interval = f"{mean - 1.96 * error:+.2f} to {mean + 1.96 * error:+.2f}"
            lines.append(f"| {graph} | {mean:+.2f} | {interval} | {len(differences)} |")
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
    beside = {key[0]: found for key, found in _trained(records).items()}
    kept: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        if record["method"] == "duo" and record["settings"].get("early_stop") and record["probe"] == "linear probe":
            kept.setdefault(record["graph"], {})[record["seed"]] = record
    for graph, seeds in kept.items():
        found = beside.get(graph, {})
        paper = list(found.get("bf16", found.get("fp32", {})).values())
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


def embed_table(readme: str, name: str, table: str) -> str:
    """``readme`` with ``table`` between the two marks of ``name``.

    Raises:
        InputError: the marks are not there.
    """
    begin, end = (f"<!-- {name}: {which} -->" for which in ("begin", "end"))
    if not re.search(f"{begin}.*?{end}", readme, re.DOTALL):
        raise InputError(f"README: has no lines {begin} and {end} to put the table between")
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", readme, flags=re.DOTALL)


def all_results(folder: Path) -> list[dict[str, Any]]:
    """The records of every results file in a folder.

    Raises:
        InputError: there are none.
    """
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in read_results(path)]
    if not records:
        raise InputError(f"{folder}: holds no records in files *.jsonl; make some with sgcl bench")
    return records


def with_tables(readme: str, records: Sequence[dict[str, Any]]) -> str:
    """``readme`` with the tables of ``records`` between their marks."""
    tables = {"default": default_table, "results": results_table, "precision": precision_table}
    for name, table in tables.items():
        readme = embed_table(readme, name, table(records))
    return readme


def update_readme(results: Path, readme: Path) -> None:
    """Put the tables of a folder's results into a README: ``python -m sgcl.report results README.md``."""
    text = with_tables(readme.read_text(encoding="utf-8"), all_results(results))
    with replacing(readme) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import sys

    update_readme(Path(sys.argv[1]), Path(sys.argv[2]))
