"""Every column of every printed table has a sentence, which --explain prints.

A fixture of all tests (`explained_columns`) fails on a printed column without a sentence. The tests here print the
tables of the main commands, so that none is left to chance.
"""

import ast
import re
from pathlib import Path

import pytest
from commands import Run
from traces import transformer, write_trace

import seqpoint as sp
from profilers.trace import save_trace
from seqpoint.notebook import all_sentences, sentences

ROOT = Path(__file__).parents[1]


SHARED, TABLES = all_sentences().shared, all_sentences().tables


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job of two ranks with collectives and several lengths."""
    return save_trace(transformer(128, 256, 128, tensor=2), tmp_path / "job.trace")


@pytest.mark.parametrize(
    "command",
    [
        "describe JOB",
        "describe JOB --by kernel --by operator --by host",
        "iterations JOB",
        "select JOB --max-points 2",
        "replay JOB -i 1",
        "analyze JOB",
        "analyze JOB -w overlap:ideal",
        "project JOB -i 1 -w overlap:ideal -w scale_device:MI355X --draws 8",
        "ingest JOB -o copy.trace",
        "what-ifs",
        "what-ifs change_stream",
        "devices",
        "devices MI300X",
        "readers",
        "selectors",
        "formats",
        "synthesize",
    ],
)
def test_each_column_is_explained(run: Run, job: Path, tmp_path: Path, command: str) -> None:
    trace = write_trace(tmp_path / "raw.json") if command.startswith("ingest") else job
    result = run(*command.replace("JOB", str(trace)).split(), "--explain")
    assert result.code == 0, result.err
    assert len(re.findall(r"^  [^ ].*: .+[.]$", result.out, re.MULTILINE)) >= 2


def test_a_column_is_explained_once_and_only_when_asked(run: Run, job: Path) -> None:
    lines = run("describe", job, "--explain").out.splitlines()
    assert lines.count(f"  rank: {SHARED['rank']}") == 1
    assert SHARED["rank"] not in run("describe", job).out


def test_json_has_no_tables_to_explain(run: Run, job: Path) -> None:
    for options in (("--json", "--explain"), ("--explain", "--json")):
        result = run("describe", job, *options)
        assert (result.code, result.out) == (2, "")
        assert "--json prints none" in result.err


def test_the_fixture_fails_on_a_column_without_a_sentence() -> None:
    from seqpoint.cli.output import print_table

    with pytest.raises(AssertionError, match=r"write a sentence on \['flavour'\] in datasets/columns.toml"):
        print_table("Events", ("kind~", "flavour"), [])


def test_a_table_comes_before_what_tables_share() -> None:
    assert sentences("Devices", ["name"]) != sentences("Devices in the steps", ["name"])
    assert sentences("Points", ["latency", "loss"])["loss"] == TABLES["Points*"]["*"]


@pytest.mark.parametrize("columns", [SHARED, *TABLES.values()])
def test_sentences_are_sentences(columns: dict[str, str]) -> None:
    wrong = [text for text in columns.values() if not re.fullmatch(r"\w.*[.]", text) or len(text.split()) > 30]
    assert wrong == []


def test_a_report_explains_each_column_too(job: Path, tmp_path: Path) -> None:
    page = sp.report(job, tmp_path / "a.html", ["overlap:ideal"]).read_text()
    headings = re.findall(r'<th class="\w+" title="([^"]*)">([^<]*)</th>', page)
    assert len(headings) == page.count("<th ") > 20
    assert [name for sentence, name in headings if not sentence] == []


#: Functions that make a table, whose first two arguments are its title and its columns.
MAKERS = {"Table", "print_table", "table_of", "size_table"}


def literals(scope: ast.AST) -> dict[str, ast.expr]:
    """Return what the names of a function or module are assigned to."""
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return {node.targets[0].id: node.value for node in nodes}  # type: ignore[attr-defined]


def texts(node: ast.expr | None, names: dict[str, ast.expr], depth: int = 0) -> list[str]:
    """Return the literal texts of columns or of a title, through names; what a program computes becomes an x."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)]
    if isinstance(node, ast.Name) and node.id in names and depth < 4:
        return texts(names[node.id], names, depth + 1)
    if isinstance(node, ast.Tuple | ast.List):
        return [text for part in node.elts if not isinstance(part, ast.Starred) for text in texts(part, names, depth)]
    if isinstance(node, ast.Dict):
        return [text for key in node.keys for text in texts(key, names, depth)]
    if isinstance(node, ast.BinOp):
        return [*texts(node.left, names, depth), *texts(node.right, names, depth)]
    if isinstance(node, ast.Call) and node.args:  # MappingProxyType({...})
        return texts(node.args[0], names, depth)
    return []


def written_tables() -> list[tuple[str, str, list[str]]]:
    """Return the file, title and literal columns of each table that the source makes."""
    tables = []
    for path in sorted((ROOT / "seqpoint").rglob("*.py")):
        module = ast.parse(path.read_text())
        of_module = literals(module)
        for scope in [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]:
            names = of_module | literals(scope)
            for call in [node for node in ast.walk(scope) if isinstance(node, ast.Call) and len(node.args) > 1]:
                if isinstance(call.func, ast.Name) and call.func.id in MAKERS:
                    title = "".join(texts(call.args[0], names)) or "*"
                    tables.append((path.name, title, texts(call.args[1], names)))
    return tables


def test_each_column_that_the_source_names_is_explained() -> None:
    tables = written_tables()
    assert sum(bool(columns) for _, _, columns in tables) >= 35
    somewhere = {name for columns in TABLES.values() for name in columns}
    missing = [
        f"{file}: table {title!r}: column {name!r}"
        for file, title, columns in tables
        for name in (" ".join(text.removesuffix("~").split()) for text in columns)
        if "x" not in name.split() and not sentences(title, [name]) and not (title == "*" and name in somewhere)
    ]
    assert missing == [], "write a sentence on each in datasets/columns.toml, for --explain"
