"""Processing in memory: commands by hand and beside the DRAM simulator, closed forms, and tasks of the engine."""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.analysis.critical_path import PIM, attribution, critical_path
from replay.analysis.idle import resource_use
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline, replay
from replay.graph.assembly import Assembly
from replay.graph.graph import PIM_STREAM, RESOURCES, Basis, KernelGraph
from replay.memory.dram import DramSimulator, Traffic, find_dram
from replay.memory.pim import (
    ALL_BANKS,
    EXECUTE,
    PARTS,
    READ,
    WRITE,
    Command,
    CopyLayout,
    Pim,
    PimTime,
    _counts,
    add_pim_tasks,
    exit_commands,
    find_pim,
    issue_times,
    load_pims,
    pim_columns,
    pim_quantization,
    row_commands,
)
from replay.what_ifs import parse_what_if
from replay.writers.perfetto import write_perfetto

DRAM = find_dram("HBM_PIM")
#: A stack at 1 GHz: a cycle is a ns.
STACK = Pim(DRAM)
#: Values that fill a row of each unit of the stack at 32 bits.
ROW = DRAM.channels * STACK.units * 256


def test_the_figures_are_those_of_the_file() -> None:
    assert load_pims()["HBM_PIM"] == STACK


def test_commands_to_all_banks_by_hand() -> None:
    row = row_commands(["read", "read", "execute", "execute", "write"])
    issued, end = issue_times(STACK, [*row, *row])
    # tRCD 14, then columns tCCD_L 4 apart; from the write 4 + 2 + 16 to the precharge at 52; tRP 14.
    assert issued.tolist() == [0, 14, 18, 22, 26, 30, 52, 66, 80, 84, 88, 92, 96, 118]
    assert end == 132


def test_a_short_row_stays_open_for_its_least_time() -> None:
    issued, end = issue_times(STACK, row_commands(["read"]))
    assert issued.tolist() == [0, 14, 33] and end == 47  # tRAS, tRC


def test_a_refresh_waits_for_closed_rows_and_delays_the_next_activate() -> None:
    issued, end = issue_times(STACK, [*row_commands(["read"]), Command("refresh"), Command("activate")])
    assert issued[-2:].tolist() == [47, 397] and end == 397


def test_the_switch_of_modes_by_hand() -> None:
    entered, ready = issue_times(STACK, STACK.entry_commands())
    # Precharge at 0; four banks from 14 on, tRRD_L 6 or tRRD_S 4 apart; the last is written at 44, closed at 66. Then
    # all banks: activate at 80, program from 94 to 106, register at 110, closed at 132.
    assert entered[[0, 1, 4, 8, 12, 13, 14, 18, 19]].tolist() == [0, 14, 30, 44, 66, 80, 94, 110, 132]
    assert ready == 146
    assert issue_times(STACK, exit_commands())[1] == 3 * (14 + 22 + 14)
    assert STACK.switch_ns == 146 + 150


def test_an_ordinary_stream_has_the_external_bandwidth_in_both_simulations() -> None:
    channel = replace(DRAM, channels=1, mapping="rorabachcobg")
    accesses = 16 * 32 * 40
    simulator = DramSimulator(channel)
    simulator.serve(Traffic(np.arange(accesses, dtype=np.int64) * 32, np.zeros(accesses, dtype=np.uint8)))
    refreshed = 1 - channel.timing.rfc_ns / channel.timing.refi_ns
    simulated = accesses * 32 / simulator.finish().seconds
    assert channel.bandwidth == 16e9
    assert simulated == pytest.approx(channel.bandwidth * refreshed, rel=0.02)
    opened = [Command("activate", bank) for bank in range(16)]
    reads = [Command("read", 4 * group) for _ in range(128) for group in range(4)]
    issued, _ = issue_times(STACK, [*opened, *reads])
    assert 32 * 400 / (issued[-1] - issued[-401]) * 1e9 == channel.bandwidth
    same_group = [Command("read", 0)] * 8
    assert set(np.diff(issue_times(STACK, [*opened, *same_group])[0])[-7:]) == {4.0}


def test_units_read_four_times_the_external_bandwidth() -> None:
    issued, end = issue_times(STACK, row_commands(["read"] * 32) * 10)
    of_channel = STACK.units * 32 / np.diff(issued[1:33]).mean() * 1e9
    assert of_channel == 4 * DRAM.bandwidth / DRAM.channels == STACK.internal_bandwidth / DRAM.channels
    # Rows are opened and closed between: 14 + 31 * 4 + 6 + 14 ns for 32 accesses.
    assert end == 10 * 158


