"""Tiles become accesses to lines: equal to a count in plain Python, in turns, a wave after the other."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from replay.memory.accesses import Accesses, Lines, Operand, Stream, Tiles, accesses_of, blocks, operands, waves


def rows_of(accesses: Accesses) -> list[tuple[int, int, int, int, int]]:
    columns = (accesses.line, accesses.sectors, accesses.is_write, accesses.operand, accesses.unit)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def by_hand(tiles: Tiles, lines: Lines, turn_bytes: int) -> list[tuple[int, int, int, int, int]]:
    """Return the accesses of tiles: workgroups take turns, a queue of line touches each."""
    queues: dict[int, list[tuple[int, tuple[int, int, int, int, int]]]] = {}
    for i in range(len(tiles)):
        queue = queues.setdefault(int(tiles.workgroup[i]), [])
        for row in range(tiles.rows[i]):
            first = int(tiles.address[i] + row * tiles.pitch[i])
            touched: dict[int, list[int]] = {}
            for byte in range(first, first + int(tiles.width[i])):
                touched.setdefault(byte // lines.line_bytes, []).append(byte)
            for line, in_line in touched.items():
                sectors = {byte % lines.line_bytes // lines.sector_bytes for byte in in_line}
                unit = int(tiles.workgroup[i]) % lines.units
                access = (line, sum(1 << s for s in sectors), int(tiles.is_write[i]), int(tiles.operand[i]), unit)
                queue.append((len(in_line), access))
    result = []
    while any(queues.values()):
        for queue in queues.values():
            budget = turn_bytes
            while budget > 0 and queue:
                count, access = queue.pop(0)
                budget -= count
                result.append(access)
    return result


TILE = st.tuples(
    st.integers(0, 5), st.integers(0, 2000), st.integers(1, 5), st.integers(0, 500), st.integers(1, 400),
    st.integers(0, 2), st.booleans(),
)  # fmt: skip
LINES = st.sampled_from([Lines(128, 32, 3), Lines(64, 64, 2), Lines(128, 4, 1), Lines(256, 8, 4, 32)])


@settings(max_examples=60, deadline=None)
@given(st.lists(TILE, min_size=1, max_size=12), LINES, st.sampled_from([1, 64, 256, 1000]))
def test_accesses_are_those_of_a_count_by_bytes(
    rows: list[tuple[int, int, int, int, int, int, bool]], lines: Lines, turn_bytes: int
) -> None:
    group, address, count, pitch, width, operand, is_write = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    tiles = Tiles.of(group, address, operand, width=width, rows=count, pitch=pitch, is_write=is_write)
    assert rows_of(accesses_of(tiles, lines, turn_bytes)) == by_hand(tiles, lines, turn_bytes)


def test_workgroups_take_turns_of_an_instruction() -> None:
    # Each has 512 bytes; a turn is 256 bytes, two lines. The last sector of workgroup 1 is one byte.
    tiles = Tiles.of([0, 1], [0, 4096], 0, width=[512, 385])
    accesses = accesses_of(tiles, Lines(128, 32, 2), 256)
    assert accesses.line.tolist() == [0, 1, 32, 33, 2, 3, 34, 35]
    assert accesses.sectors.tolist() == [15] * 7 + [1] and accesses.unit.tolist() == [0, 0, 1, 1] * 2


def test_a_sector_mask_fills_the_widest_line() -> None:
    accesses = accesses_of(Tiles.of(0, 0, 0, width=256), Lines(256, 8, 1), 64)
    assert accesses.sectors.tolist() == [0xFFFFFFFF]


def test_tiles_without_bytes_are_left_out() -> None:
    tiles = Tiles.of([0, 1, 2, 3], 0, 0, width=[4, 0, 4, -4], rows=[1, 1, 0, 1])
    assert tiles.workgroup.tolist() == [0]
    joined = Tiles.joined(Tiles.of([0, 1], 0, 0, width=4), Tiles.of([0, 1], 8, 1, width=4, is_write=True))
    assert joined.workgroup.tolist() == [0, 0, 1, 1] and joined.operand.tolist() == [0, 1, 0, 1]
    assert len(accesses_of(Tiles.of([], [], 0, width=4), Lines(128, 32, 1), 256)) == 0


def lines_of_workgroups(workgroups: int, steps: int, residency: int) -> Stream:
    """Return a kernel whose workgroup w touches line ``w * steps + s`` in step s."""

    def tiles(numbers: np.ndarray, step: int) -> Tiles:
        return Tiles.of(numbers, (numbers * steps + step) * 128, 0, width=128)

    size = workgroups * steps * 128
    return Stream("lines", (Operand("x", size, 0),), workgroups, steps, tiles, residency=residency)


def test_waves_follow_each_other_and_steps_run_in_turn() -> None:
    stream, lines = lines_of_workgroups(5, 2, 2), Lines(128, 32, 2)
    (block,) = blocks(stream, lines)
    assert waves(stream, 2) == 2
    assert block.line.tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 9]
    assert block.unit.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 0]
    (chosen,) = blocks(stream, lines, [(1, range(2)), (0, range(1, 2))])
    assert chosen.line.tolist() == [8, 9, 1, 3, 5, 7]


def test_blocks_are_bounded() -> None:
    def generated() -> Iterator[int]:
        for block in blocks(lines_of_workgroups(1 << 16, 40, 4), Lines(128, 32, 1 << 14)):
            yield len(block)

    lengths = list(generated())
    assert sum(lengths) == 40 << 16 and max(lengths) <= (1 << 20) + (1 << 16)


@pytest.mark.parametrize("sizes", [(100, 32), (128, 48), (128, 2), (32, 64), (0, 0)])
def test_lines_and_sectors_are_powers_of_two(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="must be powers of two, with 1 to 32 sectors"):
        Lines(*sizes, 1)


def test_a_stream_needs_workgroups() -> None:
    with pytest.raises(InvalidInputError, match="workgroups is 0; it must be 1 or more"):
        lines_of_workgroups(0, 1, 1)
    assert lines_of_workgroups(3, 2, 1).footprint == 3 * 2 * 128
    assert [item.address for item in operands(a=512, b=513, c=1)] == [0, 512, 1536]
