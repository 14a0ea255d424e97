"""Run the notebooks and store them with their outputs, for readers on a code host.

`python benchmarks/store_notebooks.py [NAME]...` runs all notebooks, or those named. Hosts show text, tables and images,
and no JavaScript. So each chart becomes the image that Chromium draws of it.
"""

import base64
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "gallery"
#: MIME type of a chart as a page of its own, which only this script asks for.
PAGE = "application/x-chart-page"
WIDTH = 800
LIMIT_BYTES = 1_000_000
#: Runs in the kernel first: each chart also shows itself as a page that needs no network.
PREPARE = f"""
import holoviews as hv
import holoviews.plotting.bokeh
from bokeh.embed import file_html
from bokeh.models import GridPlot, Plot
from bokeh.resources import INLINE

def _page(chart):
    model = hv.render(chart, backend="bokeh")
    for kind in (GridPlot, Plot):
        for part in model.select(dict(type=kind)):
            part.toolbar_location = None
    return {{"{PAGE}": file_html(model, INLINE)}}, {{}}

hv.Store.set_display_hook("page", hv.core.Dimensioned, _page)
"""


def chromium() -> str:
    """Return the path of Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SystemExit("no Chromium on the path")
    return found


def executed(path: Path) -> Any:
    """Return a notebook that has run, without the cell that prepared it."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(PREPARE))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    del notebook.cells[0]
    return notebook


def image(browser: Browser, page: str) -> str:
    """Return the chart of a page as PNG in base64."""
    view = browser.new_page(viewport={"width": WIDTH, "height": 1200}, device_scale_factor=1)
    view.set_content(page)
    view.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents.every(d => d.is_idle)")
    view.add_style_tag(content="body { margin: 0 }")
    view.wait_for_timeout(500)  # Bokeh fits its axes to their labels after it has drawn
    picture = view.locator("[data-root-id] > *").first.screenshot()
    view.close()
    return base64.b64encode(picture).decode()


def stored(output: Any, browser: Browser) -> Any | None:
    """Return an output as it is stored; None if it is JavaScript, or a message of a library on stderr."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if output.output_type == "error":
        raise SystemExit(f"{output.ename}: {output.evalue}")
    data = output.data
    if PAGE in data:
        kept = {"image/png": image(browser, data[PAGE])}
    elif output.output_type == "display_data":  # Bokeh loads itself
        return None
    else:
        kept = {kind: data[kind] for kind in ("text/html", "text/plain") if kind in data}
        if "text/html" in kept:
            kept.pop("text/plain", None)
    return nbformat.v4.new_output(output.output_type, kept, execution_count=output.get("execution_count"), metadata={})


def store(path: Path, browser: Browser) -> int:
    """Run a notebook, write it with its outputs, and return its size in bytes."""
    notebook = executed(path)
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := stored(output, browser)) is not None]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if len(text) > LIMIT_BYTES:
        raise SystemExit(f"{path.name}: {len(text)} bytes are too many for a code host; the limit is {LIMIT_BYTES}")
    path.write_text(text)
    return len(text)


def main(names: list[str]) -> None:
    """Store the notebooks that are named, or all."""
    paths = [FOLDER / f"{Path(name).stem}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for path in paths:
            print(f"{path.name}: {store(path, browser) / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
