"""Agents get short answers, from the traces of one folder, by the protocol."""

import asyncio
import inspect
import json
import os
import re
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from commands import Run
from hypothesis import given
from hypothesis import strategies as st
from traces import transformer, write_trace

from profilers.errors import SeqPointError
from profilers.trace import save_trace
from seqpoint.agents import MOST_BYTES, Answer, TraceTools, skill
from seqpoint.notebook import Table

pytest.importorskip("duckdb")
pytest.importorskip("mcp")

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from seqpoint.agents import server

NANOGPT = Path(__file__).parents[2] / "shared/data/traces/kineto/nanogpt8"
TOOLS = ["describe", "characterize", "advise", "compare", "project", "sql", "what_ifs", "more"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents") / "root"
    (folder / "raw").mkdir(parents=True)
    write_trace(folder / "raw" / "rank0.json")
    save_trace(transformer(128, 256, tensor=2), folder / "job.trace")
    (folder.parent / "secret.json").write_text("{}")
    (folder / "link.json").symlink_to(folder.parent / "secret.json")
    (folder / "linked").mkdir()
    (folder / "linked" / "rank0.json").symlink_to(folder.parent / "secret.json")
    return folder


def checked(text: str) -> dict[str, Any]:
    """Return an answer, which has at most 8 kB."""
    assert len(text.encode()) <= MOST_BYTES
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


def pages(tools: TraceTools, handle: str) -> list[Any]:
    """Return all rows of a table, page by page."""
    rows, offset = list[Any](), 0
    while offset is not None:
        page = checked(tools.more(handle, offset))
        rows, offset = rows + page["rows"], page["next_offset"]
    assert len(rows) == page["rows_in_all"]
    return rows


def test_every_tool_answers_with_a_verdict_and_tables_that_go_on(root: Path) -> None:
    tools = TraceTools(root)
    answers = [
        tools.describe(), tools.describe("job.trace"), tools.describe("job.trace", "kernel"),
        tools.describe("raw/rank0.json"), tools.characterize("job.trace"), tools.characterize("job.trace", "kernel"),
        tools.advise("job.trace", minutes=0.01), tools.compare("job.trace", "job.trace"),
        tools.project("job.trace", ["overlap:ideal", "scale_host:0.5"], max_points=1),
        tools.sql("job.trace"), tools.sql("job.trace", "from kernels"), tools.what_ifs(), tools.what_ifs("scale_host"),
    ]  # fmt: skip
    for text in answers:
        content = checked(text)
        assert next(iter(content)) == "verdict" and all(content["verdict"])
        for table in content.get("tables", ()):
            assert all(len(row) == len(table["columns"]) for row in table["rows"])
            assert ("more" in table) == ("rows_in_all" in table)
        handles = [table["more"] for table in content.get("tables", ()) if "more" in table]
        for handle in [*handles, *content.get("more_tables", ())]:
            assert pages(tools, handle)


texts = st.text(st.characters(), max_size=300)
cells = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.lists(st.integers(), max_size=4))
names = st.one_of(st.sampled_from(["kernel~", "name~", "rank"]), texts)


