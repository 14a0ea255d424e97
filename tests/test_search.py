"""The search over few parameters: it finds minima, stays in bounds, and asks for few points."""

import numpy as np
import pytest

from replay.contention.search import STEP, Point, least_cost, neighbour, prior, values_at
from replay.costs.shipped import load_parameters

PARAMETERS = load_parameters()


@pytest.mark.parametrize("truth", [(0, 0, 0), (5, -7, 2), (16, -16, 0)])
def test_the_search_finds_the_least_of_a_bowl(truth: Point) -> None:
    def cost(point: Point) -> float:
        x, y, z = np.subtract(point, truth).tolist()
        return float(x * x + y * y + z * z + 0.5 * x * y)

    assert least_cost(cost, 3) == truth
    assert least_cost(cost, 3, start=(1, 1, 1)) == truth


def test_the_search_stops_at_the_farthest_powers_and_starts_where_it_is_told() -> None:
    assert least_cost(lambda point: -float(point[0]), 1) == (16,)
    seen: list[Point] = []

    def flat(point: Point) -> float:
        seen.append(point)
        return 0.0

    assert least_cost(flat, 2, start=(3, -2)) == (3, -2)
    assert seen[:3] == [(3, -2), (7, -2), (-1, -2)] and len(seen) == 1 + 3 * 4


def test_values_are_steps_from_the_shipped_ones_within_their_bounds() -> None:
    spin, start = PARAMETERS["spin_weight"], PARAMETERS["kernel_start_ns"]
    bounds = {"spin_weight": (0.1, 10.0), "kernel_start_ns": (2000.0, 3000.0)}
    assert values_at((0, 0), bounds, PARAMETERS) == {"spin_weight": spin, "kernel_start_ns": start}
    assert values_at((2, 5), bounds, PARAMETERS) == {
        "spin_weight": pytest.approx(spin * STEP**2, rel=1e-4),
        "kernel_start_ns": 3000.0,
    }
    assert values_at((-16, -16), bounds, PARAMETERS)["kernel_start_ns"] == 2000.0


def test_neighbours_and_prior() -> None:
    assert neighbour((1, 2, 3), 1, -4) == (1, -2, 3)
    # Five steps of 15 % double a value, about: half of one squared deviation each.
    doubled = float(np.log(2) / np.log(STEP))
    assert prior((0, 0)) == 0 and prior((5, -5)) == pytest.approx((5 / doubled) ** 2)
