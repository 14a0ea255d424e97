"""The report is one file that asks for nothing, in which text from a trace is text."""

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from traces import event, kernel, kineto, launch, step, transformer, write_trace

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect
from replay.what_ifs import parse_what_if
from seqpoint.advising import Advice, Rejected, TraceAdvice, advise_windows
from seqpoint.characterization import characterize_trace
from seqpoint.description import describe
from seqpoint.iteration_table import iteration_table
from seqpoint.projecting import ProjectOptions, TraceWindows, project_trace
from seqpoint.reporting import ReportContent, ReportSection, write_report
from seqpoint.reporting.page import _page_table, blocks, html_page
from seqpoint.selection.selecting import select

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"></script>"
EVIDENCE = {"kept": 0.5, "scaled": 0.25, "modelled": 0.25, "assumed": 0.0}
ADVICE = TraceAdvice(
    f"host-bound: host takes 53 % of {HOSTILE}",
    "measured: 2 iterations",
    (Advice("Do the first", "overlap:ideal", 1.35, 1.35, 1.28, 1.41, "code", EVIDENCE, (f"{HOSTILE}gemm",)),),
    tuple(Rejected(f"action {number}", "overlap:ideal", 1.0, "1.003 at most") for number in range(14)),
    ("fused collectives",),
    (f"7 of 8 ranks are not in the trace {HOSTILE}",),
    "seqpoint project job.trace -n 2",
    no_action={"softmax": 0.09},
)
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
            advice=ADVICE,
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


def test_the_answer_comes_first_then_the_blocks_in_order(page: Path) -> None:
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    first = text[: text.index('id="section-2"')]
    order = [
        "<b>Host-bound</b>: host takes 53 %", "1.35×", "Do the first", "1.28 – 1.41", "50 % kept", "More on",
        "What stands against the answer", "7 of 8 ranks", "softmax 9 %", "Not worth it", "and 2 more", "Not applicable",
        "Where the time goes</h3>", "Kernels by class", "Operators by time", "Operators with their shapes",
        "Steps and pace</h3>", "What limits the step", "Overlap</h3>", "Selection of iterations</h3>",
        "Chosen iterations", "What-ifs</h3>", "dma_collectives", "Quality of the data", "Provenance",
    ]  # fmt: skip
    assert "<figure" not in first[: first.index("Where the time goes")]
    places = [first.index(wanted.replace("More on", 'class="command"')) for wanted in order]
    assert places == sorted(places)
    assert re.search(r'class="badge">synthetic', text)


def test_quality_and_provenance_are_folded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folded = re.findall(r'<details class="block"><summary>(.*?)</summary>', text)
    assert [clean.split(":")[0] for clean in folded] == ["Quality of the data", "Provenance"] * 2


def test_a_table_has_twelve_rows_and_says_how_many_more() -> None:
    trace = sp.synthesize(sp.TrainingJob(sp.Transformer("t", "megatron", 2, 256, 4, 1024, 1024), 64, 1, 1), "H200")
    row = describe(trace).classes[0]
    names = [f"void at::native::{'x' * 60}{number}<float>(int)" for number in range(61)]
    operators = replace(
        characterize_trace(trace).text_table(), title="Operators by time",
        columns=("operator~", "calls"), rows=[(name, 1) for name in names],
    )  # fmt: skip
    (table,) = _page_table(operators)
    shown = [str(name) for name, _ in table.rows]
    assert (table.title, table.hidden, len(set(shown)), max(map(len, shown))) == ("Operators by time", 13, 48, 52)
    html_text = html_page(ReportContent("", (ReportSection("", "", replace(describe(trace), classes=(row,) * 30)),)))
    tables = re.findall(r"<tbody>(.*?)</tbody>", html_text, re.DOTALL)
    assert [body.count("<tr") for body in tables][:2] == [12, 18] and "<summary>and 18 more</summary>" in html_text


def test_each_caveat_stands_in_its_block_once(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json", steps=3)], IngestOptions())
    windows = TraceWindows.of(trace, ProjectOptions(max_points=2))
    advice, projection = advise_windows(windows)
    parts = (describe(trace), None, projection, None, characterize_trace(trace), advice)
    section = ReportSection("job", "", *parts)
    text = html.unescape(html_page(ReportContent("job", (section,))))
    notes = {block.heading: block.notes for block in blocks(section)}
    assert set(parts[0].notes()) <= {*notes["Steps and pace"], *advice.against}
    assert set(parts[4].notes()) <= {*notes["Where the time goes"], *advice.against}
    assert all(f"<li>{note}</li>" in text for of_block in notes.values() for note in of_block)
    assert all(text.count(f"<li>{line}</li>") == 1 for line in advice.against) and sum(map(len, notes.values())) > 1


def test_a_report_says_what_advise_says_and_what_changed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", steps=3)
    advice = sp.advise(path)
    text = html.unescape(sp.report(path, tmp_path / "a.html", earlier=path).read_text())
    assert advice.verdict.partition(": ")[2] in text and f"{advice.command} -w" in text
    for action in advice.actions:
        assert f"({action.low:.2f} – {action.high:.2f})" in text and action.action in text
    assert "Comparison</h3>" in text and "No difference beyond noise: the steps are identical." in text


def test_a_note_names_the_what_ifs_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(kineto(step(1, 1000.0))))
    trace = collect([tmp_path / "t.json"], IngestOptions())
    what_ifs = [parse_what_if(f"scale_kernels:all:{factor}") for factor in (0.5, 0.25, 0.1)]
    projection = project_trace(trace, what_ifs, ProjectOptions(draws=2))
    given = (("adds 1 GB", "of all"), ("adds 2 GB", "of all"), ())
    rows = [replace(row, notes=notes) for row, notes in zip(projection.rows, given, strict=True)]
    projection = replace(projection, projection=replace(projection.projection, rows=tuple(rows)))
    section = ReportSection("", "", describe(trace), projection=projection)
    names = [" + ".join(row.what_if) for row in rows]
    assert tuple(note for block in blocks(section) for note in block.notes)[-3:] == (
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
        view.set_viewport_size({"width": 400, "height": 900})
        view.emulate_media(color_scheme="dark")
        width, paper = view.evaluate(
            "[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
        )
        view.evaluate("document.activeElement.blur()")
        reached = set()
        for _ in range(80):
            view.keyboard.press("Tab")
            reached.add(view.evaluate("document.activeElement.tagName"))
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [page.as_uri()]
    assert title != "owned" and "<script>document.title='owned'</script>" in shown
    assert drawn >= 5
    assert width == 400 and paper == "rgb(18, 22, 27)"
    assert reached >= {"SUMMARY", "FIGURE", "PRE"}
