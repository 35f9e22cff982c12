"""The command line: parses, calls, prints. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sgcl import screen
from sgcl.errors import InputError, TrainingStopped

if TYPE_CHECKING:
    from rich.console import Console

    from sgcl.data import Source
    from sgcl.evaluation import ProbeConfig, Score, Split
    from sgcl.pipeline import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``sgcl``; returns the exit status: 2 for bad input, 1 where training cannot go on, 130 when interrupted."""
    try:
        status = app.main(args=arguments, prog_name="sgcl", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sgcl"
        click.echo(f"error: {error.format_message().rstrip('.')} (see {command} --help)", err=True)
        return 2
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except TrainingStopped as error:
        click.echo(f"stopped: {error}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of a command's options."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML ({error})") from None
    known = {one.name for one in context.command.params if one.name not in ("config", "help")}
    values = {name.replace("-", "_"): value for name, value in values.items()}
    if unknown := sorted(set(values) - known):
        raise InputError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(filter(None, known)))}")
    context.default_map = values


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every command has."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Print errors only."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object for machines."),
        click.option(
            "--config", type=click.Path(path_type=Path), is_eager=True, expose_value=False, callback=_read_config,
            help="TOML file with values for these options, such as dim = 128.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog="Start with:  sgcl embed digits")
@click.version_option(package_name="sgcl", message="sgcl %(version)s")
def app() -> None:
    """Node embeddings without labels, for any graph."""


@app.command(
    epilog="""\b
Examples:
  sgcl embed digits                            the built-in graph, in seconds
  sgcl embed photo --steps 200 --out p.parquet
  sgcl embed my_graph.npz --dim 128            arrays edge_index [2, E], x [N, F]
  sgcl embed synthetic:nodes=100000,features=64
  sgcl embed cs --model cs-model --resume      go on where it was interrupted
  sgcl embed cs --method sgcl                  the paper's embeddings
  sgcl embed my_graph.npz --tune 6             try six settings first, without labels
"""
)
@click.argument("graph")
@click.option("--method", default="duo", show_default=True, help="duo, or sgcl for the paper's; see sgcl methods.")
@click.option("--dim", type=int, help="Columns of the embeddings.  [default: 512, with sgcl the recipe's]")
@click.option(
    "--steps",
    default="auto",
    show_default=True,
    help="Number of training steps; auto ends early when nearest neighbours no longer change.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same result.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, ...")
@click.option(
    "--precision", default="auto", show_default=True, help="Of matrix products: fp32, bf16, or auto: what is fast here."
)
@click.option("--out", type=click.Path(path_type=Path), help="Embeddings, .parquet or .npy.  [default: GRAPH.parquet]")
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="Folder for model and checkpoints.  [default: GRAPH-model]",
)
@click.option("--resume", is_flag=True, help="Go on with the unfinished run in the model folder, if there is one.")
@click.option("--restart", is_flag=True, help="Throw the unfinished run in the model folder away.")
@click.option("--edge-drop", type=float, help="Share of edges dropped per view.  [default: the recipe's]")
@click.option("--feature-drop", type=float, help="Share of feature columns dropped per view.  [default: the recipe's]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: the recipe's]")
@click.option("--weight-decay", type=float, help="Decay of AdamW.  [default: the recipe's]")
@click.option("--minimise", is_flag=True, help="Push predictions and targets apart instead of together.")
@click.option(
    "--tune", type=int, default=0, show_default=True,
    help="Choose drop rates and learning rate by this many runs of 100 steps, compared without labels.",
)  # fmt: skip
@click.option("--schedule", default="short", show_default=True, help="short, or paper for the published 10,000 steps.")
@click.option("--directed", is_flag=True, help="Keep the directions of an own graph's edges.")
@click.option("--checkpoint-every", type=int, default=100, show_default=True, help="Steps between checkpoints.")
@click.option("--evaluate/--no-evaluate", default=True, help="Probe the result where labels are known.")
@_common
def embed(
    graph: str,
    out: Path | None,
    model: Path | None,
    resume: bool,
    restart: bool,
    directed: bool,
    checkpoint_every: int,
    evaluate: bool,
    as_json: bool,
    quiet: bool,
    steps: str,
    **settings: Any,
) -> int:
    """Learn embeddings of GRAPH without labels and write them to a file.

    GRAPH is the name of a data set (see sgcl datasets), synthetic:..., or an .npz file of plain arrays. Labels, where
    known, are used afterwards to say how good the embeddings are, beside what costs no training.
    """
    console, progress = screen.consoles(quiet or as_json)
    from sgcl.data import open_source
    from sgcl.embedder import NodeEmbedder
    from sgcl.evaluation import splits_of, training_free
    from sgcl.pipeline import CHECKPOINT, probe_config
    from sgcl.store import Embeddings, check_embeddings_path, write_embeddings
    from sgcl.tuning import STEPS, best

    embedder = NodeEmbedder(steps=_steps(steps), directed=directed, **settings)
    embedder.settings_for(graph)
    source = open_source(graph, directed=directed)
    stem = source.name.partition(":")[0]
    out, model = out or Path(f"{stem}.parquet"), model or Path(f"{stem}-model")
    check_embeddings_path(out)
    if model.exists() and not model.is_dir():
        raise InputError(f"--model: {str(model)!r} is a file; give a folder")
    if restart:
        (model / CHECKPOINT).unlink(missing_ok=True)
    progress.print(f"[bold]{source}[/]")
    _warn_of_memory(source, embedder.settings_for(source.name), embedder.device)

    if embedder.tune:
        progress.print(f"trying up to {embedder.tune} settings, {STEPS} steps each")
    with (
        screen.progress(progress, embedder.settings_for(source.name).recipe.steps) as on_step,
        _interruption() as interrupted,
    ):
        embedder.fit(
            source,
            folder=model,
            resume=resume,
            on_step=on_step,
            on_trial=lambda trial: screen.show_trial(progress, trial),
            should_stop=interrupted,
            checkpoint_every=checkpoint_every,
        )
    if not embedder.run_.finished:
        click.echo(f"interrupted; saved in {model}, go on with the same command and --resume", err=True)
        return 130
    vectors = embedder.transform_source(source)
    labels = {"label": source.data.y.numpy()} if "y" in source.data else {}
    note = {"graph": source.name, "settings": embedder.settings_.as_dict()}
    write_embeddings(out, Embeddings(vectors, source.node_ids, labels, note))
    embedder.save(model)
    embedder.run_.finish()

    seconds = embedder.history_[-1]["seconds"]
    console.print(f"embeddings  {out}  ({vectors.shape[0]:,} x {vectors.shape[1]}, trained in {seconds:.1f} s)")
    console.print(f"model       {model}")
    if embedder.tune:
        console.print(f"tuned       {best(embedder.trials_)}, of {len(embedder.trials_)} settings tried")
    if embedder.run_.stopped:
        last = embedder.history_[-1]["step"]
        console.print(f"stopped     after step {last} of {embedder.settings_.recipe.steps}: {embedder.run_.stopped}")
    report: dict[str, Any] = {
        "graph": source.name, "embeddings": str(out), "model": str(model), "shape": list(vectors.shape),
        "settings": embedder.settings_.as_dict(), "seconds": seconds, "stopped": embedder.run_.stopped,
        "signals": {name: embedder.history_[-1][name] for name in ("loss", "effective_rank", "spread")},
    }  # fmt: skip
    if embedder.tune:
        report["tuning"] = [asdict(trial) for trial in embedder.trials_]
    if evaluate and "y" in source.data:
        try:
            table = {embedder.method: vectors, **training_free(source.data)}
            config = probe_config(embedder.settings_.recipe)
            report["accuracy"] = _judge_and_show(console, table, source.data.y, splits_of(source.data), config)
        except InputError as error:  # the embeddings are there all the same
            click.echo(f"not judged: {error}", err=True)
    if as_json:
        click.echo(json.dumps(report))
    return 0


