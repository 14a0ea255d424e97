"""Layers of experts: the load of the busiest rank, the model, tables and predictions."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqpoint as sp
from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.kernels import MODELS, Machine, load_calibration, predict, read_measurements
from replay.costs.kernels.experts import DIMS, loads
from replay.costs.kernels.models import least_seconds

#: Tokens, hidden, inter, topk, experts, tensor and expert parallel, skew, gated.
LAYER = [1024, 4096, 2048, 8, 128, 1, 1, 0, 1]
TABLES = Path(__file__).parents[2] / "shared" / "data" / "operators" / "aic_moe.parquet"


def layer(**changes: float) -> list[float]:
    return [changes.get(name, value) for name, value in zip(DIMS, LAYER, strict=True)]


def seconds(*layers: list[float], dtype: str = "bf16", **parameters: float) -> np.ndarray:
    """Times on an H100 by the priors, of which some may be replaced."""
    model = MODELS["experts"]
    theta = np.array([parameters.get(one.name, one.prior) for one in model.parameters])
    return model.seconds(theta, (0, 0), np.array(layers, np.float64), 2, Machine.of(find_device("H100"), dtype))


def counted(tokens: int, topk: int, experts: int, ranks: int) -> np.ndarray:
    """Tokens of the first rank's experts, one by one: token t chooses t, t + stride, ..., or spread if they are few."""
    stride, own = experts // topk, experts // ranks
    chosen = [
        int(t + i * stride if tokens >= stride else t * stride / tokens + i * stride) % experts
        for t in range(tokens)
        for i in range(topk)
    ]
    return np.bincount(chosen, minlength=experts)[:own]


@pytest.mark.parametrize("tokens", [1, 2, 5, 16, 17, 48, 100, 4096])
@pytest.mark.parametrize("ranks", [1, 2, 8, 32])
def test_even_routing_gives_the_first_rank_what_counting_gives(tokens: int, ranks: int) -> None:
    expected = counted(tokens, 8, 128, ranks)
    tokens_of, experts_of, local = loads(tokens, 8, 128, ranks, 0)
    assert tokens_of @ experts_of == pytest.approx(expected.sum())
    assert experts_of[tokens_of > 0].sum() == pytest.approx((expected > 0).sum())
    assert experts_of @ np.ceil(tokens_of / 16) == pytest.approx(np.ceil(expected / 16).sum())
    assert local <= tokens


def drawn(rng: np.random.Generator, sizes: tuple[int, int, int, int], skew: float) -> tuple[float, float, float]:
    """Draw experts one by one; return tokens, experts with a token and tiles of 64 rows of the busiest rank."""
    tokens, topk, experts, ranks = sizes
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    power = 1 - skew
    weights = (low**power + rng.random(experts) * (high**power - low**power)) ** (1 / power)
    counts = np.minimum(np.round(weights / weights.sum() * tokens * topk), tokens).reshape(ranks, -1)
    busiest = counts[counts.sum(axis=1).argmax()]
    return busiest.sum(), (busiest > 0).sum(), np.ceil(busiest / 64).sum()


@pytest.mark.parametrize("sizes", [(4096, 8, 128, 1), (4096, 8, 128, 8), (4096, 8, 256, 32), (512, 8, 128, 128)])
@pytest.mark.parametrize("skew", [1.01, 1.2])
def test_a_power_law_gives_the_busiest_rank_what_drawing_gives(sizes: tuple[int, int, int, int], skew: float) -> None:
    rng = np.random.default_rng(0)
    mean = np.mean([drawn(rng, sizes, skew) for _ in range(200)], axis=0)
    tokens_of, experts_of, _ = loads(*sizes, skew)
    found = tokens_of @ experts_of, experts_of[tokens_of > 0].sum(), experts_of @ np.ceil(tokens_of / 64)
    assert np.abs(np.log(np.array(found) / mean)).max() < 0.2


