"""Workgroups out of grids and blocks, whatever the vendor's unit."""

from typing import Any

import numpy as np
import pytest

from profilers.readers.common.numbers import Grids
from profilers.readers.kineto.rows import geometry
from profilers.trace.arrays import MISSING

#: Grid, block, and whether the call writes its grid in work-items.
Row = tuple[tuple[int, int, int], tuple[int, int, int], bool]


def found(*rows: Row | None) -> tuple[list[int | None], list[int | None], dict[str, int]]:
    grids, rank, correlation = Grids(), np.zeros(len(rows), np.int64), np.arange(len(rows))
    grids.add_kernels(
        rank, correlation, np.array([[MISSING] * 6 if row is None else [*row[0], *row[1]] for row in rows])
    )
    in_work_items = np.array([row is not None and row[2] for row in rows])
    grids.add_launches(rank, correlation, np.full((len(rows), 6), MISSING), in_work_items)
    groups, sizes, counts = grids.workgroups()
    plain = [[None if n == MISSING else n for n in column.tolist()] for column in (groups, sizes)]
    return plain[0], plain[1], counts


@pytest.mark.parametrize(
    ("row", "groups", "size", "in_items"),
    [
        (((108, 2, 1), (256, 1, 1), False), 216, 256, 0),
        (((65536, 1, 1), (256, 1, 1), True), 256, 256, 1),
        (((65537, 3, 1), (256, 2, 1), True), 257 * 2, 512, 1),
        (((1, 1, 1), (1, 1, 1), False), 1, 1, 0),
        (((1 << 31, 65535, 65535), (1024, 1, 1), False), None, 1024, 0),
        (None, None, None, 0),
    ],
)
def test_one_launch(row: Row | None, groups: int | None, size: int | None, in_items: int) -> None:
    assert found(row) == ([groups], [size], {"repaired_grid": 0, "repaired_work_items": in_items})


def test_an_impossible_block_shows_that_the_whole_file_is_swapped() -> None:
    rows = found(((256, 1, 1), (524288, 1, 1), False), ((64, 1, 1), (128, 1, 1), False), None)
    assert rows == ([2048, 2, None], [256, 64, None], {"repaired_grid": 2, "repaired_work_items": 2})


def test_one_damaged_block_does_not_swap_a_file_whose_grids_are_no_blocks() -> None:
    rows = found(((4096, 1, 1), (256, 1, 1), False), ((8, 1, 1), (4096, 1, 1), False))
    assert rows == ([4096, 8], [256, None], {"repaired_grid": 0, "repaired_work_items": 0})


@pytest.mark.parametrize(
    ("grid", "block", "expected"),
    [
        ([1, 2, 3], [4, 5, 6], [1, 2, 3, 4, 5, 6]),
        (["1", 2.0, 3], [4], [1, 2, 3, 4, 1, 1]),
        ([0, 1, 1], [256, 1, 1], None),
        ([1, 1, 1], [0, 0, 0], None),
        ([-1, 1, 1], [256, 1, 1], None),
        ([1, 1, 1], None, None),
        ("1,1,1", [256, 1, 1], None),
        ([], [1], None),
        ([1, 1, 1, 1], [1], None),
        ([True, 1, 1], [1], None),
        ([None, 1, 1], [1], None),
        ([1 << 63, 1, 1], [1], None),
    ],
)
def test_what_counts_as_a_geometry(grid: Any, block: Any, expected: Any) -> None:
    from decimal import Decimal

    grid = [Decimal(str(v)) if isinstance(v, float) else v for v in grid] if isinstance(grid, list) else grid
    assert geometry({"grid": grid, "block": block}) == (expected or [MISSING] * 6)
