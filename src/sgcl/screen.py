"""What the command line shows: consoles, the progress bar, tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from sgcl.evaluation import Score
    from sgcl.training import Step
    from sgcl.tuning import Trial


def consoles(quiet: bool) -> tuple[Console, Console]:
    """Where results go (standard output), and where progress and the package's messages go (standard error)."""
    results, messages = (
        Console(stderr=stderr, quiet=quiet, highlight=False, soft_wrap=True) for stderr in (False, True)
    )
    for one in (results, messages):
        if not one.is_terminal:
            one.width = 120  # rich would assume 80 and cut tables
    package = logging.getLogger("sgcl")
    package.handlers = [RichHandler(console=messages, show_time=False, show_path=False, show_level=False)]
    package.setLevel(logging.INFO)
    return results, messages


@contextmanager
def progress(console: Console, steps: int) -> Iterator[Callable[[Step], None]]:
    """A bar with loss, effective rank and time left; plain lines, ten in all, where there is no terminal."""
    bar = Progress(
        TextColumn("training"), BarColumn(), MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  effective rank {task.fields[rank]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal, transient=False,
    )  # fmt: skip
    task = bar.add_task("training", total=steps, loss="-", rank="-")

    def show(step: Step) -> None:
        bar.update(task, completed=step.step)
        if step.effective_rank is None:
            return
        bar.update(task, loss=f"{step.loss.item():.4f}", rank=f"{step.effective_rank:.0f}")
        if not console.is_terminal and step.step * 10 // steps > (step.step - 10) * 10 // steps:
            # The first step may have compiled loops, and tells nothing of the rest.
            left = "" if step.step == 1 else f"  {step.seconds / step.step * (steps - step.step):.0f} s left"
            console.print(
                f"step {step.step} of {steps}  loss {step.loss.item():.4f}  "
                f"effective rank {step.effective_rank:.0f}{left}"
            )

    with bar:
        yield show


def show_trial(console: Console, trial: Trial) -> None:
    """A line per short run."""
    if trial.stability is None:
        console.print(f"tried {trial}: cannot be trained")
        return
    console.print(
        f"tried {trial}: {trial.stability:.1%} of neighbours stable, effective rank {trial.effective_rank:.0f}, "
        f"{trial.seconds:.1f} s"
    )


def show_scores(console: Console, scores: dict[str, dict[str, Score]], splits: int) -> None:
    """A table of accuracies, one line per embedding, two columns per probe."""
    judges = [score.probe for score in next(iter(scores.values())).values()]
    header = [f"test accuracy, %\n{splits} splits", *(title for judge in judges for title in (judge, "±"))]
    rows = [
        (name, *(f"{value:.2f}" for score in found.values() for value in (score.mean, score.std)))
        for name, found in scores.items()
    ]
    table(console, header, rows, numbers=range(1, len(header)))


def table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> None:
    """A table; the columns at places ``numbers`` are aligned to the right."""
    lines = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for place, title in enumerate(header):
        lines.add_column(title, justify="right" if place in numbers else "left", no_wrap=place < len(header) - 1)
    for row in rows:
        lines.add_row(*row)
    console.print(lines)
