"""The notebooks run from start to end, and show what they say."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

#: What each prints, among other things.
SAID = {
    "tour": ("estimated", "replayed", "MB"),
    "overlap": ("gated figures within", "ideal", "saved", "collectives matched"),
}
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    assert all(word in printed for word in SAID[path.stem])
    assert not [output for output in outputs if output.output_type == "error"]
