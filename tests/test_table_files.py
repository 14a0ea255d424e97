"""Tables of results as a spreadsheet, Markdown and CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path

import click
import openpyxl
import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.errors import InvalidInputError
from seqpoint.cli.options import output_options
from seqpoint.cli.output import print_result
from seqpoint.notebook import DataFrame, Result, Table, data_frame
from seqpoint.table_files import Sheet, write_sheets
from tests.commands import Run
from tests.traces import write_trace

EVIL = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "<b>a|b</b>")


class Evil(Result):
    """Tables with names that a spreadsheet would run."""

    def summary(self) -> Sequence[str]:
        return ["verdict"]

    def tables(self) -> list[Table | str]:
        rows = [(name, "1,234", f"+{n}.5 us", "-") for n, name in enumerate(EVIL * 20)]
        columns = ("kernel~", "kernels", "time", "share %")
        return [
            Table("What: [all], in order", columns, rows),
            "a line",
            Table("what  all", columns, rows, verbose=True),
        ]

    def table(self) -> DataFrame:
        return data_frame({"name": list(EVIL), "time_ns": range(6)})


def read(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the sheets of a workbook; a formula would be read as its text, and has another type."""
    book = openpyxl.load_workbook(path)
    assert {cell.data_type for page in book for row in page.iter_rows() for cell in row} <= {"s", "n"}
    return {page.title: list(page.iter_rows(values_only=True)) for page in book}


def test_a_workbook_has_all_rows_as_numbers_and_no_formula(tmp_path: Path) -> None:
    sheets = read(Evil().save(tmp_path / "x.xlsx"))
    assert list(sheets) == ["What   all", "what  all", "Rows with all digits", "Columns"]
    head, first, second, *_ = sheets["What   all"]
    assert head == ("kernel", "kernels", "time (ms)", "share %") and len(sheets["What   all"]) == 121
    assert first == ("=1+1", 1234, 0.0005, None) and second[2] == 0.0015
    assert sheets["Rows with all digits"][1] == ("=1+1", 0)
    assert sheets["Columns"][0] == ("table", "column", "meaning") and any("kernel" in row for row in sheets["Columns"])


def test_csv_and_markdown_have_the_same_rows(tmp_path: Path) -> None:
    with Evil().save(tmp_path / "x.csv").open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[:3] == [["What: [all], in order"], ["kernel", "kernels", "time (ms)", "share %"],
                        ["'=1+1", "1234", "0.0005", ""]]  # fmt: skip
    assert [row[0] for row in rows[2:7]] == ["'=1+1", "'+cmd|' /C calc'!A0", "'-2+3", "'@SUM(1)", " =1"]
    text = Evil().save(tmp_path / "x.md").read_text()
    assert text.startswith(
        "## What: \\[all\\], in order\n\n| kernel | kernels | time | share % |\n| --- | --: | --: | --: |\n"
    )
    assert "| \\<b\\>a\\|b\\</b\\> | 1,234 |" in text and text.count("1,234") == 240 and "\n## Columns\n" in text


@pytest.mark.parametrize("name", ["x.pdf", "x", "missing/x.md"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(name: str, run: Run) -> None:
    done = run("describe", "no.trace", "--save-tables", name)
    assert done.code == 1 and name.rsplit("/", 1)[-1] in done.err and "no.trace" not in done.err


def test_a_table_of_more_rows_than_a_sheet_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = Evil().save(tmp_path / "x.xlsx")
    before = path.read_bytes()
    with pytest.raises(
        InvalidInputError, match="'Kernels' has 1,048,576 rows, and a sheet has room for 1,048,576 with"
    ):
        write_sheets(path, [Sheet("Kernels, all", ("n",), (False,), range(1 << 20))])  # type: ignore[arg-type]
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["x.xlsx"]


def test_commands_write_what_they_print_and_more(run: Run, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json")
    done = run("describe", trace, "--top", "1", "--save-tables", "d.xlsx")
    assert done.code == 0 and done.err.endswith("wrote d.xlsx\n")
    sheets = read(tmp_path / "d.xlsx")
    assert len(sheets) > 4 and list(sheets)[-1] == "Columns"
    assert run("advise", trace, "--save-tables", "a.md").code == 0 and "what_if" in (tmp_path / "a.md").read_text()
    assert run("readers", "--save-tables", "r.md").code == 0 and "| kineto |" in (tmp_path / "r.md").read_text()
    assert run("devices", "H200", "--save-tables", "h.csv").code == 0 and "H200" in (tmp_path / "h.csv").read_text()
    assert run("describe", trace, "--json", "--save-tables", "j.md").code == 2
    assert sp.characterize(trace).save(tmp_path / "c.md").read_text().startswith("## ")


def test_a_failed_command_writes_nothing_and_a_failed_gate_does(tmp_path: Path) -> None:
    @click.command()
    @click.argument("status", type=int)
    @output_options
    def command(status: int, json_: bool) -> None:
        if status == 2:
            raise InvalidInputError("no")
        print_result(Evil(), json_)
        click.get_current_context().exit(status)

    path = tmp_path / "x.md"
    assert CliRunner().invoke(command, ["2", "--save-tables", str(path)]).exit_code == 1 and not path.exists()
    assert CliRunner().invoke(command, ["1", "--save-tables", str(path)]).exit_code == 1 and path.exists()