@app.command(
    epilog="""\b
Examples:
  sgcl estimate physics
  sgcl estimate synthetic:nodes=1000000,features=128 --dim 128
  sgcl estimate my_graph.npz --precision fp32 --json
"""
)
@click.argument("graph")
@click.option("--method", default="duo", show_default=True, help="See sgcl methods.")
@click.option("--dim", type=int, help="Columns of the embeddings.  [default: the recipe's]")
@click.option("--steps", default="auto", show_default=True, help="Number of training steps.")
@click.option("--schedule", default="short", show_default=True, help="short or paper.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, ...")
@click.option("--precision", default="auto", show_default=True, help="fp32, bf16 or auto.")
@click.option("--directed", is_flag=True, help="Keep the directions of an own graph's edges.")
@_common
def estimate(graph: str, steps: str, directed: bool, as_json: bool, quiet: bool, **settings: Any) -> int:
    """Say what embedding GRAPH takes, before doing it: memory, time per step, time in all.

    The graph is read and counted; a random graph of the same shape is trained on for two seconds at most.
    """
    console, _ = screen.consoles(quiet or as_json)
    from sgcl.data import open_source
    from sgcl.embedder import NodeEmbedder
    from sgcl.estimate import Shape
    from sgcl.estimate import estimate as estimated
    from sgcl.pipeline import pick_device

    embedder = NodeEmbedder(steps=_steps(steps), directed=directed, **settings)
    source = open_source(graph, directed=directed)
    chosen = embedder.settings_for(source.name)
    shape = Shape.of(source)
    found = estimated(shape, chosen, pick_device(embedder.device))
    density = "dense" if shape.stored is None else f"sparse, {shape.stored / shape.nodes / shape.features:.2%} stored"
    available = "unknown" if found.available is None else f"{found.available / 2**30:.1f} GiB free"
    console.print(str(source))
    rows = [
        ("memory", f"{found.memory / 2**20:,.0f} MiB", available if found.fits else f"does not fit: {available}"),
        ("a step", f"{1000 * found.step_seconds:,.0f} ms", f"batch: the whole graph; features {density}"),
        ("the run", f"{found.run_seconds:,.0f} s", f"{chosen.recipe.steps} steps{' at the most' * chosen.early_stop}"),
        ("precision", chosen.precision, _why(embedder.precision, chosen.precision)),
    ]
    screen.table(console, ("what", "estimate", "why"), rows, numbers=(1,))
    if as_json:
        report = {"graph": source.name, "settings": chosen.as_dict(), **vars(found), "fits": found.fits}
        click.echo(json.dumps(report))
    return 0


