"""What the documents say is true: programs run, names exist, the table comes from the results."""

import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from sgcl.report import all_results, with_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_program_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    [program] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    assert "%" in capsys.readouterr().out and (tmp_path / "my-model/model.safetensors").exists()


@pytest.mark.parametrize("name", ["README.md", "docs/quality.md"])
def test_tables_are_made_from_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert with_tables(text, all_results(ROOT / "results")) == text


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert len(path.read_text().splitlines()) < 60


def test_functions_named_beside_the_equations_exist():
    table = (ROOT / "docs/paper-to-code.md").read_text(encoding="utf-8")
    modules = {path.stem for path in (ROOT / "src/sgcl").iterdir()} - {"__init__"}
    named = [name for name in re.findall(r"`([a-z]+(?:\.\w+)+)`", table) if name.partition(".")[0] in modules]
    assert len(named) > 15
    for name in named:
        pkgutil.resolve_name(f"sgcl.{name}")


def test_imports_point_one_way():
    ranks = {}
    order = (
        "buffers errors log, recipes kernels store, functional graph, augment encoders data stopping, "
        "methods evaluation, training, pipeline, tuning, embedder bench estimate, report, screen, cli"
    )
    for rank, names in enumerate(order.split(", ")):
        ranks |= dict.fromkeys(names.split(), rank)
    source = ROOT / "src/sgcl"
    for path in source.rglob("*.py"):
        module = path.relative_to(source).parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        for imported in re.findall(r"^\s*from sgcl\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert imported == module or ranks[imported] < ranks[module], f"{path.name} imports {imported}"
