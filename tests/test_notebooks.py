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
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

#: Texts that the outputs of each hold, among others.
SAID = {
    "bert": ("FP32 measured", "kernels in BF16: projected", "The device is busy 12 %"),
    "c3": ("copy_engine in order", "of the ideal gain", "in 884 scenarios", "overlap:ideal", "conccl_rp"),
    "caching": ("measured: 1 iteration", "scale_cache:L2:2", "were simulated"),
    "comp_vs_comm": ("exposed communication", "predicted step of gpt", "synthetic trace, GPUs: 2", "published 20 %"),
    "detailed": ("waits_for_memory", "H200  triton/matmul_bf16"),
    "ficco": ("ficco:hetero_fused_1d", "Collectives that stay", "MISSED published"),
    "fused": ("fuse_collectives+scale_links:2", "other comes before them", "overlap:ideal"),
    "goldyloc": ("GEMMs of 36 shapes", "at once", "concurrent_gemms:auto:go", "gemm_fp32_1024x1024x1024   2 streams"),
    "jitq": ("Copies of weights", "quantize_weights:mx9:gpu_kept", "the memory loses"),
    "seqpoint": ("Against the baselines", "H100, half of the width", "target 1%: 29 points"),
    "serving": (
        "bound by memory",
        "bound by compute",
        "time of a step over its tokens",
        "One engine by rate of arrival",
    ),
    "t3": ("t3:mca+scale_links:2", "they are all_gather", "published 30 %"),
    "tour": ("GPU-bound", "SeqPoints", "measured: 6.802 s", "Critical path by", "scale_device:H200", "measured 1.02"),
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


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelManager]:
    """Yield a kernel for all notebooks, since to start one and to load the toolkit takes seconds."""
    manager = KernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)


@each_notebook
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs_and_draws_its_charts(path: Path, kernel: KernelManager) -> None:
    notebook = nbformat.read(path, as_version=4)
    charts = [number for number, cell in enumerate(code_cells(notebook)) if ".plot" in cell.source]
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # forgets the names of the notebook before
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=300, km=kernel, resources=resources)
    client.execute()
    client.kc.stop_channels()
    del notebook.cells[0]
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
