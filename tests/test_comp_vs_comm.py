"""The study of computation against communication: closed forms, operators that are counted, and replays of layers."""

import csv
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.studies.comp_vs_comm import (
    GROWTHS,
    TransformerLayer,
    algorithm_rate,
    counted,
    evolved_share,
    hiding_tokens,
    layer_job,
    layer_shares,
    layer_times_at,
    layers_trace,
    load_study,
    reproduce,
    serialised_share,
)

_SIZES = [(1024, 512, 4, 4), (4096, 2048, 1, 16), (12288, 2048, 2, 8), (65536, 4096, 1, 256)]
#: FLOP/s and byte/s.
_RATES = (1e14, 5e10)
_WEIGHTS = ("aten::mm", "aten::addmm")


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    return load_parameters()


@pytest.fixture(scope="module")
def figures(parameters: Parameters) -> Mapping[str, float]:
    return reproduce(parameters, load_study())


@pytest.mark.parametrize("sizes", _SIZES)
def test_the_operators_of_a_job_have_the_flop_and_bytes_of_the_closed_forms(sizes: tuple[int, int, int, int]) -> None:
    layer = TransformerLayer(*sizes)
    operators = counted(layer_job(layer))
    names = ("flops", "tensor_bytes", "gradient_flops", "gradient_bytes", "edge", "slack")
    assert [getattr(operators, name) for name in names] == [getattr(layer, name) for name in names]
    assert layer.edge == layer.flops / layer.tensor_bytes
    assert layer.slack == layer.gradient_flops / layer.gradient_bytes


def test_slack_does_not_depend_on_hidden_size_or_ranks_and_edge_falls_with_ranks() -> None:
    slacks = {
        counted(layer_job(TransformerLayer(hidden, 1024, 2, ranks))).slack
        for hidden in (1024, 8192)
        for ranks in (2, 64)
    }
    edges = [ranks * counted(layer_job(TransformerLayer(8192, 1024, 2, ranks))).edge for ranks in (2, 8, 64)]
    assert slacks == {2 * 1024 * 2}
    assert edges == [9 * 8192 + 1.5 * 1024] * 3


@pytest.mark.parametrize("growth", GROWTHS)
def test_the_replay_of_a_layer_has_the_closed_form_share_of_serialised_communication(
    growth: int, parameters: Parameters
) -> None:
    layer = TransformerLayer(4096, 2048, 1, 16)
    times = layer_times_at(layer, *_RATES)
    (replayed,) = layer_shares(layers_trace(times, find_device("MI210")), (growth,), parameters)
    expected = 1e9 * (layer.flops / _RATES[0] / growth + layer.tensor_bytes / _RATES[1])
    # The all-reduce of the gradients follows the only layer, with nothing to hide behind.
    alone_ns = 1e9 * times.gradients_s
    assert replayed.busy_ns - alone_ns == pytest.approx(expected, rel=1e-5)
    share = (replayed.exposed_ns - alone_ns) / (replayed.busy_ns - alone_ns)
    assert share == pytest.approx(evolved_share(serialised_share(layer, *_RATES), growth), rel=1e-5)


@pytest.mark.parametrize("tokens", [500, 999, 1001, 4000])
def test_gradients_hide_from_the_threshold_on_in_the_replay_too(tokens: int, parameters: Parameters) -> None:
    assert hiding_tokens(*_RATES) == 1000
    layer, layers = TransformerLayer(4096, tokens), 4
    times = layer_times_at(layer, *_RATES, names=_WEIGHTS)
    (replayed,) = layer_shares(layers_trace(times, find_device("MI210"), layers), (1,), parameters)
    forward, reduced = (1e9 * value for value in (layer.gradient_flops / 2 / _RATES[0], times.gradients_s))
    longer = max(2 * forward, reduced)
    expected = layers * forward + 2 * forward + (layers - 1) * longer + reduced
    assert replayed.busy_ns == pytest.approx(expected, rel=1e-5)
    exposed = reduced + (layers - 1) * max(reduced - 2 * forward, 0)
    assert replayed.exposed_ns == pytest.approx(exposed, rel=1e-4)
    assert (replayed.exposed_ns < 1.0001 * reduced) == (tokens >= 1000)


def test_one_rank_has_no_rate_of_an_all_reduce() -> None:
    assert algorithm_rate(150e9, 2) == 150e9
    with pytest.raises(InvalidInputError, match="1 ranks sum nothing"):
        algorithm_rate(150e9, 1)


def test_every_published_figure_has_ours_and_those_that_gate_are_met(figures: Mapping[str, float]) -> None:
    published = tomllib.loads(dataset_path("published/comp_vs_comm.toml").read_text())["figures"]
    assert figures.keys() == published.keys()
    gated = {name: row for name, row in published.items() if row["grade"] in "ASD"}
    assert len(gated) == 6
    assert {n for n, row in gated.items() if abs(figures[n] - row["value"]) > row["limit"]} == set()


def test_operators_of_other_hidden_sizes_err_by_less_than_15_percent() -> None:
    """The shipped table, all devices: `benchmarks/jobs/accuracy_of_scaling.py` makes it from the measurements."""
    with (Path(__file__).parent / "accuracy/comp_vs_comm.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == "all" and row["strategy"] != "work"]
    assert {row["operator"] for row in rows} == {"product", "normalisation", "all-reduce"}
    assert [row for row in rows if float(row["mean_error"]) >= 15] == []
