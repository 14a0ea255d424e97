"""What the documentation shows runs as it is written."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from traces import write_trace

from profilers.devices.catalogue import USER_DEVICES
from seqpoint.cli import cli

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(), re.MULTILINE | re.DOTALL)


def test_the_tour_in_python_works_on_any_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tour,) = [text for text in blocks("README.md", "python") if "collect(" in text]
    for rank in (0, 1):
        write_trace(tmp_path / f"rank{rank}.json.gz", rank=rank)
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(compile(tour, "README.md", "exec"), {})
    assert re.fullmatch(r"\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\], \d+% assumed\n", shown.getvalue())


@pytest.mark.parametrize(
    "arguments",
    [
        ["devices", "My GPU"],
        ["project", "TRACE", "-w", "scale_device:My GPU"],
        ["project", "TRACE", "-w", "scale_device:My GPU+change_dtype:bf16->fp16+scale_links:2"],
        ["synthesize", "--device", "My GPU", "--layers", "2", "--tp", "2", "--dp", "2"],
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_the_example_of_a_device_of_ones_own_has_all_that_is_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "my_gpu.toml").write_text(blocks("docs/devices.md", "toml")[0])
    trace = write_trace(tmp_path / "t.json")
    monkeypatch.setenv(USER_DEVICES, str(tmp_path / "my_gpu.toml"))
    found = CliRunner().invoke(cli, [str(trace) if one == "TRACE" else one for one in arguments])
    assert found.exit_code == 0, found.exception


def test_the_plan_in_the_documentation_is_read_and_projected(tmp_path: Path) -> None:
    (plan,) = [text for text in blocks("docs/what_ifs.md", "toml") if "[[alternative]]" in text]
    (tmp_path / "plan.toml").write_text(plan)
    trace = write_trace(tmp_path / "t.json")
    found = CliRunner().invoke(cli, ["project", str(trace), "-w", f"@{tmp_path / 'plan.toml'}", "--json"])
    assert found.exit_code == 0, found.exception
    assert [row["title"] for row in json.loads(found.output)["rows"]] == ["DMA on MI355X", "own GEMM"]