def _why(asked: str, precision: str) -> str:
    if asked != "auto":
        return "as asked"
    if precision == "bf16":
        return "this device multiplies bfloat16 in hardware; weights and loss stay float32"
    return "this device has no fast bfloat16 products"


@app.command(
    epilog="""\b
Examples:
  sgcl evaluate digits.parquet                       labels in its column 'label'
  sgcl evaluate vectors.parquet --label category
  sgcl evaluate photo.npy --graph photo              labels and splits of a data set
  sgcl evaluate digits.parquet --probe logistic --json
"""
)
@click.argument("embeddings", type=click.Path(path_type=Path))
@click.option("--label", default="label", show_default=True, help="Column of the file that holds the classes.")
@click.option("--graph", help="Take labels and splits of this graph, and show what costs no training.")
@click.option("--probe", default="both", show_default=True, help="linear, logistic (an exact solver), or both.")
@click.option("--splits", type=int, default=20, show_default=True, help="Number of random divisions.")
@click.option("--first-seed", type=int, default=1, show_default=True, help="Seed of the first division.")
@_common
def evaluate(
    embeddings: Path,
    label: str,
    graph: str | None,
    probe: str,
    splits: int,
    first_seed: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say how good EMBEDDINGS (.parquet or .npy) are, by linear classifiers on frozen rows.

    Every division learns on 10 % of the labels, chooses its decay on 10 %, and is judged on the other 80 %, once
    (graphs with public splits use those). Accuracy in per cent, mean and deviation over divisions.
    """
    console, _ = screen.consoles(quiet or as_json)
    from sgcl.data import open_source
    from sgcl.evaluation import PROBES, ProbeConfig, diagnose, public_splits, random_splits, training_free
    from sgcl.store import read_embeddings

    if probe not in (*PROBES, "both"):
        raise InputError(f"--probe: must be one of {', '.join(PROBES)}, both, got {probe!r}")
    if splits < 1 or first_seed < 0:
        raise InputError(f"--splits must be at least 1 and --first-seed at least 0, got {splits} and {first_seed}")
    seeds = range(first_seed, first_seed + splits)
    found = read_embeddings(embeddings, () if graph else (label,))
    table: dict[str, Any] = {"embeddings": found.vectors}
    if graph:
        data = open_source(graph).data
        if "y" not in data:
            raise InputError(f"--graph: {graph!r} has no labels; name a column with --label instead")
        if data.num_nodes != len(found.vectors):
            raise InputError(f"{embeddings}: has {len(found.vectors)} rows, {graph!r} has {data.num_nodes} nodes")
        labels, divisions = data.y, public_splits(data) or random_splits(data.y, seeds)
        table |= training_free(data)
    else:
        labels = _classes(embeddings, label, found.columns[label])
        divisions = random_splits(labels, seeds)
    accuracy = _judge_and_show(console, table, labels, divisions, ProbeConfig(), None if probe == "both" else [probe])
    signals = diagnose(_tensor(found.vectors))
    console.print(
        f"effective rank {signals['effective_rank']:.1f} of {found.vectors.shape[1]}, spread {signals['spread']:.2f}"
    )
    if as_json:
        click.echo(json.dumps({"file": str(embeddings), "signals": signals, "accuracy": accuracy}))
    return 0


@app.command(
    epilog="""\b
Examples:
  sgcl bench digits
  sgcl bench photo computers --seeds 3 --out results/amazon.jsonl
  sgcl bench photo --method duo --early-stop           what sgcl embed photo gives
  sgcl bench photo --schedule paper --protocol validation --protocol paper_best_test
"""
)
@click.argument("graphs", nargs=-1, required=True)
@click.option("--method", default="sgcl", show_default=True, help="See sgcl methods.")
@click.option("--seeds", type=int, default=3, show_default=True, help="Number of training runs, seeds 0, 1, ...")
@click.option("--schedule", default="short", show_default=True, help="short or paper.")
@click.option(
    "--protocol", multiple=True, default=("validation",), show_default=True,
    help="validation, or paper_best_test: the official code's, which looks at the test set; may be given twice.",
)  # fmt: skip
@click.option("--every", type=int, help="Steps between judged checkpoints.  [default: first and last only]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("bench.jsonl"),
    show_default=True,
    help="Results file.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, ...")
@click.option("--precision", default="auto", show_default=True, help="fp32, bf16 or auto.")
@click.option(
    "--probe", multiple=True, default=("linear",), show_default=True,
    help="linear, or logistic for an exact solver; may be given twice.",
)  # fmt: skip
@click.option("--early-stop", is_flag=True, help="Stop by label-free signals; judge only what training kept.")
@_common
def bench(graphs: tuple[str, ...], out: Path, as_json: bool, quiet: bool, **options: Any) -> int:
    """Train on GRAPHS with several seeds and judge the checkpoints; one record per run, added to a results file.

    Runs that the file already holds are not repeated, so an interrupted benchmark goes on where it stopped. What costs
    no training is judged in the same run.
    """
    console, progress = screen.consoles(quiet or as_json)
    from sgcl.bench import Bench

    plan = Bench(out=out, **options)
    for graph in graphs:
        plan.check(graph)
    for graph in graphs:
        for record in plan.run(graph, lambda steps: screen.progress(progress, steps)):
            name = record["method"] + (f", seed {record['seed']}" if record["seed"] is not None else "")
            judge = f"{record['probe']}, {record['protocol']}"
            console.print(f"{graph}  {name}: {record['mean']:.2f} ± {record['std']:.2f} % ({judge})")
            if as_json:
                click.echo(json.dumps(record))
    console.print(f"results  {out}")
    return 0


@app.command(epilog="\b\nExample:\n  sgcl datasets --json")
@_common
def datasets(as_json: bool, quiet: bool) -> int:
    """List the graphs that are known by name."""
    from sgcl.data import DATASETS

    if as_json:
        plain = ("title", "nodes", "pairs", "features", "classes", "splits", "citation")
        click.echo(json.dumps({name: {key: getattr(one, key) for key in plain} for name, one in DATASETS.items()}))
        return 0
    header = ("name", "nodes", "ordered pairs", "features", "classes", "splits", "what")
    rows = [
        (name, *(f"{count:,}" for count in (one.nodes, one.pairs, one.features, one.classes)), one.splits, one.title)
        for name, one in DATASETS.items()
    ]
    console, _ = screen.consoles(quiet)
    screen.table(console, header, rows, numbers=(1, 2, 3, 4))
    console.print(
        "Also synthetic:nodes=100000,edges=1000000,features=128,... of any size. Files are looked for in the folder\n"
        "that SGCL_DATA names, then downloaded to the cache; digits needs none. Citations: sgcl datasets --json"
    )
    return 0


@app.command(epilog="\b\nExample:\n  sgcl methods")
@_common
def methods(as_json: bool, quiet: bool) -> int:
    """List the methods."""
    from sgcl.methods import METHODS

    described = {name: (one.__doc__ or "").splitlines()[0] for name, one in METHODS.items()}
    if as_json:
        click.echo(json.dumps(described))
        return 0
    screen.table(screen.consoles(quiet)[0], ("name", "what"), list(described.items()))
    return 0


def _warn_of_memory(source: Source, settings: Settings, device: str) -> None:
    """Say before training that memory will not suffice."""
    from sgcl.estimate import Shape, available_memory, peak_memory
    from sgcl.log import log
    from sgcl.pipeline import pick_device

    needed, free = peak_memory(Shape.of(source), settings), available_memory(pick_device(device))
    if free is not None and needed > free:
        log.warning(
            "training needs about %.1f GiB, but %.1f GiB are free: expect swapping or an abort; "
            "a smaller --dim needs less (see sgcl estimate)", needed / 2**30, free / 2**30,
        )  # fmt: skip


def _steps(text: str | int) -> Any:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--steps: must be a whole number or auto, got {text!r}") from None


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a wish to stop after the step; a second one ends at once."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _judge_and_show(
    console: Console,
    table: dict[str, Any],
    labels: Any,
    splits: Sequence[Split],
    config: ProbeConfig,
    probes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Test accuracies of embeddings by name and probe, all probes unless some are named; shown, and as plain values."""
    from sgcl.evaluation import PROBES
    from sgcl.evaluation.probe import judge

    scores: dict[str, dict[str, Score]] = {}
    with console.status("judging") as status:
        for name, vectors in table.items():
            status.update(f"judging {name}")
            chosen = {probe: PROBES[probe](config) for probe in probes or PROBES}
            scores[name] = {probe: judge(built, vectors, labels, splits) for probe, built in chosen.items()}
    screen.show_scores(console, scores, len(splits))
    return {name: {probe: _plain(score) for probe, score in found.items()} for name, found in scores.items()}


def _plain(score: Score) -> dict[str, Any]:
    return {"mean": score.mean, "std": score.std, "per_split": score.per_split, "protocol": score.protocol}


def _classes(path: Path, column: str, values: Any) -> Any:
    """Classes from 0 of a column of any kind; missing values become -1, unlabelled."""
    import numpy as np

    missing = np.array([value is None or value != value or value == "" for value in values.tolist()])
    if values.dtype.kind == "i" and not missing.any():
        missing = values < 0
    known, codes = np.unique(values[~missing].astype(str), return_inverse=True)
    if len(known) < 2:
        raise InputError(f"{path}: column {column!r} has {len(known)} different classes; a probe needs at least 2")
    if len(known) > 1000 or 2 * len(known) > len(codes):
        raise InputError(
            f"{path}: column {column!r} has {len(known)} different values in {len(codes)} rows; name a class column"
        )
    classes = np.full(len(values), -1, dtype=np.int64)
    classes[~missing] = codes
    return _tensor(classes)


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


if __name__ == "__main__":
    sys.exit(main())
