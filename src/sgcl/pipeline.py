"""Joins recipe, graph, method and training: the one module that knows every part."""

from __future__ import annotations

import copy
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from sgcl.data import Source, open_source
from sgcl.encoders import GCNEncoder, Precision
from sgcl.errors import InputError
from sgcl.evaluation import DECAYS, ProbeConfig
from sgcl.graph import View
from sgcl.log import log
from sgcl.methods import Method, method_named
from sgcl.recipes import Recipe, recipe_for
from sgcl.stopping import StopRule
from sgcl.store import read_json, read_tensors, replacing, write_json, write_tensors
from sgcl.training import Step, TrainConfig, Training, train

WEIGHTS, CONFIG, METRICS, CHECKPOINT = (
    "model.safetensors",
    "config.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
)
FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a run on a given graph; saved as it is.

    Attributes:
        method: name of the method.
        recipe: its values.
        seed: of initial weights and augmentations.
        precision: ``"fp32"`` or ``"bf16"``, see :class:`sgcl.encoders.GCNEncoder`.
        early_stop: end before the recipe's steps when label-free signals say so (:mod:`sgcl.stopping`).
    """

    method: str = "sgcl"
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    precision: Precision = "fp32"
    early_stop: bool = False

    def __post_init__(self) -> None:
        method_named(self.method)
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise InputError(f"seed: must be a whole number from 0 to 2^63 - 1, got {self.seed!r}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def as_key(self) -> dict[str, Any]:
        """Plain values without switches that are off: those of results made before there were such switches."""
        values = asdict(self)
        for place, name in ((values, "early_stop"), (values["recipe"], "minimise")):
            if not place[name]:
                del place[name]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The settings that :meth:`as_dict` wrote.

        Raises:
            InputError: a value is missing or unknown.
        """
        try:
            recipe = dict(values["recipe"])
            recipe["hidden"] = tuple(recipe["hidden"])
            if unknown := set(recipe) - {one.name for one in fields(Recipe)}:
                raise InputError(f"settings: unknown {', '.join(sorted(unknown))}; written by a newer version?")
            stop = bool(values.get("early_stop", False))
            return cls(values["method"], Recipe(**recipe), values["seed"], values["precision"], stop)
        except (KeyError, TypeError) as error:
            raise InputError(f"settings: cannot be used ({type(error).__name__}: {error})") from None


def build(settings: Settings, in_channels: int, encoder: nn.Module | None = None) -> Method:
    """The method that ``settings`` describe, with fresh weights from torch's global generator, or with ``encoder``."""
    recipe, method = settings.recipe, method_named(settings.method)
    sizes, more = method.plan(in_channels, recipe.hidden, recipe.dim)
    if encoder is None:
        encoder = GCNEncoder(
            sizes,
            recipe.norm,  # type: ignore[arg-type]  # checked by the encoder
            recipe.weight_standardization,
            settings.precision,
        )
    return method(encoder, recipe.edge_drop, recipe.feature_drop, recipe.minimise, **more)


def train_config(recipe: Recipe, early_stop: bool = False) -> TrainConfig:
    """The part of a recipe that training knows."""
    stop = StopRule() if early_stop else None
    return TrainConfig(recipe.steps, recipe.lr, recipe.weight_decay, recipe.warmup, stop=stop)


def probe_config(recipe: Recipe) -> ProbeConfig:
    """The part of a recipe that the linear probe knows."""
    decays = DECAYS if recipe.probe_decay is None else (recipe.probe_decay,)
    return ProbeConfig(lr=recipe.probe_lr, decays=decays, batch_size=recipe.probe_batch)


def pick_precision(name: str, device: torch.device) -> Precision:
    """``auto`` is bfloat16 where the device multiplies it in hardware, else float32.

    Raises:
        InputError: the name is unknown.
    """
    if name not in ("auto", "fp32", "bf16"):
        raise InputError(f"precision: must be one of auto, fp32, bf16, got {name!r}")
    if name != "auto":
        return name  # type: ignore[return-value]  # one of the two
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    asked = getattr(torch.cpu, "get_capabilities", None)  # torch 2.9 and later
    capabilities: Mapping[str, Any] = asked() if asked and device.type == "cpu" else {}
    return "bf16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "fp32"