@given(
    st.lists(texts, max_size=40),
    st.lists(st.tuples(texts, st.lists(names, min_size=1, max_size=60), st.integers(0, 3000), cells), max_size=30),
)
def test_any_answer_fits_and_any_page_goes_on(sentences: list[str], drawn: list[Any]) -> None:
    tables = [Table(title, tuple(heads), [(cell,) * len(heads)] * count) for title, heads, count, cell in drawn]
    kept: dict[str, Table] = {}

    def keep(table: Table) -> str:
        kept[f"t{len(kept)}"] = table
        return f"t{len(kept) - 1}"

    checked(Answer(sentences, tables, sentences).text(keep))
    tools = TraceTools(Path(__file__).parent)
    for table in tables:
        handle = tools._keep(table)
        if table.rows:
            page = checked(tools.more(handle, len(table.rows) // 2, 500))
            assert page["rows"] and (page["next_offset"] or len(table.rows)) > page["offset"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../secret.json",
        "/etc/passwd",
        "link.json",
        "linked",
        "*.trace",
        "job.trace\0",
        "raw/../..",
        "no",
        "job.trace/../../secret.json",
        "~",
        "a" * 5000,
        "é" * 239,
    ],
)
def test_only_traces_of_the_folder_are_read(root: Path, name: str) -> None:
    tools = TraceTools(root)
    for ask in (
        tools.characterize,
        lambda given: tools.sql(given, "select 1"),
        lambda given: tools.compare(given, "no"),
    ):
        with pytest.raises(SeqPointError) as problem:
            ask(name)
        assert "secret" not in str(problem.value).replace(repr(name), "")


@pytest.mark.parametrize("text", ["@plan.toml", "tensor_parallel:4:job.toml", f"cache_policy:X:{__file__}"])
def test_no_what_if_names_a_file(root: Path, text: str) -> None:
    with pytest.raises(SeqPointError, match="names a file"):
        TraceTools(root).project("job.trace", [text])


def test_a_trace_is_opened_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file = write_trace(tmp_path / "job.json", steps=2)
    tools = TraceTools(tmp_path)
    first = tools._open("job.json")
    assert tools._open("job.json") is first
    write_trace(file, steps=3)
    assert tools._open("job.json").iterations.num_rows == 3
    for number in range(6):
        write_trace(tmp_path / f"{number}.json")
        tools._open(f"{number}.json")
        tools._keep(Table("T", ("n",), [(number,)]))
    assert len(tools._traces) == 4


def test_handles_are_kept_for_a_while(tmp_path: Path) -> None:
    tools = TraceTools(tmp_path)
    handles = [tools._keep(Table("T", ("n",), [(1,)])) for _ in range(70)]
    assert len(tools._tables) == 64 and checked(tools.more(handles[-1]))["rows"] == [[1]]
    with pytest.raises(SeqPointError, match="call its tool again"):
        tools.more(handles[0])
    with pytest.raises(SeqPointError, match="1 row"):
        tools.more(handles[-1], 5)


async def converse(client: Any) -> None:
    """Check what a client sees: the tools, an answer, errors of one line, and pings during a long call."""
    tools = (await client.list_tools()).tools
    assert sorted(tool.name for tool in tools) == sorted(TOOLS)
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)
    answer = await client.call_tool("describe", {})
    assert not answer.is_error and answer.structured_content is None
    assert ["job.trace", "trace folder"] in checked(answer.content[0].text)["tables"][0]["rows"]
    wrong = [
        ("describe", {"trace": "../secret.json"}, "is not in the folder"),
        ("describe", {"trace": "job.trace", "by": "colour"}, "validation error"),
        ("describe", {"folder": "job.trace"}, "no argument 'folder'"),
        ("characterize", {"trace": "linked"}, "link out of the folder"),
        ("sql", {"trace": "job.trace", "query": "attach 'x'"}, "ATTACH"),
        ("advise", {"trace": "job.trace", "minutes": -1}, "minutes -1"),
        ("delete", {}, "Unknown tool"),
    ]
    for tool, arguments, reason in wrong:
        refused = await client.call_tool(tool, arguments)
        text = refused.content[0].text
        assert refused.is_error and reason in text and "\n" not in text and "Traceback" not in text
    slow = "select count(*) from range(200000000) t(x) where x % 7 = 3"
    task = asyncio.create_task(client.call_tool("sql", {"trace": "job.trace", "query": slow}))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    await client.list_tools()
    assert time.monotonic() - started < 1 and not task.done()
    assert checked((await task).content[0].text)["tables"][0]["rows"] == [[28571429]]


def test_a_client_speaks_with_the_server_over_stdio(root: Path) -> None:
    command = ["-c", "from seqpoint.cli import main; main()", "mcp", "--root", str(root)]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}

    async def talk() -> None:
        started = StdioServerParameters(command=sys.executable, args=command, env=environment)
        async with Client(started) as client:
            await converse(client)
        async with Client(server(root), mode="legacy") as client:
            await client.session.send_ping()
            assert not (await client.call_tool("what_ifs", {})).is_error

    asyncio.run(talk())