def test_no_expert_has_more_tokens_than_there_are_and_none_is_lost() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        tokens, experts = int(rng.integers(1, 5000)), 2 ** int(rng.integers(3, 10))
        topk, skew = int(rng.integers(1, 9)), rng.choice([0, 0.5, 1, 1.01, 1.2, 2, 3])
        tokens_of, experts_of, local = loads(tokens, topk, experts, 1, skew)
        assert (tokens_of[experts_of > 0] <= tokens + 1e-9).all() and local <= tokens
        assert experts_of.sum() <= experts + 1e-9
        if topk * experts < tokens and skew in (0, 1.01, 1.2):
            assert tokens_of @ experts_of == pytest.approx(tokens * topk, rel=0.05)


def test_a_small_batch_takes_the_weights_of_the_chosen_experts() -> None:
    """One token reads eight experts, 32 tokens on other experts read all of them."""
    none = {"start_s": 1e-12, "expert_s": 1e-15, "step_s": 1e-15, "traffic": 1e-9, "cache": 1e-6, "smallest": 1e-3}
    one, many = seconds(layer(tokens=1), layer(tokens=16), memory=1.0, **none)
    weights = 3 * 4096 * 2048 * 2 / find_device("H100").memory_bytes_per_s
    assert one == pytest.approx(8 * weights, rel=0.02) and many == pytest.approx(128 * weights, rel=0.02)


def test_experts_without_gate_take_two_thirds_of_a_large_batch() -> None:
    gated, plain = seconds(layer(tokens=2**18), layer(tokens=2**18, gated=0), traffic=1e-9)
    assert plain / gated == pytest.approx(2 / 3, rel=0.02)


def test_ranks_share_the_work_and_the_busiest_gets_more_of_a_skewed_one() -> None:
    whole, tensor, expert, skewed = seconds(
        layer(tokens=2**16), layer(tokens=2**16, tensor_parallel=4), layer(tokens=2**16, expert_parallel=4),
        layer(tokens=2**16, expert_parallel=4, skew=1.2),
    )  # fmt: skip
    assert expert < tensor < whole and whole / 4 < tensor
    assert 1.05 * expert < skewed < whole


@pytest.mark.parametrize("name", ["tokens", "hidden", "inter", "topk"])
def test_more_work_takes_no_less_time(name: str) -> None:
    column = DIMS.index(name)
    for tokens in (1, 8, 64, 512, 4096):
        once = layer(tokens=tokens)
        twice = [value * 2 if i == column else value for i, value in enumerate(once)]
        assert np.diff(seconds(once, twice))[0] >= -1e-12, tokens


def test_rows_of_other_ranks_cost_where_a_library_computes_them() -> None:
    shape = layer(tokens=2**14, expert_parallel=32)
    none, moved, computed = (
        seconds(shape, remote=remote, passed=passed)[0] for remote, passed in ((1e-9, 1e-9), (1e-9, 1), (1, 1))
    )
    assert none < moved < computed


