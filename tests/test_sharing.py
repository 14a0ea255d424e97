import numpy as np
import pytest
from graphs import GIVEN, LIMITS, N_UNITS, make_graph, placed_graphs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from profilers.errors import InvalidInputError
from profilers.trace.compiled import bare
from replay.engine.layout import lay_out
from replay.engine.sharing import activate, share
from replay.engine.units import MAX_HOLDINGS, MAX_UNITS
from replay.graph.graph import KernelGraph, SharingPolicy

shares = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(5)), elements=st.floats(0, 1))
EQUAL = SharingPolicy(in_order=False)


@bare
def share_all(state):
    """Activate all tasks on one device, and share it."""
    for task in range(len(state.active)):
        activate(state, 0, task, task)
    share(state, 0, len(state.active))


def rates(demands, policy=None, **columns):
    """Return the rates of tasks that start together; demands as (cu, hbm, link, dma, l2, power)."""
    state = lay_out(make_graph([1.0] * len(demands), demands, **columns).tasks, policy or SharingPolicy())
    share_all(state)
    found = np.empty(len(demands))
    found[state.active["task"]] = state.active["rate"]
    return found


def hbm(*demands: float) -> list[tuple[float, float]]:
    return [(0.0, demand) for demand in demands]


def test_three_tasks_with_different_demands_worked_out_by_hand() -> None:
    # One resource: demands 0.8, 0.6 and 0.1. All rise together until 1.5 x = 1, x = 2/3, and it is full.
    np.testing.assert_allclose(rates(hbm(0.8, 0.6, 0.1)), [2 / 3, 2 / 3, 2 / 3])


def test_a_task_outside_the_bottleneck_runs_at_full_rate() -> None:
    np.testing.assert_allclose(rates([(0, 1.0, 0.0), (0, 1.0, 0.0), (0, 0.0, 0.9)]), [0.5, 0.5, 1.0])


def test_what_a_bottleneck_leaves_goes_to_the_others() -> None:
    # HBM stops tasks 0 and 1 at 0.5; the link then has 1 - 0.5 * 0.4 = 0.8 for task 2, which needs 0.7.
    np.testing.assert_allclose(rates([(0, 1.0, 0.4), (0, 1.0, 0.0), (0, 0.0, 0.7)]), [0.5, 0.5, 1.0])


def test_compute_units_go_to_who_comes_first_and_the_next_gets_what_is_left() -> None:
    np.testing.assert_allclose(rates([(0.7,), (0.6,), (0.5,)]), [1.0, 0.5, 0.0])


def test_priority_is_dispatched_first() -> None:
    np.testing.assert_allclose(rates([(0.7,), (0.6,), (0.5,)], priority=[0, 0, 5]), [5 / 7, 0.0, 1.0])


def test_a_task_that_occupies_more_than_it_needs_keeps_its_rate_on_what_is_left() -> None:
    # The second fills the device where it may, and runs at full rate on 0.3 of it; 0.2 are left, two thirds of that.
    np.testing.assert_allclose(rates([(0.8,), (0.3,)], occupies=[0.8, 1.0]), [1.0, 2 / 3])


def test_an_interleaved_task_is_let_in_with_a_fair_part() -> None:
    np.testing.assert_allclose(rates([(1.0,), (1.0,)], interleaved=[False, True]), [0.5, 0.5])
    # It asks for a tenth, and gets it; the first keeps the rest.
    np.testing.assert_allclose(rates([(1.0,), (0.1,)], interleaved=[False, True]), [0.9, 1.0])


def test_equal_parts_where_nothing_is_in_order() -> None:
    # Max-min of 0.9, 0.6 and 0.1: 0.1, then 0.45 each.
    np.testing.assert_allclose(rates([(0.9,), (0.6,), (0.1,)], EQUAL), [0.5, 0.75, 1.0])


def test_partitions_of_compute_units_keep_tasks_apart() -> None:
    split = SharingPolicy(partitions=(0.75, 0.25))
    # A kernel that would fill the device has three quarters of it; a collective of a tenth is not held up by it.
    np.testing.assert_allclose(rates([(1.0,), (0.1,)], split, cu_mask=[1, 2]), [0.75, 1.0])
    # One that may run on both takes what the others leave.
    np.testing.assert_allclose(rates([(0.75,), (0.5,)], split, cu_mask=[1, 3]), [1.0, 0.5])


def test_links_and_engines_with_a_name_are_shared_apart() -> None:
    one = [(0, 0.1, 1.0)] * 3
    np.testing.assert_allclose(rates(one, link=[0, 0, 1]), [0.5, 0.5, 1.0])
    np.testing.assert_allclose(rates(one), [1 / 3] * 3)
    engines = [(0, 0, 0, 1.0)] * 4
    np.testing.assert_allclose(rates(engines, engine=[0, 0, 1, -1]), [0.5, 0.5, 1.0, 1.0])