def stepper(
    graph: Any, precision: str = "auto", seed: int = 0, device: str = "auto", method: str = "sgcl"
) -> Callable[[], Step]:
    """A function that does one whole training step of the recipe of ``graph`` each time it is called."""
    source, where = open_source(graph), pick_device(device)
    precise = pick_precision(precision, where)
    settings = Settings(method, recipe_for(source.name, method=method), seed, precise)
    view = View.of(source.data).to(where)
    torch.manual_seed(seed)
    built = build(settings, view.features.shape[1]).to(where)
    config = replace(train_config(settings.recipe), steps=10**9, warmup=settings.recipe.warmup)
    return iter(train(built, view, config)).__next__


def pick_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is a device, else the CPU.

    Raises:
        InputError: the device is unknown or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device: {name!r} cannot be used here ({reason}); try 'auto' or 'cpu'") from None
    return device


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generators seeded, and put back as they were on the way out."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@dataclass
class Run:
    """One run: a graph, settings, and, where the result should survive, a folder.

    Attributes:
        source: the graph.
        settings: what decides the result.
        folder: for metrics, checkpoints and the model; ``None`` keeps nothing.
        device: see :func:`pick_device`.
        encoder: instead of the recipe's; copied, so that a second run starts from the same weights.
        checkpoint_every: steps between checkpoints; has no influence on the result.
    """

    source: Source
    settings: Settings
    folder: Path | None = None
    device: str = "auto"
    encoder: nn.Module | None = None
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every: must be at least 1, got {self.checkpoint_every!r}")
        self.history: list[dict[str, Any]] = []
        self.finished = False
        self.stopped: str | None = None
        """Why training ended before the last step, if it did."""
        self.method: Method
        self.device_: torch.device

    def __call__(
        self,
        resume: bool = False,
        on_step: Callable[[Step], None] = lambda step: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Run:
        """Train to the end, or until ``should_stop`` says so after a step; then a checkpoint is left to resume from.

        Raises:
            InputError: the folder holds an unfinished run and ``resume`` is not set, or a run of something else.
            TrainingStopped: see :class:`sgcl.training.Training`.
        """
        self.device_ = device = pick_device(self.device)
        self._view = view = View.of(self.source.data).to(device)
        with seeded(self.settings.seed):
            encoder = copy.deepcopy(self.encoder) if self.encoder is not None else None
            self.method = build(self.settings, view.features.shape[1], encoder).to(device)
            training = train(self.method, view, train_config(self.settings.recipe, self.settings.early_stop))
            if resume and self._restore():
                return self
            self._continue(training, resume)
            with ExitStack() as files:
                self._loop(training, files, on_step, should_stop)
        return self

    def _loop(self, training: Training, files: ExitStack, on_step: Any, should_stop: Callable[[], bool]) -> None:
        metrics: Any = None
        for step in training:
            if self.folder and not metrics:  # not before: a graph that cannot be used leaves no folder behind
                metrics = files.enter_context(self._open_metrics(self.folder))
            on_step(step)
            if step.effective_rank is not None:
                self.history.append(step.record())
                if metrics:
                    metrics.write(json.dumps(self.history[-1]) + "\n")
                    metrics.flush()
            stopping = should_stop() and step.step < training.config.steps and not training.stopped
            if self.folder and (stopping or step.step % self.checkpoint_every == 0):
                training.save(self.folder / CHECKPOINT, self._identity())
            if stopping:
                return
        if self.folder:  # the last checkpoint stays until the outputs are written, see finish
            training.save(self.folder / CHECKPOINT, self._identity())
        self.stopped = training.stopped
        self.method.settle(self._view)
        self.finished = True

    def embeddings(self) -> Tensor:
        """Embeddings ``[N, d]`` of the graph by the weights of now, on the CPU; may be asked for between steps."""
        self.method.settle(self._view)
        return self.method.embed(self._view).float().cpu()

    def save(self, folder: Path) -> None:
        """Write the model: weights, the settings that rebuild it, and the records."""
        write_tensors(folder / WEIGHTS, self.method.encoder.state_dict())
        self._write_metrics(folder)
        write_json(folder / CONFIG, {"format": FORMAT, **self._identity(), "made_by": versions()})

    def finish(self) -> None:
        """Remove the checkpoint, once everything that is wanted has been written."""
        if self.folder:
            (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def _identity(self) -> dict[str, Any]:
        nodes, columns = self.source.data.x.shape
        return {
            "settings": self.settings.as_dict(),
            "encoder": "GCNEncoder" if self.encoder is None else "custom",
            "graph": {
                "name": self.source.name,
                "nodes": nodes,
                "pairs": self.source.data.edge_index.shape[1],
                "features": columns,
                "fingerprint": self.source.fingerprint,
            },
        }

    def _restore(self) -> bool:
        """Take the model from the folder if it holds this very run, finished."""
        if not self.folder or (self.folder / CHECKPOINT).exists() or not (self.folder / CONFIG).exists():
            return False
        if first_difference(read_config(self.folder), self._identity()):
            return False
        weights, _ = read_tensors(self.folder / WEIGHTS)
        self.method.encoder.load_state_dict(weights)
        self.history, self.finished = read_metrics(self.folder / METRICS), True
        log.info("%s holds this run, finished: nothing to train", self.folder)
        return True

    def _continue(self, training: Training, resume: bool) -> None:
        """Load the folder's checkpoint if there is one and it is wanted."""
        if not self.folder:
            return
        check_unfinished(self.folder, resume)
        checkpoint = self.folder / CHECKPOINT
        if not checkpoint.exists():
            if resume:
                log.info("%s holds no checkpoint: starting at step 1", self.folder)
            return
        note = training.load(checkpoint)
        if difference := first_difference(note, self._identity()):
            raise InputError(
                f"{self.folder}: the unfinished run differs from this one in {difference}; use its settings"
            )
        log.info("continuing after step %d", training.step)
        self.history = [record for record in read_metrics(self.folder / METRICS) if record["step"] <= training.step]

    def _open_metrics(self, folder: Path) -> TextIO:
        folder.mkdir(parents=True, exist_ok=True)
        for left_behind in folder.glob(f".{CHECKPOINT}.*"):  # by a run that was killed while writing it
            left_behind.unlink()
        self._write_metrics(folder)
        return (folder / METRICS).open("a", encoding="utf-8")

    def _write_metrics(self, folder: Path) -> None:
        with replacing(folder / METRICS) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in self.history), encoding="utf-8")


