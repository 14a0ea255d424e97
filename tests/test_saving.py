"""Each chart saves itself as one HTML file, which a browser opens without a network."""

import html
import inspect
import pickle
import re
import shutil
from pathlib import Path

import holoviews as hv
import pytest
from traces import write_trace

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.trace import Trace
from seqpoint import plots

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return sp.open(write_trace(tmp_path / "job.json", steps=6), length="aten::mm:0:0")


def test_every_chart_of_the_front_door_saves_itself(trace: Trace) -> None:
    selection, analysis = sp.select(trace, max_points=2), sp.analyze(trace, what_if="scale_kernels:gemm:0.5")
    projection = sp.project(trace, ["scale_kernels:gemm:0.5"], iterations=[2], draws=8)
    results = (sp.describe(trace), sp.iterations(trace), selection, sp.replay(trace, iterations=[2]), analysis)
    charts = [result.plot() for result in (*results, projection)]
    charts += [selection.plot_baselines(), projection.plot_timelines()]
    assert all(callable(chart.save) for chart in charts)


def test_every_function_of_the_package_makes_charts_that_save_themselves() -> None:
    functions = [getattr(plots, name) for name in plots.__all__ if name not in {"plain_text", "save"}]
    assert functions and all(inspect.unwrap(function) is not function for function in functions)


def test_a_saved_chart_is_one_file_without_references_to_others(trace: Trace, tmp_path: Path) -> None:
    path = sp.describe(trace).plot().save(tmp_path / "plot.html")
    text = path.read_text()
    markup = re.sub(r"(<script)>.*?</script>", r"\1>", text, flags=re.DOTALL)
    assert not re.search(r"\b(?:src|href)\s*=|@import|url\(", markup)
    assert markup.count("<script>") == 2
    assert "default-src 'none'" in html.unescape(markup)
    assert "gemm" in text


def test_options_composition_and_pickles_keep_charts_usable(trace: Trace, tmp_path: Path) -> None:
    chart = sp.describe(trace).plot()
    assert isinstance(chart, hv.Bars)
    assert chart.opts(title="Mine").save(str(tmp_path / "mine.htm")).exists()
    assert plots.save(chart + sp.iterations(trace).plot(), tmp_path / "both.html").stat().st_size > 100_000
    assert callable(pickle.loads(pickle.dumps(chart)).save)


@pytest.mark.parametrize(("name", "problem"), [("plot.png", "name the file plot.html"), ("no/plot.html", "no")])
def test_a_chart_is_not_saved_elsewhere(trace: Trace, tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        sp.describe(trace).plot().save(tmp_path / name)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_browser_draws_it_without_an_error_or_a_request(trace: Trace, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = sp.analyze(trace, what_if="scale_kernels:gemm:0.5").plot().save(tmp_path / "plot.html")
    problems: list[str] = []
    requests: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1200, "height": 900})
        view.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(path.as_uri())
        view.wait_for_function("document.querySelectorAll('.bk-Figure, .bk-GridPlot').length >= 1", timeout=30_000)
        width = view.evaluate("document.querySelector('.bk-GridPlot, .bk-Figure').getBoundingClientRect().width")
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    assert width > 600
