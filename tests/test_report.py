"""The report is one file that asks for nothing, in which text from a trace is text."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from traces import event, kernel, kineto, launch, step, transformer

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect
from replay.what_ifs import parse_what_if
from seqpoint.characterization import characterize_trace
from seqpoint.description import describe
from seqpoint.iteration_table import iteration_table
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.reporting import ReportContent, ReportSection, write_report
from seqpoint.reporting.page import notes as notes_of
from seqpoint.selection.selecting import select

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"></script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report on a trace whose names attack the page, and on a synthetic one."""
    folder = tmp_path_factory.mktemp("report")
    events = [e for number in (1, 2, 3) for e in step(number, 1000.0 * number)]
    events += [launch(1205, 901), kernel(HOSTILE + "gemm", 1800, 120, 901, stream=33)]
    events += [event(HOSTILE, "user_annotation", 1001, 10)]
    document = kineto(events)
    document["deviceProperties"][0]["name"] = HOSTILE
    (folder / f"{'<b>name'}.json").write_text(json.dumps(document))
    trace = collect([folder / "<b>name.json"], IngestOptions(length="aten::mm:0:0"))
    job = transformer(128, 256)
    what_ifs = [parse_what_if("dma_collectives"), parse_what_if("overlap:ideal")]
    few = ProjectOptions(draws=8)
    sections = (
        ReportSection(
            HOSTILE,
            "",
            describe(trace),
            select(iteration_table(trace)),
            project_trace(trace, what_ifs, few),
            characterization=characterize_trace(trace),
        ),
        ReportSection(
            "Job",
            "synthetic",
            describe(job),
            None,
            project_trace(job, what_ifs, few),
            characterization=characterize_trace(job),
        ),
    )
    return write_report(ReportContent(HOSTILE, sections), folder / "report.html")


def test_it_is_one_file_without_references_to_others(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", markup)
    assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", markup)
    assert "Content-Security-Policy" in text and "default-src 'none'" in html.unescape(text)
    assert [p.name for p in page.parent.iterdir() if p.suffix == ".html"] == ["report.html"]


def test_hostile_names_are_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>document.title" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;document.title" in text


def test_it_shows_the_numbers_and_where_they_come_from(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for wanted in (
        "Chosen iterations",
        "Kernels by class",
        "Operators by time",
        "Operators against the roofline",
        "kernels take",
        "What-ifs",
        "Quality of the trace",
        "Provenance",
        "dma_collectives",
    ):
        assert wanted in text
    assert re.search(r'class="[^"]*badge[^"]*"[^>]*>\s*synthetic', text, re.IGNORECASE)


def test_a_note_names_the_what_ifs_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(kineto(step(1, 1000.0))))
    trace = collect([tmp_path / "t.json"], IngestOptions())
    what_ifs = [parse_what_if(f"scale_kernels:all:{factor}") for factor in (0.5, 0.25, 0.1)]
    projection = project_trace(trace, what_ifs, ProjectOptions(draws=2))
    given = (("adds 1 GB", "of all"), ("adds 2 GB", "of all"), ())
    rows = [replace(row, notes=notes) for row, notes in zip(projection.rows, given, strict=True)]
    projection = replace(projection, projection=replace(projection.projection, rows=rows))
    section = ReportSection("", "", describe(trace), projection=projection)
    names = [" + ".join(row.what_if) for row in rows]
    assert notes_of(section)[-3:] == (
        f"{names[0]}: adds 1 GB",
        f"{names[0]}, {names[1]}: of all",
        f"{names[1]}: adds 2 GB",
    )


def test_nothing_is_written_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be written"):
        write_report(ReportContent("empty", ()), tmp_path / "no" / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_browser_opens_it_without_an_error_or_a_request(page: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    problems: list[str] = []
    requests: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1200, "height": 900})
        view.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        view.on("request", lambda request: requests.append(request.url))
        view.goto(page.as_uri())
        view.wait_for_function("document.querySelectorAll('.bk-Figure, .bk-GridPlot').length >= 5", timeout=30_000)
        title, shown = view.title(), view.inner_text("body")
        drawn = view.evaluate("Bokeh.documents.flatMap(d => d.roots()).length")
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [page.as_uri()]
    assert title != "owned" and "<script>document.title='owned'</script>" in shown
    assert drawn >= 5