def check_unfinished(folder: Path, resume: bool) -> None:
    """Refuse to train into a folder that holds an unfinished run, unless that is to be resumed.

    Raises:
        InputError: it does.
    """
    if not resume and (folder / CHECKPOINT).exists():
        raise InputError(
            f"{folder}: holds an unfinished run; add --resume (resume=True) to go on with it, "
            "choose another folder, or delete this one"
        )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a metrics file; a last line that was cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a saved model.

    Raises:
        InputError: there is none, or it is of a newer format.
    """
    if not folder.is_dir():
        raise InputError(f"model: {str(folder)!r} is not a folder; give one that was written with --model or save()")
    config = read_json(folder / CONFIG)
    if config.get("format") != FORMAT:
        raise InputError(f"{folder / CONFIG}: format {config.get('format')!r} is not {FORMAT}; use a matching version")
    return config


def versions() -> dict[str, str]:
    """What made a result: versions and machine."""
    packages = ("sgcl", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": f"{_processor()}, {torch.get_num_threads()} threads",
    }


def _processor() -> str:
    """The processor's name where Linux tells it, else its kind: speeds differ more between makers than years."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any], name: str = "") -> str:
    """The first value in which two nested mappings differ, in words; empty if in none of ``new``'s."""
    for key, value in json.loads(json.dumps(new)).items():
        path, before = f"{name}.{key}".lstrip("."), old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := first_difference(before, value, path):
                return inner
        elif before != value:
            return f"{path}: {before!r} there, {value!r} here"
    return ""