def test_no_prediction_is_faster_than_the_peak() -> None:
    dims, machine = np.array([layer(tokens=2**16)], np.float64), Machine.of(find_device("H100"), "bf16")
    flop = 6 * 2**16 * 8 * 4096 * 2048
    assert least_seconds("experts", dims, 2, machine)[0] == pytest.approx(flop / 989e12, rel=1e-3)
    found = sp.predict("experts", dims.tolist(), "H100", dtype="bf16")
    assert found.low[0] >= flop / 989e12


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (layer(experts=0), "each must be 1 or more"),
        (layer(topk=9, experts=8), "a token chooses at most all experts"),
        (layer(expert_parallel=3), "the ranks of expert parallelism divide the experts"),
        (layer(tensor_parallel=5), "the ranks of tensor parallelism divide the width"),
        (layer(skew=9), "the exponent of the routing is 0"),
        (layer(gated=0.5), "gated is 0 or 1"),
        (layer(tokens=1.5), "sizes are whole numbers"),
    ],
)
def test_layers_that_cannot_be_are_refused(shape: list[float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        sp.predict("experts", [LAYER, shape], "H100", dtype="bf16")


@pytest.mark.parametrize(("device", "dtype"), [("A100", "fp8_block"), ("H100", "nvfp4"), ("A100", "w4a8_mxfp4_mxfp8")])
def test_a_type_that_the_device_lacks_is_refused(device: str, dtype: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{device}.* does not compute in (fp8|nvfp4)"):
        sp.predict("experts", [LAYER], device, dtype=dtype)


def test_a_library_that_nobody_measured_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidInputError, match=r"nobody measured experts of library 'sglang'; .*sglang_triton"):
        sp.predict("experts", [LAYER], "H100", dtype="bf16", library="sglang")


def test_a_device_of_a_measured_architecture_takes_its_fits() -> None:
    h100, h200, l40s = (
        predict("experts", [layer(tokens=16)], find_device(name), dtype="bf16", calibration=load_calibration())
        for name in ("H100", "H200", "L40S")
    )
    assert (h100.basis, h200.basis, l40s.basis) == ("fitted", "carried", "carried")
    assert 3350 / 4800 - 0.02 < h200.seconds[0] / h100.seconds[0] < 1
    assert h200.seconds[0] < l40s.seconds[0]


def table(folder: Path, **changes: object) -> Path:
    """Write a table of experts inside frameworks: 12 rows, of which cells may be changed."""
    rows = [
        {
            "system": "h100_sxm", "framework": "trtllm", "dtype": "bfloat16", "latency_us": 100.0 + i,
            "kernel_source": "moe_torch_flow_cutlass", "tokens_count": 16 + i, "hidden_elements": 2048,
            "inter_elements": 1024, "topk_experts": 2, "experts_count": 8, "moe_tp_ranks": 1, "moe_ep_ranks": 1,
            "routing": "power_law_1.2", **(changes if i == 1 else {}),
        }
        for i in range(12)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "aic_moe.parquet")
    return folder / "aic_moe.parquet"


@pytest.mark.parametrize(
    ("framework", "kernel", "library"),
    [
        ("trtllm", "moe_torch_flow_min_latency", "trtllm_min_latency"),
        ("sglang", "sglang_fused_moe_triton", "sglang_triton"),
        ("sglang", "sglang_marlin_moe", "sglang_marlin"),
        ("vllm", "vllm_fused_moe", "vllm_triton"),
        ("vllm", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts", "vllm_cutlass"),
        ("vllm", "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmodular", "vllm_flashinfer"),
        ("vllm", "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic", "vllm_oai_triton"),
    ],
)
def test_experts_are_read_by_backend(tmp_path: Path, framework: str, kernel: str, library: str) -> None:
    found = {one.library: one for one in read_measurements(table(tmp_path, framework=framework, kernel_source=kernel))}
    assert set(found) == {"trtllm", library}
    assert found[library].dims.tolist() == [[17, 2048, 1024, 2, 8, 1, 1, 1.2, 1]]
    assert [one.library for one in read_measurements(tmp_path, library=framework)] == sorted(
        name for name in found if name.startswith(framework)
    )


def test_a_model_without_gate_is_so_in_all_kernels_of_its_system(tmp_path: Path) -> None:
    found = read_measurements(table(tmp_path, kernel_source="moe_torch_flow_nongated"))
    assert (found[0].dims[:, -1] == 0).all()
    other = read_measurements(table(tmp_path, kernel_source="moe_torch_flow_nongated", inter_elements=512))
    assert other[0].dims[:, -1].tolist() == [1, 0, *[1] * 10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing": "random"}, "row 2: no routing 'random'"),
        ({"experts_count": 0}, "row 2: experts_count is 0"),
        ({"latency_us": -1.0}, "row 2: latency_us is -1"),
    ],
)
def test_experts_that_cannot_be_read_are_named(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_measurements(table(tmp_path, **changes))


@pytest.mark.skipif(not TABLES.is_file(), reason="needs the tables of operators inside frameworks")
def test_measured_layers_are_predicted_and_lie_in_their_intervals() -> None:
    for operators in read_measurements(TABLES, library="trtllm"):
        if operators.library != "trtllm":
            continue
        found = predict(
            "experts", operators.dims, operators.device, dtype=operators.dtype, calibration=load_calibration()
        )
        held = (found.low <= operators.seconds) & (operators.seconds <= found.high)
        assert found.basis == "fitted" and np.median(np.abs(found.seconds / operators.seconds - 1)) < 0.13
        assert held.mean() > 0.85, (operators.device.name, operators.dtype)