def test_l2_bandwidth_is_shared() -> None:
    np.testing.assert_allclose(rates([(0, 0, 0, 0, 0.8), (0, 0, 0, 0, 0.8)]), [0.625, 0.625])


def test_footprints_that_exceed_the_cache_raise_what_is_read_from_memory() -> None:
    # Both keep half of the cache and half of their hits: misses of the first rise from 0.4 to 0.7.
    # Memory is asked for 0.6 * 0.7 / 0.4 + 0.2 = 1.25, so both run at 0.8.
    both = rates(hbm(0.6, 0.2), footprint=[1.0, 1.0], hit_share=[0.6, 0.0])
    np.testing.assert_allclose(both, [0.8, 0.8])
    np.testing.assert_allclose(rates(hbm(0.6, 0.2), footprint=[0.5, 0.5], hit_share=[0.6, 0.0]), [1.0, 1.0])


def test_power_above_the_limit_lowers_the_clock_and_not_the_bandwidth() -> None:
    # 0.8 + 0.8 = 1.6 of the limit: the clock is 1.6^(-1/3). The second is bound by memory and needs half its units.
    got = rates([(0.5, 0, 0, 0, 0, 0.8), (0.25, 0.5, 0, 0, 0, 0.8)], occupies=[0.5, 0.5])
    np.testing.assert_allclose(got, [1.6 ** (-1 / 3), 1.0])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"occupies": [1.5]}, "task 0: .*occupies 1.5"),
        ({"hit_share": [1.0]}, "hit_share below 1"),
        ({"cu_mask": [2]}, "task 0 may run on none of the 1 partitions"),
        ({"link": [99]}, "100 links"),
    ],
)
def test_what_is_no_share_is_refused(columns: dict[str, list[float]], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        rates([(1 / 3, 1e-12, 1 / 7, 1 / 3, 1 / 3, 1 / 3)], **columns)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parts", [(), (0.0, 1.0), (0.7, 0.7), (1 / 70,) * 70])
def test_partitions_that_cannot_be_are_refused(parts: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError, match="partitions"):
        SharingPolicy(parts)


@given(shares, st.booleans())
def test_no_resource_is_over_full_and_rates_are_shares(demand: np.ndarray, in_order: bool) -> None:
    found = rates(demand, SharingPolicy(in_order=in_order))
    assert (found >= 0).all() and (found <= 1).all() and found.max() > 0
    assert (found @ demand <= 1 + 1e-9).all()


@given(shares)
def test_every_task_below_full_rate_uses_a_full_resource(demand: np.ndarray) -> None:
    demand[:, 0] = 0  # what is held of the compute units may wait for memory
    found = rates(demand)
    full = found @ demand >= 1 - 1e-6
    for rate, needs in zip(found, demand, strict=True):
        assert rate > 1 - 1e-6 or (full & (needs > 0)).any()


@given(shares, st.randoms(use_true_random=False))
def test_equal_parts_do_not_depend_on_the_order(demand: np.ndarray, random) -> None:
    order = list(range(len(demand)))
    random.shuffle(order)
    np.testing.assert_allclose(rates(demand[order], EQUAL), rates(demand, EQUAL)[order], atol=1e-9)


@given(placed_graphs())
def test_no_unit_holds_more_than_it_has_room_for(graph: KernelGraph) -> None:
    tasks = graph.with_tasks(device=np.zeros(len(graph.tasks), np.int64)).tasks
    state = lay_out(tasks, graph.policy)
    share_all(state)
    units, holdings = state.units[:MAX_UNITS][: state.n_units[0]], state.holdings[:MAX_HOLDINGS][: state.n_holdings[0]]
    if len(tasks) == 1:
        return  # a task that is alone is not placed
    np.testing.assert_allclose(units["extent"].sum(), 1.0)
    np.testing.assert_allclose(units["extent"] * N_UNITS, np.round(units["extent"] * N_UNITS), atol=1e-6)
    taken = np.zeros((len(units), len(LIMITS)))
    np.add.at(
        taken,
        holdings["units"],
        holdings["count"][:, None] * np.column_stack([getattr(tasks, x)[holdings["task"]] for x in LIMITS]),
    )
    assert (taken <= 1 + 1e-6).all()
    np.testing.assert_allclose(units["room"], 1 - taken, atol=1e-6)
    running = np.bincount(holdings["task"], holdings["count"] * units["extent"][holdings["units"]], len(tasks))
    np.testing.assert_allclose(running[state.active["task"]], state.active["running"], atol=1e-9)


assert GIVEN[:2] == ("cu", "hbm")
