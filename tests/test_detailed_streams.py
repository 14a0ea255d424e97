"""The lines of memory that kernels in PTX touch are those of the templates of the caching work."""

from math import ceil

import numpy as np
import pytest

from benchmarks.detailed.operator_kernels import operator_plan
from profilers.files import dataset_path
from replay.detailed import KernelLaunch, LaunchPlan
from replay.detailed import program as low
from replay.detailed.launch import runners
from replay.detailed.tracing import ACCESSES, NEXT
from replay.memory.accesses import Lines, blocks
from replay.memory.streams import named_streams

Touched = dict[tuple[str, bool], list[int]]


def lines_of_ptx(plan: LaunchPlan) -> Touched:
    """Return the sectors that a launch touches, by buffer and whether they are written; each as often as warps do."""
    (runner,) = runners(plan)
    trace, firsts = runner.run(np.arange(runner.blocks, dtype=np.int64), record=True)
    code = runner.program.code
    begins = np.flatnonzero(code[:, low.LEADER] >= 0)
    slots = [
        np.flatnonzero(code[a:b, low.SLOT] >= 0) + a for a, b in zip(begins, [*begins[1:], len(code)], strict=True)
    ]
    touched: Touched = {}
    places = {name: runner.memory.extents[name][0] for name in plan.buffers}
    for first in firsts:
        record = int(first)
        while True:
            for slot, row in enumerate(slots[trace[record]]):
                at = int(trace[record + ACCESSES + slot])
                if at <= 0:
                    continue
                sectors = trace[record + at + 1 : record + at + 1 + trace[record + at]]
                name = next(
                    n for n, begin in places.items() if 0 <= 32 * int(sectors[0]) - begin < plan.buffers[n].nbytes
                )
                key = name, bool(code[row, low.KIND] == low.STORE)
                touched.setdefault(key, []).extend(int(s) - places[name] // 32 for s in sectors)
            if trace[record + NEXT] == 0:
                break
            record += int(trace[record + NEXT])
    return touched


def lines_of_template(kind: str, shape: tuple[int, ...]) -> Touched:
    """Return the same of the template of an operator."""
    touched: Touched = {}
    for stream in named_streams(kind, shape, "fp32"):
        for block in blocks(stream, Lines(128, 32, 80, 32)):
            for line, mask, operand, written in zip(
                block.line, block.sectors, block.operand, block.is_write, strict=True
            ):
                begin = stream.operands[operand].address // 32
                key = stream.operands[operand].name, bool(written)
                touched.setdefault(key, []).extend(
                    4 * int(line) + bit - begin for bit in range(4) if int(mask) >> bit & 1
                )
    return touched


def compared(ptx: Touched, template: Touched) -> None:
    """Hold the sectors of each read and each written array against each other."""
    for written in (False, True):
        ours = sorted(sorted(set(sectors)) for (_, is_write), sectors in ptx.items() if is_write == written)
        theirs = sorted(sorted(set(sectors)) for (_, is_write), sectors in template.items() if is_write == written)
        assert ours == theirs, f"{'writes' if written else 'reads'}"


@pytest.mark.parametrize(("rows", "columns"), [(37, 250), (64, 512)])
def test_an_elementwise_operator_touches_the_lines_of_its_template(rows: int, columns: int) -> None:
    ptx = lines_of_ptx(operator_plan("copy", rows, columns))
    template = lines_of_template("copy", (rows * columns,))
    compared(ptx, template)
    if rows * columns % 4 == 0:  # the last elements of other arrays are loaded one by one
        assert sum(map(len, ptx.values())) == sum(map(len, template.values()))


@pytest.mark.parametrize(("rows", "columns"), [(50, 256), (12, 640)])
def test_softmax_touches_the_lines_of_its_template(rows: int, columns: int) -> None:
    compared(lines_of_ptx(operator_plan("softmax", rows, columns)), lines_of_template("softmax", (rows, columns)))


def test_a_product_touches_the_lines_of_its_template() -> None:
    m, n, k = 96, 128, 64
    buffers = {"a": np.ones((m, k), np.float32), "b": np.ones((k, n), np.float32), "c": np.zeros((m, n), np.float32)}
    file = dataset_path("ptx/lenet/gemm.ptx")
    arguments = ("a", "b", "c", m, n, k, 0, 0, 0)
    call = KernelLaunch(file, "gemm_nn", (ceil(n / 64), ceil(m / 32), 1), (128, 1, 1), arguments)
    compared(lines_of_ptx(LaunchPlan("gemm", buffers, (call,))), lines_of_template("gemm", (m, n, k)))