def test_a_defect_is_a_line_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file that disappears between the check and the reading, and other surprises, are no tracebacks.
    monkeypatch.setattr("seqpoint.front_door.what_ifs", lambda: 1 / 0)

    async def talk() -> str:
        async with Client(server(root)) as client:
            return (await client.call_tool("what_ifs", {})).content[0].text

    text = asyncio.run(talk())
    assert "ZeroDivisionError: division by zero; this is a defect" in text and "\n" not in text


def test_without_the_sdk_the_line_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(SeqPointError, match=r"seqpoint\[mcp\]"):
        server(root)


def test_the_skill_has_its_front_matter_and_names_tools_as_they_are(run: Run) -> None:
    text = skill()
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    front = dict(line.split(": ", 1) for line in head.splitlines())
    assert set(front) == {"name", "description"} and re.fullmatch(r"[a-z-]{1,64}", front["name"])
    assert len(front["description"]) <= 1024 and len(text) < 8000
    for name, arguments in re.findall(r"`(\w+)\(([^)]*)\)`", body):
        parameters = inspect.signature(getattr(TraceTools, name)).parameters
        assert set(re.findall(r"(\w+)(?:=|,|$)", re.sub(r'"\w+"', "", arguments))) <= set(parameters), name
    assert {name for name in TOOLS if f"`{name}" not in body} == set()
    assert run("mcp", "--skill").out == text
    assert run("mcp").code == 2 and run("mcp", "--root", "nowhere").err == "seqpoint: nowhere: no such folder\n"


def ns(text: str) -> float:
    """Return the ns of a duration as tables print it."""
    number, unit = text.split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


@pytest.mark.skipif(not NANOGPT.is_dir(), reason="the nanoGPT traces are not on this machine")
def test_four_calls_find_why_a_rank_is_slow() -> None:
    """Each call follows from the answer before; nothing here knows the rank or the cause."""
    tools = TraceTools(NANOGPT.parent)
    # 1. Which traces are there? Take the job of most ranks by its name.
    listed = checked(tools.describe())["tables"][0]["rows"]
    (name,) = [trace for trace, kind in listed if "nanogpt" in trace and kind.startswith("folder")]
    # 2. Whom do the others wait for, and what does this rank have more of than the others?
    (table,) = [t for t in checked(tools.characterize(name))["tables"] if t["title"].startswith("Time of each device")]
    ranks = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    late = max(ranks, key=lambda row: ns(row["others wait"]))
    excess = {
        cause: ns(late[cause]) - median(ns(row[cause]) for row in ranks)
        for cause in ("compute", "transfer", "waiting", "host", "other idle")
    }
    cause = max(excess, key=excess.__getitem__)
    # 3. If it is the host: is all of it slower, or does it do more?
    rank, source = int(late["rank"]), {"host": "ops"}.get(cause, "kernels")
    time_of = "self_ns" if source == "ops" else "dur_ns"
    per_rank = f"from {source} select rank, count(*), sum({time_of}) where iteration is not null group by rank"
    rows = {each: (count, total) for each, count, total in checked(tools.sql(name, per_rank))["tables"][0]["rows"]}
    more, longer = (rows[rank][i] / median(row[i] for each, row in rows.items() if each != rank) for i in (0, 1))
    # 4. Which operators take longer than on the other ranks, at the same number of calls?
    figures = f"count(*) as calls, sum({time_of}) as ns"
    per_name = f"""with a as (select name, rank = {rank} as late, rank, {figures} from {source}
      where iteration is not null group by all)
      select name, max(ns) filter (late) - median(ns) filter (not late) as extra,
        max(calls) filter (late) / median(calls) filter (not late) as calls from a group by name order by extra desc"""
    first, *_ = checked(tools.sql(name, per_name))["tables"][0]["rows"]
    assert (rank, cause) == (1, "host")
    assert 0.95 < more < 1.05 and longer > 1.1  # the same operators, and each takes longer
    assert first[0] == "CompiledFunction" and first[1] > 3e6 and first[2] == 1
