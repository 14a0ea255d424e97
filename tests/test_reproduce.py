"""A projection's JSON holds all that it takes to compute it again, bit for bit, in another process."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import write_trace

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from seqpoint.projecting import ProjectOptions, parse_what_ifs, project_trace
from seqpoint.reproducing import read_result, reproduce

WHAT_IFS = (
    "dma_collectives",
    "scale_device:MI300X+scale_links:1.7",
    "swap_kernel:*sgemm*:0.123456789012345",
    "fuse:all+remove_launch_overhead",
    "change_stream:gemm:new+change_priority:collectives:2+partition:collectives:0.125",
    "change_world_size:16+limit_power:0.6+cu_order:fair",
    "nothing",
)
PLAN = """
[[alternative]]
title = "slow DMA"
steps = ["dma_collectives"]
parameters = {dma_command_ns = 50000, cu_share_collective = 0.3}
"""


def seqpoint(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from seqpoint.cli import main; main(sys.argv[1:])"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "t.json", steps=3)


def recorded(trace: Path, *texts: str, **options: Any) -> dict[str, Any]:
    options = {"draws": 8, "seed": 5, **options}
    projection = project_trace(collect([trace]), parse_what_ifs(texts), ProjectOptions(**options))
    content: dict[str, Any] = json.loads(json.dumps(projection.to_dict()))
    return content


def test_another_process_computes_the_same_bits_from_the_json_alone(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    options = [word for text in (*WHAT_IFS, f"@{tmp_path / 'plan.toml'}") for word in ("-w", text)]
    done = seqpoint("project", trace, *options, "--draws", 9, "--seed", 3, "-i", 2, "-i", 1, "-j", 2, "--json")
    assert done.returncode == 0, done.stderr
    (tmp_path / "plan.toml").unlink()
    (tmp_path / "r.json").write_text(done.stdout)
    again = seqpoint("project", trace, "--from", tmp_path / "r.json", "-j", 1, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["identical"] and not found["differences"] and not found["notes"]
    assert found["compared"] > 8 * 9


def test_what_is_not_the_same_is_shown_and_exits_1(trace: Path, tmp_path: Path) -> None:
    content = recorded(trace, "dma_collectives")
    speedup = content["rows"][0]["speedup"]
    content["rows"][0]["speedup"] = speedup * (1 + 2**-52)
    content["provenance"]["libraries"]["numpy"] = "1.0"
    (tmp_path / "r.json").write_text(json.dumps(content))
    done = seqpoint("project", trace, "--from", tmp_path / "r.json", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["identical"]
    (one,) = found["differences"]
    assert one["where"] == "rows[0].speedup" and one["now"] == speedup
    assert "'numpy': '1.0'" in found["notes"][0]


def test_the_record_counts_not_what_this_version_ships(trace: Path) -> None:
    content = recorded(trace, "dma_collectives")
    content["provenance"]["parameters"]["replay_error"] = [0.0, -0.2, 0.3]
    found = reproduce(collect([trace]), content)
    assert not found.identical
    known = dict(load_parameters().known)
    known["replay_error"] = found_parameter = type(known["replay_error"])(0.0, -0.2, 0.3, "1", "", "assumed")
    values = {name: one.value for name, one in known.items()}
    other = recorded(trace, "dma_collectives", parameters=type(load_parameters())(known, values))
    assert found_parameter.value == other["provenance"]["parameters"]["replay_error"][0]
    assert reproduce(collect([trace]), other).identical


def test_keys_in_another_order_are_the_same(trace: Path) -> None:
    content = json.loads(json.dumps(recorded(trace, "scale_device:MI300X"), sort_keys=True))
    assert reproduce(collect([trace]), content).identical


def test_another_trace_is_an_error(trace: Path, tmp_path: Path) -> None:
    content = recorded(trace, "dma_collectives")
    with pytest.raises(InvalidInputError, match=r"another trace: its fingerprint .* \(of t.json\)"):
        reproduce(collect([write_trace(tmp_path / "other.json", steps=2)]), content)


def test_parameters_of_another_version_are_an_error(trace: Path) -> None:
    content = recorded(trace, "dma_collectives")
    del content["provenance"]["parameters"]["dma_command_ns"]
    with pytest.raises(InvalidInputError, match="other parameters than the result: dma_command_ns;"):
        reproduce(collect([trace]), content)


def test_a_device_that_the_user_named_is_named_again(trace: Path) -> None:
    content = recorded(trace, "scale_device:MI300X", device="V100-SXM2-16GB")
    assert content["provenance"]["device_known_by"] == "user"
    assert reproduce(collect([trace]), content).identical


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("draws", 0),
        ("draws", 1e9),
        ("draws", True),
        ("seed", -1),
        ("iterations", "all"),
        ("iterations", [1, "2"]),
        ("weights", [1.0]),
        ("weights", [1.0, -1.0, 1.0]),
        ("weights", None),
        ("parameters", {"dma_command_ns": [1, 2]}),
        ("parameters", {"dma_command_ns": [1, 2, 3]}),
        ("what_ifs", [{"steps": ["a"]}]),
        ("what_ifs", [{"title": "", "steps": [], "parameters": {}}]),
        ("what_ifs", None),
        ("device", 3),
        ("reading", {"iterations": 3}),
        ("reading", 3),
        ("trace_fingerprint", None),
    ],
)
def test_a_record_that_was_damaged_is_one_clear_line(trace: Path, tmp_path: Path, key: str, value: object) -> None:
    content = recorded(trace)
    content["provenance"][key] = value
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(BrokenFileError, match="provenance"):
        read_result(tmp_path / "r.json")


def test_a_number_of_thousands_of_digits_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"provenance": %s}' % ("9" * 5000))
    with pytest.raises(BrokenFileError, match=r"r.json: a number has thousands of digits$"):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize(
    "value",
    [[0.75, 0.5, 1e308], [1e-300, 1e-300, 1.0], [10**399, 1, 10**400], [1, -(10**400), 2], [1, 0.5, float("inf")]],
)
def test_parameters_that_cannot_be_drawn_from_are_named(trace: Path, tmp_path: Path, value: list[float]) -> None:
    content = recorded(trace, "dma_collectives")
    content["provenance"]["parameters"]["dma_command_ns"] = value
    (tmp_path / "r.json").write_text(json.dumps(content))
    done = seqpoint("project", trace, "--from", tmp_path / "r.json")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "r.json: provenance.parameters.dma_command_ns is not what" in done.stderr


def test_a_range_too_wide_to_draw_from_is_an_error() -> None:
    one = replace(load_parameters().known["dma_command_ns"], low=0.5, value=0.75, high=1e308)
    with pytest.raises(InvalidInputError, match="too wide a range"):
        for seed in range(100):
            one.draw(np.random.default_rng(seed))


@pytest.mark.parametrize("digest", [None, "0" * 64])
def test_parameters_that_have_not_the_recorded_digest_are_an_error(
    trace: Path, tmp_path: Path, digest: str | None
) -> None:
    content = recorded(trace, "dma_collectives")
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert read_result(tmp_path / "r.json")["rows"]
    content["provenance"]["parameters_sha256"] = digest
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(BrokenFileError, match=r"r.json: provenance.parameters do not match parameters_sha256"):
        read_result(tmp_path / "r.json")


def test_an_alternatives_number_of_400_digits_is_one_clear_line(trace: Path, tmp_path: Path) -> None:
    content = recorded(trace, "dma_collectives")
    content["provenance"]["what_ifs"][0]["parameters"] = {"dma_command_ns": 10**400}
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(BrokenFileError, match=r"r.json: provenance.what_ifs is missing or not"):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"provenance": {}}', "[" * 100_000, "\x00", '{"rows": [], "a": 1'])
def test_a_file_that_is_no_record_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(BrokenFileError, match=r"not JSON|project --json"):
        read_result(tmp_path / "r.json")
    with pytest.raises(NotFoundError, match="no such file"):
        read_result(tmp_path / "absent.json")


def test_from_takes_nothing_beside_it(trace: Path, tmp_path: Path) -> None:
    done = seqpoint("project", trace, "--from", tmp_path / "r.json", "--seed", 1)
    assert done.returncode == 2 and "--from takes all other options from the result" in done.stderr