def quantization_commands(elements: int, target_bits: tuple[float, ...]) -> Iterator[Command]:
    """Yield the commands of one channel that quantise FP32 values to plain copies; a row ends with a write."""
    counts = _counts(np.asarray(float(elements)), 32, target_bits, (STACK, CopyLayout()))
    rows, *columns = (int(n) for n in (counts.rows, counts.reads, counts.executes, counts.writes))
    limits = [[total * row // rows for row in range(rows + 1)] for total in columns]
    for bounds in zip(*map(pairwise, limits), strict=True):
        kinds = zip((READ, EXECUTE, WRITE), bounds, strict=True)
        yield from row_commands(kind for kind, (begin, end) in kinds for _ in range(end - begin))


@pytest.mark.parametrize("target_bits", [(9,), (9, 9), (9, 9, 6, 6), (4.25,), (32, 32)])
@pytest.mark.parametrize("elements", [ROW // 16, ROW, 5 * ROW + ROW // 2])
def test_the_closed_form_has_the_time_of_its_commands(elements: int, target_bits: tuple[float, ...]) -> None:
    commands = list(quantization_commands(elements, target_bits))
    assert {command.bank for command in commands} == {ALL_BANKS}
    unrefreshed = replace(STACK, dram=replace(DRAM, timing=replace(DRAM.timing, refi_ns=0)))
    time = pim_quantization(elements, 32, target_bits, unrefreshed)
    assert time.parts["refresh"] == 0
    assert 1e9 * float(time.seconds - time.parts["mode_switch"]) == pytest.approx(issue_times(STACK, commands)[1])


def test_the_time_of_a_tensor_by_hand() -> None:
    # 16 rows a unit, each 32 reads, 64 instructions and 18 writes of 4 ns, and 14 + 18 + 14 ns for the row.
    time = pim_quantization(16 * ROW, 32, (9, 9), STACK)
    ns = {name: float(1e9 * part) for name, part in time.parts.items()}
    rows_ns = 16 * (114 * 4 + 46)
    slots = 3  # of 0.5 us each less than 3.9 - 0.35 - 0.296 - 0.046 us
    assert slots == np.ceil(rows_ns / STACK.slot_ns)
    assert [ns[name] for name in PARTS[:4]] == pytest.approx([(16 + slots - 1) * 46, 2048, 4096, 1152])
    assert ns["mode_switch"] == pytest.approx(slots * 296)
    held = rows_ns + (slots - 1) * 46 + slots * 296
    assert ns["refresh"] == pytest.approx(held * 350 / (3900 - 350))
    assert 1e9 * float(time.seconds) == pytest.approx(held * 3900 / 3550) == pytest.approx(sum(ns.values()))
    assert time.basis == Basis.ASSUMED


def test_tensors_together_have_the_times_that_each_has_alone() -> None:
    elements = np.array([[0, 1, 1000], [ROW, 10**7, 3 * 10**8]])
    together = pim_quantization(elements, 16, (9, 6), STACK, CopyLayout(transposed=1))
    each = [float(pim_quantization(n, 16, (9, 6), STACK, CopyLayout(transposed=1)).seconds) for n in elements.ravel()]
    assert together.seconds.ravel().tolist() == each and each == sorted(each) and each[0] == 0
    assert set(together.parts) == set(PARTS)


def test_half_of_the_channels_takes_more_than_twice_as_long() -> None:
    alone, shared = (pim_quantization(10**8, 32, (9, 9), replace(STACK, share=share)) for share in (1.0, 0.5))
    assert 2 < float(shared.seconds / alone.seconds) < 2.3  # modes are switched twice as often
    held = shared.seconds - shared.parts["refresh"]
    assert float(shared.parts["other_use"] / held) == pytest.approx(0.5)


def test_tiles_keep_both_directions_in_an_open_row() -> None:
    plain, tiled, rows, large = (
        pim_quantization(10**8, 32, (9, 9), STACK, layout)
        for layout in (
            CopyLayout(), CopyLayout(transposed=1), CopyLayout(transposed=1, tiled=False), CopyLayout(32, transposed=1),
        )
    )  # fmt: skip
    assert float(tiled.parts["read"] / plain.parts["read"]) == 2  # exponents along rows, then along columns
    assert tiled.seconds < 1.5 * plain.seconds and rows.seconds > 4 * tiled.seconds
    assert tiled.seconds < large.seconds < rows.seconds  # a tile of 32 x 32 values fills four rows


def test_a_write_that_quantises_needs_no_instructions_but_for_transposed_blocks() -> None:
    fused = replace(STACK, instructions=0)
    plain, both = (pim_quantization(10**8, 32, (9, 9), fused, CopyLayout(transposed=n)) for n in (0, 1))
    assert plain.parts["compute"] == 0 and both.parts["compute"] == both.parts["read"] / 2


def test_slower_units_delay_columns() -> None:
    assert replace(STACK, clock_hz=125e6).column_ns == 8 and replace(STACK, clock_hz=1e9).column_ns == 4
    assert replace(STACK, lanes=8).column_ns == 8


@pytest.mark.parametrize("name", ["MI210", "H100-SXM5-80GB", "B200-SXM-192GB", "V100-SXM2-16GB"])
def test_the_pim_of_a_device_has_its_channels_and_bandwidth(name: str) -> None:
    device = find_device(name)
    pim = find_pim(device)
    assert pim.dram.bandwidth == pytest.approx(device.memory_bytes_per_s)
    assert pim.internal_bandwidth == pytest.approx(4 * pim.dram.bandwidth)
    assert pim.dram.timing.rcd_ns == DRAM.timing.rcd_ns


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidInputError, match="GDDR6; HBM_PIM needs stacked memory"):
        find_pim(find_device("L4"))
    with pytest.raises(NotFoundError, match="there is HBM_PIM"):
        find_pim(find_device("MI210"), "AIM")
    for changes, problem in (
        ({"units": 5}, "5 PIM units for 16 banks"), ({"share": 0.0}, "more than 0, 1 at most"),
        ({"share": 0.05}, "switching modes takes 0.10"), ({"clock_hz": 0.0}, "positive"), ({"lanes": 0}, "1 or more"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=problem):
            replace(STACK, **changes)
    for arguments, problem in (
        ((10, 32, ()), "no copy"), ((10, 32, (0,)), "values of 0 bits"), ((10, 65, (9,)), "values of 65 bits"),
        ((10, 32, 9), "bits of copies are 9; give a value for each copy"), ((10, 32, "x"), "bits of copies are 'x'"),
        ((10, "x", (9,)), "a number, and not 'x'"), ((10, 32, ("9",)), "a number, and not '9'"),
        (("x", 32, (9,)), "elements of tensors are 'x'"), ((-1, 32, (9,)), "not negative"),
        ((float("nan"), 32, (9,)), "finite"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=problem):
            pim_quantization(*arguments, STACK)
    with pytest.raises(InvalidInputError, match="2 transposed copies of 1"):
        pim_quantization(10, 32, (9,), STACK, CopyLayout(transposed=2))
    with pytest.raises(InvalidInputError, match="'open'; one of activate"):
        issue_times(STACK, [Command("open")])
    with pytest.raises(InvalidInputError, match="blocks of 0"):
        CopyLayout(0)


def beside(kernel: dict[str, float], seconds: list[float], share: float = 1.0) -> Timeline:
    """Return the replay of PIM tasks beside a kernel."""
    assembly = Assembly()
    assembly.tasks("kernel", assembly.lane(device=0), kernel)
    time = PimTime(np.array(seconds), {}, share)
    assembly.tasks("quantise", assembly.lane(device=0, stream=PIM_STREAM), pim_columns(time))
    return replay(assembly.graph())


def test_a_task_beside_a_kernel_bound_by_memory_by_hand() -> None:
    # Both demand all of the memory and run at 1/2 until the task of 100 us ends; the kernel then has 100 us left.
    line = beside({"duration_ns": 2e5, "cu": 0.5, "hbm": 1.0}, [1e-4])
    assert line.end_ns.tolist() == pytest.approx([3e5, 2e5])


def test_a_task_beside_a_kernel_bound_by_compute_by_hand() -> None:
    # Together 1.25 of the memory: both run at 0.8 for 125 us, in which the kernel does 100 of its 200 us.
    line = beside({"duration_ns": 2e5, "cu": 1.0, "hbm": 0.25}, [1e-4])
    assert line.end_ns.tolist() == pytest.approx([2.25e5, 1.25e5])


def test_a_share_of_the_channels_leaves_the_rest_to_kernels() -> None:
    line = beside({"duration_ns": 2e5, "cu": 1.0, "hbm": 0.5}, [1e-4], share=0.5)
    assert line.end_ns.tolist() == pytest.approx([2e5, 1e5])


def test_tasks_share_the_units_even_if_the_memory_has_room() -> None:
    line = beside({"duration_ns": 1e5, "cu": 1.0}, [1e-4, 1e-4], share=0.4)
    assert line.end_ns.tolist() == pytest.approx([1e5, 2e5, 2e5])


def test_dma_engines_and_links_work_beside_the_units() -> None:
    assembly = Assembly()
    time = PimTime(np.array([1e-4, 1e-4]), {}, 0.4)
    assembly.tasks("quantise", assembly.lane(device=0, stream=PIM_STREAM), pim_columns(time))
    copies = {"duration_ns": 1e5, "dma": 1.0, "link": 1.0, "engine": [0, 1, -1, -1], "link_number": [0, 1, 2, 3]}
    assembly.tasks("copy", assembly.lane(device=0, stream=1), copies)
    line = replay(assembly.graph())
    # Two tasks share the units; engines 0 and 1 are alone, and two copies share the engine without a number.
    assert line.end_ns.tolist() == pytest.approx([2e5, 2e5, 1e5, 1e5, 2e5, 2e5])
    use = dict(zip(RESOURCES, resource_use(line, 2).use[0].T.tolist(), strict=True))
    assert use["pim"] == pytest.approx([1, 1]) and use["dma"] == pytest.approx([3, 1])
    both = Assembly()
    both.tasks("both", both.lane(device=0), {"duration_ns": 1.0, "dma": 0.5, "pim": 0.5})
    with pytest.raises(InvalidInputError, match="task 0 demands both DMA engines"):
        replay(both.graph())
    with pytest.raises(InvalidInputError, match="within 0 to 1"):
        replay(line.graph.with_tasks(demand=2 * line.graph.tasks.demand))


@pytest.fixture
def layers() -> KernelGraph:
    """Three layers of 30 us on each of two devices, with the quantisation of the later two during the one before."""
    assembly = Assembly()
    rows = [
        assembly.tasks("layer", assembly.lane(device=d), {"duration_ns": [3e4] * 3, "cu": 1.0, "hbm": 0.2})
        for d in range(2)
    ]
    for each in rows:
        assembly.chain(each)
    triggers, consumers = np.concatenate([r[:2] for r in rows]), np.concatenate([r[1:] for r in rows])
    time = PimTime(np.array([1e-5, 6e-5, 1e-5, 6e-5]), {})
    return add_pim_tasks(assembly.graph(), ["W1", "W2"] * 2, time, triggers, consumers)


def test_a_layer_waits_for_its_copies_only_if_they_are_late(layers: KernelGraph) -> None:
    line = replay(layers)
    # W1 ends at 12 us, when layer 0 has 20 us left. Layer 1 runs beside W2 at 1/1.2 from 32 to 68 us; W2 then has 30
    # us left and ends at 98 us.
    np.testing.assert_allclose(line.end_ns[[0, 1, 2, 6, 7]], [32e3, 68e3, 128e3, 12e3, 98e3])
    np.testing.assert_allclose(line.end_ns[[3, 4, 5, 8, 9]], line.end_ns[[0, 1, 2, 6, 7]])
    assert attribution(critical_path(line)).by_cause[PIM] > 0


def test_a_device_that_runs_one_task_at_a_time_still_has_its_memory_process_beside_it(layers: KernelGraph) -> None:
    serial = parse_what_if("overlap:none").transform(layers, load_parameters())
    np.testing.assert_allclose(replay(serial).end_ns, replay(layers).end_ns)


def test_processing_in_memory_has_a_lane_and_a_resource_of_its_own(layers: KernelGraph, tmp_path: Path) -> None:
    line = replay(layers)
    assert [lane.label for lane in layers.lanes][2:] == ["rank 0 GPU 0 PIM", "rank 1 GPU 1 PIM"]
    assert layers.names == ("layer", "W1", "W2")
    write_perfetto(tmp_path / "t.json", {"pim": line})
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lanes = {event["tid"] for event in events if event["ph"] == "X" and event["cat"] == "pim"}
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {named[lane] for lane in lanes} == {"rank 0 GPU 0 PIM", "rank 1 GPU 1 PIM"}
    use = resource_use(line, 64)
    assert use.resources[-1] == "pim" and use.use[0, :, -1].max() == pytest.approx(1 / 1.2, abs=0.2)
    counters = [event["args"] for event in events if event["ph"] == "C"]
    assert counters and all("pim" in counter for counter in counters)
    write_perfetto(tmp_path / "without.json", {"none": beside({"duration_ns": 1e5, "cu": 1.0}, [])})
    assert '"pim"' not in (tmp_path / "without.json").read_text()


def test_the_page_shows_what_its_code_prints() -> None:
    page = (Path(__file__).parents[1] / "docs" / "systems" / "jitq.md").read_text()
    found = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(found) == 1
    names: dict[str, object] = {}
    for code, text in found:
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(code, "jitq.md", "exec"), names)
        assert shown.getvalue() == text


def test_tasks_of_no_graph_are_refused(layers: KernelGraph) -> None:
    time = PimTime(np.array([1e-5]), {})
    for names, triggers, consumers, problem in (
        (["a", "b"], [0], [1], "2 PIM tasks: give as many"), (["a"], [0], [10], "0 to 9"), (["a"], [-2], [1], "0 to 9"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=problem):
            add_pim_tasks(layers, names, time, triggers, consumers)
    assert add_pim_tasks(layers, [], PimTime(np.empty(0), {}), [], []) is layers
    free = add_pim_tasks(layers, ["a"], time, [-1], [0])
    assert replay(free).start_ns[-1] == 0
