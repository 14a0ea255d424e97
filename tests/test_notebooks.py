"""The notebooks run from start to end, and are stored as a code host can show them.

`python benchmarks/store_notebooks.py` stores them anew.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

#: Texts that the outputs of each hold, among others.
SAID = {
    "caching": ("CacheRW-AB-CR", "Time by cache policy", "row hit %", "scale_cache:L2:2"),
    "goldyloc": ("is the fastest side by side", "GEMMs of 15 shapes", "at once", "concurrent_gemms:auto:go"),
    "comp_vs_comm": ("exposed communication", "predicted step of gpt", "synthetic trace, GPUs: 2"),
    "serving": (
        "bound by memory",
        "bound by compute",
        "time of a step over its tokens",
        "One engine by rate of arrival",
    ),
    "tour": ("GPU-bound", "SeqPoints", "measured: 6.802 s", "Critical path by", "scale_device:H200", "measured 1.02"),
    "overlap": ("gated figures within", "overlap:ideal", "collectives matched", "Validation: published"),
}
NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "gallery").glob("*.ipynb"))
LIMIT_BYTES = 1_000_000
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def text_of(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") + output.get("data", {}).get("text/html", "") for output in outputs)


def shows_something(source: str) -> bool:
    """Return whether a cell ends with an expression, or prints."""
    tree = ast.parse(source)
    prints = any(isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(tree))
    return prints or isinstance(tree.body[-1], ast.Expr)


def imported(source: str) -> Iterator[str]:
    """Yield the modules that a cell imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@each_notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs_and_draws_its_charts(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    charts = [number for number, cell in enumerate(code_cells(notebook)) if ".plot" in cell.source]
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = outputs_of(notebook)
    assert all(word in text_of(outputs) for word in SAID[path.stem])
    assert not [output for output in outputs if output.output_type == "error"]
    for number in charts:
        results = [o for o in code_cells(notebook)[number].outputs if o.output_type == "execute_result"]
        assert "bk" in results[0].data["text/html"], "a chart is drawn without a call of HoloViews"


@each_notebook
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert bool(cell.outputs) == shows_something(cell.source), cell.source
        assert all(".plot" not in cell.source or "image/png" in output.data for output in cell.outputs)
    assert all(word in text_of(outputs_of(notebook)) for word in SAID[path.stem])
    kinds = [kind for output in outputs_of(notebook) for kind in output.get("data", {})]
    assert "image/png" in kinds and set(kinds) <= {"image/png", "text/html", "text/plain"}
    assert "<script" not in text_of(outputs_of(notebook))
    assert path.stat().st_size < LIMIT_BYTES


@each_notebook
def test_a_notebook_imports_the_front_door_alone(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    modules = {module for cell in code_cells(notebook) for module in imported(cell.source)}
    assert "seqpoint" in modules
    assert {module for module in modules if module.split(".")[0] not in sys.stdlib_module_names} == {"seqpoint"}
