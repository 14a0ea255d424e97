"""What `seqpoint validate` and `calibrate` make of tables without rows, and how their tables look."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from profilers.errors import InvalidInputError
from seqpoint.cli import cli
from seqpoint.validation.suites import short_devices

HEADERS = {
    "kernels": "op,device,latency_ms,B,H",
    "collectives": "collective,size,num_workers,devices_per_node,time_stats.all_reduce.median",
    "models": "device,model,mode,seq_len,batch,e2e_ms",
    "training": "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
    "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)",
}
LIKE = "nvidia_a_quite_long_file_name_of_measured_operators.csv"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def empty(folder: Path, suite: str, suffix: str = ".csv") -> Path:
    file = folder / f"a100_dgx_all_reduce{suffix}"
    file.write_text(HEADERS[suite] + "\n")
    if suffix == ".parquet":
        pq.write_table(pcsv.read_csv(file), file)
    return file


@pytest.mark.parametrize(
    ("command", "suite", "suffix"),
    [
        *((("validate",), suite, ".csv") for suite in HEADERS),
        *((("calibrate",), suite, ".csv") for suite in HEADERS if suite != "models"),
        (("validate",), "kernels", ".parquet"),
        (("calibrate",), "kernels", ".parquet"),
    ],
)
def test_a_table_without_a_row_never_passes(tmp_path: Path, command: tuple[str], suite: str, suffix: str) -> None:
    more = ["--gate"] if command == ("validate",) else ["-o", tmp_path / "mine.json"]
    found = run(*command, suite, empty(tmp_path, suite, suffix), *more)
    assert found.exit_code == 1
    assert isinstance(found.exception, InvalidInputError)
    assert "there is no row" in str(found.exception)
    assert not (tmp_path / "mine.json").exists()


def test_a_gate_that_checks_nothing_says_so(tmp_path: Path) -> None:
    found = run("validate", "kernels", kernels(tmp_path, ["A100-PCIE-40GB"]), "--gate")
    assert found.exit_code == 0
    assert "no limit applies" in found.stderr
    assert "Limits" not in found.stdout


def kernels(folder: Path, names: Sequence[str] = ("A100-PCIE-40GB", "V100-PCIE-32GB", "P4")) -> Path:
    n, file = 40, folder / LIKE
    columns = {"op": [], "device": [], "B": [], "H": [], "latency_ms": []}
    for name in names:
        for i in range(n):
            row = ("ln", name, 2 ** (5 + i % 7), 512 + 64 * i, 0.01 * 4 ** (i % 6))
            for held, value in zip(columns.values(), row, strict=True):
                held.append(value)
    pcsv.write_csv(pa.table(columns), file)
    return file


def collectives(folder: Path) -> Path:
    file = folder / "a100_dgx_all_reduce.csv"
    columns = HEADERS["collectives"].split(",")
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(columns)
        out.writerows(
            ("all_reduce", 1024 * 2**i, n, min(n, 8), 0.02 + 1e-5 * 2**i) for n in (2, 4, 16) for i in range(17)
        )
    return file


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("suite", ["kernels", "collectives"])
def test_a_row_of_a_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run("validate", suite, (kernels if suite == "kernels" else collectives)(tmp_path), "--verbose").stdout
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    tables = re.findall(r"^─[─ ]+\n((?:.*  .*\n)+)", shown, re.MULTILINE)
    bodies = [line for table in tables for line in table.splitlines()]
    assert len(bodies) >= 10
    assert not [line for line in bodies if line.startswith(" ")], shown
    assert (LIKE if suite == "kernels" else "a100_dgx_all_reduce.csv") in shown


def test_sizes_are_in_the_second_table(tmp_path: Path) -> None:
    file = kernels(tmp_path)
    assert "0.2 ms" not in run("validate", "kernels", file).stdout
    assert "0.2 ms" in run("validate", "kernels", file, "--verbose").stdout


def test_devices_have_the_shortest_names_that_differ() -> None:
    assert short_devices(["A100-PCIE-40GB", "A100-PCIE-80GB"]) == {
        "A100-PCIE-40GB": "A100-PCIE-40GB",
        "A100-PCIE-80GB": "A100-PCIE-80GB",
    }
    assert short_devices(["A40", "A100-SXM4-80GB"]) == {"A40": "A40", "A100-SXM4-80GB": "A100"}
