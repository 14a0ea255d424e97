"""`seqpoint simulate memory`: tables, JSON, charts, the list of choices, and one line for each wrong input."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from replay.memory.dram import DramSimulator, Traffic, find_dram
from replay.memory.streams import stream_kinds
from replay.memory.system import load_policies

#: A copy of 64 KiB, by a quick device: it touches each byte once.
COPY = ("copy", 32768, "--device", "CachePolicy-GPU")
BYTES = 65536
POLICIES = ("--policy", "Uncached", "--policy", "CacheRW")


def rows(run: Run, *arguments: object) -> list[dict[str, Any]]:
    result = run("simulate", "memory", *arguments, "--json")
    assert result.code == 0, result.err
    content: list[dict[str, Any]] = json.loads(result.out)["rows"]
    return content


def test_a_copy_reads_and_writes_each_byte_once_under_every_policy(run: Run) -> None:
    content = json.loads(run("simulate", "memory", *COPY, "--json").out)
    assert [row["policy"] for row in content["rows"]] == list(load_policies())
    assert {(row["dram_read_bytes"], row["dram_write_bytes"]) for row in content["rows"]} == {(BYTES, BYTES)}
    assert {row["l2_hit_share"] for row in content["rows"]} == {0.0}
    assert content["footprint_bytes"] == 2 * BYTES and content["device"] == "CachePolicy-GPU"
    assert {row["llc_hit_share"] for row in content["rows"]} == {None}, "the device has no last-level cache"


def test_each_key_of_a_row_is_named_in_the_help(run: Run) -> None:
    text = " ".join(run("simulate", "memory", "--help").out.split())
    (row,) = rows(run, *COPY, "--policy", "CacheRW")
    assert [key for key in row if key not in text] == []


def test_time_is_the_longest_of_three_and_the_series_hold_all_traffic(run: Run) -> None:
    for row in rows(run, "gemm", 256, 256, 256, "--device", "CachePolicy-GPU", *POLICIES):
        assert row["time_ns"] == max(row["compute_ns"], row["caches_ns"], row["memory_ns"]) == row[f"{row['bound']}_ns"]
        assert row["bandwidth_gbps"] * row["time_ns"] == pytest.approx(row["dram_read_bytes"] + row["dram_write_bytes"])
        assert sum(row["over_time"]["bytes"]) == sum(row["over_time"]["bytes_by_channel"])
        assert row["over_time"]["bytes"] and sum(row["over_time"]["bytes"]) <= (
            row["dram_read_bytes"] + row["dram_write_bytes"]
        )


def test_the_tables_fit_and_are_explained(run: Run) -> None:
    result = run("simulate", "memory", *COPY, *POLICIES, "--over-time", "--explain")
    assert result.code == 0, result.err
    for text in (
        "Time by cache policy",
        "Caches and DRAM by cache policy",
        "DRAM over time: CacheRW",
        "busiest channel:",
    ):
        assert text in result.out


def test_a_device_with_a_last_level_cache_keeps_what_is_written(run: Run) -> None:
    (row,) = rows(run, "copy", 32768, "--device", "MI300X", "--policy", "Device")
    assert (row["dram_read_bytes"], row["dram_write_bytes"], row["llc_hit_share"]) == (BYTES, 0, 0.0)


def test_warm_operands_are_not_read_again(run: Run) -> None:
    (cold,) = rows(run, *COPY, "--policy", "CacheRW")
    (warm,) = rows(run, *COPY, "--policy", "CacheRW", "--warm", "all")
    (half,) = rows(run, *COPY, "--policy", "CacheRW", "--warm", "output_0")
    assert (cold["dram_read_bytes"], half["dram_read_bytes"], warm["dram_read_bytes"]) == (BYTES, BYTES, 0)


def test_kernels_with_warm_operands_still_share_their_other_arrays(run: Run) -> None:
    attention = ("attention_naive", 2, 128, 128, 64, "--device", "CachePolicy-GPU", "--dtype", "fp32")
    (cold,), (warm,) = (rows(run, *attention, "--policy", "CacheRW", *how) for how in ((), ("--warm", "B")))
    inputs = 2 * 128 * 64 * 4
    assert (cold["dram_read_bytes"], warm["dram_read_bytes"]) == (3 * inputs, inputs), "keys and values are warm"


def test_a_larger_cache_and_other_memory_are_used(run: Run) -> None:
    changed = ("--cache", "L2=2", "--cache", "L2.ways=8", "--dram", "HBM3:1000", "--mapping", "row")
    content = json.loads(run("simulate", "memory", *COPY, "--policy", "CacheRW", *changed, "--json").out)
    assert content["caches"]["l2"]["size_bytes"] == 2 * 4 * 2**20 and content["caches"]["l2"]["ways"] == 8
    dram = content["dram"]
    assert (dram["standard"], dram["mapping"], round(dram["bandwidth_gbps"])) == ("HBM3", "row", 1000)


def test_a_few_accesses_stand_for_all_with_a_stated_error(run: Run) -> None:
    large = ("copy", 4_000_000, "--device", "CachePolicy-GPU", "--policy", "Uncached")
    ((all_,), (some,)) = (rows(run, *large, "--accesses", number) for number in (0, 20_000))
    assert (all_["simulated_share"], all_["error_share"]) == (1.0, 0.0)
    assert some["simulated_share"] < 0.5
    assert some["dram_read_bytes"] == pytest.approx(all_["dram_read_bytes"], rel=0.02)
    assert some["time_ns"] == pytest.approx(all_["time_ns"], rel=0.1)


def test_a_policy_of_a_file_runs_beside_those_that_are_shipped(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('policies = [{ name = "Mine", loads = true, stores = true, rinse = true }]')
    named = [row["policy"] for row in rows(run, *COPY, "--policy-file", file)]
    assert named == [*load_policies(), "Mine"]
    assert [row["policy"] for row in rows(run, *COPY, "--policy-file", file, "--policy", "mine")] == ["Mine"]


def test_the_policy_in_the_documentation_is_read(run: Run, tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "systems" / "caching.md").read_text()
    (policies,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.toml").write_text(policies)
    names = [row["policy"] for row in rows(run, *COPY, "--policy-file", "mine.toml", "--policy", "LoadsRinsed")]
    assert names == ["LoadsRinsed"]
    assert [name for name in load_policies() if f"| `{name}` |" not in page] == []


def test_an_option_of_the_operator_changes_its_kernel(run: Run) -> None:
    options = ("--device", "CachePolicy-GPU", "--policy", "Uncached")
    (few,) = rows(run, "elementwise", 32768, *options)
    (many,) = rows(run, "elementwise", 32768, *options, "--option", "reads=3")
    assert (few["dram_read_bytes"], many["dram_read_bytes"]) == (BYTES, 3 * BYTES)


def test_the_list_names_every_operator_policy_and_mapping(run: Run) -> None:
    listed = run("simulate", "memory")
    assert listed.out == run("simulate", "memory", "--list").out
    content = json.loads(run("simulate", "memory", "--list", "--json").out)
    assert [row["operator"] for row in content["operators"]] == [kind.name for kind in stream_kinds()]
    assert [row["policy"] for row in content["policies"]] == list(load_policies())
    assert {"MI300X", "A100-SXM4-80GB"} <= {row["device"] for row in content["devices"]}
    assert "xor" in content["mappings"] and "HBM3" in content["drams"]


ERRORS = {
    "gem 1 2 3": "no operator 'gem' has a stream; did you mean gemm",
    "gemm 0 16 16": "gemm: m is 0",
    "gemm 16 16": "gemm takes m n k, given 2 numbers",
    "copy 100 --dtype fp17": "dtype 'fp17'",
    "copy 100 --policy Cash": "no cache policy is called 'Cash'",
    "copy 100 --device Nope": "no device is called 'Nope'",
    "copy 100 --device MI100 --cache LLC=2": "no last-level cache",
    "copy 100 --device MI100 --mapping rorabgchco": "misses the 2 bits of ba (bank)",
    "copy 100 --device MI100 --mapping nope": "address mapping 'nope'",
    "copy 100 --device MI100 --cache L2.ways=3 --cache L2.replacement=plru": "3 ways with plru",
    "copy 100 --device MI100 --cache L2.ways=x": "'x' is not a whole number",
    "copy 100 --device MI100 --cache L2.colour=3": "no figure 'colour'",
    "copy 100 --device MI100 --cache L2.ways=0": "0 ways",
    "copy 100 --device MI100 --cache L4=2": "no cache 'L4'",
    "copy 100 --device MI100 --cache L2=-1": "a factor of a size",
    "copy 100 --device MI100 --cache L2=nan": "a factor of a size",
    "copy 100 --device MI100 --cache LLC.ways=4": "MI100 has no LLC",
    "copy 100 --device MI100 --dram HBM9": "no DRAM standard 'HBM9'",
    "copy 100 --device MI100 --dram HBM3:fast": "'fast' is not a number",
    "copy 100 --device MI100 --dram HBM3:-5": "must be positive",
    "copy 100 --device MI100 --warm weights": "no operand 'weights'",
    "copy 100 --device MI100 --option colour=3": "no option 'colour'",
    "copy 100 --policy-file nope.toml": "nope.toml",
    "copy 100 --plot chart.png": ".html",
    "copy 100 --plot nope/chart.html": "nope",
}


@pytest.mark.parametrize("arguments", ERRORS)
def test_a_wrong_input_is_told_in_one_line(run: Run, arguments: str) -> None:
    result = run("simulate", "memory", *arguments.split())
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1 and ERRORS[arguments] in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        "copy 1e3",
        "copy 100 --cache L2",
        "copy 100 --accesses -1",
        "--policy CacheRW",
        "copy 100 --json --over-time",
        "copy --list --device MI100",
    ],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: str) -> None:
    assert run("simulate", "memory", *arguments.split()).code == 2


def test_an_interrupt_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seqpoint.memory_simulation.simulate", stop)
    result = run("simulate", "memory", *COPY)
    assert (result.code, result.out, result.err.strip()) == (130, "", "seqpoint: interrupted")


def test_progress_names_each_policy() -> None:
    seen: list[tuple[int, int, str]] = []
    chosen = ["Uncached", "CacheRW"]
    sp.simulate_memory("copy", [1024], "CachePolicy-GPU", policies=chosen, progress=lambda *step: seen.append(step))
    assert seen == [(0, 2, "Uncached"), (1, 2, "CacheRW")]


def test_charts_are_written_to_a_page_that_runs_no_text_of_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('policies = [{ name = "</script><img src=x onerror=alert(1)>", loads = true, stores = true }]')
    name = "</script><img src=x onerror=alert(1)>"
    result = run(
        "simulate", "memory", *COPY, "--policy-file", file, "--policy", name, "--policy", "Uncached", "--plot", "a.html"
    )
    assert result.code == 0, result.err
    assert result.err.endswith("wrote a.html\n")
    page = (tmp_path / "a.html").read_text()
    assert "<img" not in page.replace("<\\/script><img", "") and "Content-Security-Policy" in page
    for title in ("Time by cache policy", "Traffic by level", "Row hits of the DRAM", "DRAM channels over time"):
        assert title in page


@pytest.fixture(scope="module")
def gemm() -> "sp.front_door.SimulatedMemory":  # type: ignore[name-defined]
    return sp.simulate_memory("gemm", [256, 256, 256], "CachePolicy-GPU", policies=["Uncached", "CacheRW"])


def test_a_result_shows_itself(gemm: Any) -> None:
    assert list(gemm.table()["policy"]) == ["Uncached", "CacheRW"]
    assert "CacheRW" in repr(gemm) and "Time by cache policy" in gemm._repr_html_()
    series = gemm.over_time("CacheRW")
    assert series["bytes"].sum() == gemm.result("CacheRW").dram.bytes_by_channel.sum()
    assert (series["row_hit_share"] <= 1).all() and (series["busiest_over_mean"] >= 1).all()
    with pytest.raises(NotFoundError, match="'Device' was not simulated; there are Uncached, CacheRW"):
        gemm.result("Device")


def test_a_chart_has_a_bar_and_three_marks_for_each_policy(gemm: Any) -> None:
    layers = list(gemm.plot())
    assert [type(layer).__name__ for layer in layers] == ["Rectangles", "Points", "Points", "Points"]
    assert [len(layer) for layer in layers] == [2, 2, 2, 2]
    ends = layers[0].dimension_values("x1", expanded=True)
    assert max(ends) / min(ends) == pytest.approx(max(gemm.table()["time_ns"]) / min(gemm.table()["time_ns"]))
    assert [layer.label for layer in list(gemm.plot_traffic())[1:]] == ["L1", "L2", "DRAM reads", "DRAM writes"]


def test_the_heat_map_holds_the_share_of_each_channel(gemm: Any) -> None:
    counters, dram = gemm.result("Uncached").dram, gemm.system.dram
    image = gemm.plot_channels("Uncached")
    busy = image.dimension_values("busy", flat=False)
    assert busy.shape == counters.bytes_over_time.T.shape and 0 < busy.max() <= 101
    moved = busy.sum() / 100 * dram.bandwidth / dram.channels * counters.window_seconds
    assert moved == pytest.approx(counters.bytes_by_channel.sum())


def test_operators_are_compared_under_the_same_policies(gemm: Any) -> None:
    copied = sp.simulate_memory("copy", [4096], "CachePolicy-GPU", policies=["Uncached", "CacheRW"])
    chart = list(gemm.plot_beside(copied))
    first = chart[1].dimension_values("y1", expanded=True)
    assert [layer.label for layer in chart[1:]] == ["Uncached", "CacheRW"] and list(first) == [1.0, 1.0]
    other = sp.simulate_memory("copy", [4096], "CachePolicy-GPU", policies=["CacheRW"])
    with pytest.raises(InvalidInputError, match="under the same policies"):
        gemm.plot_beside(other)


def test_counters_of_two_simulations_follow_each_other() -> None:
    dram = find_dram("HBM2")
    address = np.arange(4096, dtype=np.int64) * dram.access_bytes
    halves = []
    for part in (address[:1024], address[1024:]):
        simulator = DramSimulator(dram)
        simulator.serve(Traffic(part, np.zeros(len(part), dtype=np.uint8)))
        halves.append(simulator.finish())
    both = halves[0].followed_by(halves[1])
    assert both.reads == 4096 and both.cycles == halves[0].cycles + halves[1].cycles
    assert (both.bytes_over_time.sum(axis=0) == both.bytes_by_channel).all()
    assert both.row_hits_over_time.sum() == both.row_hits
    assert both.utilisation == pytest.approx(4096 * dram.burst_cycles / dram.channels / both.cycles)
    low, high = sorted(half.efficiency for half in halves)
    assert low <= both.efficiency <= high
    windows = halves[0]
    for _ in range(9):
        windows = windows.followed_by(windows)
    assert len(windows.bytes_over_time) <= 256 and windows.bytes_over_time.sum() == 512 * 1024 * dram.access_bytes
