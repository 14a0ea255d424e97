"""What operators compute and move, against counts made by hand."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta
from replay.costs.calls import Call
from replay.costs.operators import counting_rules, operator_of
from replay.graph.operators import Operator, attention, batched_matmul, convolution, rowwise, streaming

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "durations"))
from operator_coverage import operator_coverage, operator_of_kernel, operators_of_kernels

F, H = "float", "c10::BFloat16"


def of(name: str, shapes: list, dtypes: list | None = None, values: list | None = None) -> Operator | None:
    return operator_of(Call(f"aten::{name}", shapes, dtypes or [F] * len(shapes), values or []))


@pytest.mark.parametrize(
    ("found", "kind", "flops", "read", "written"),
    [
        (of("mm", [[2, 3], [3, 5]]), "matmul", 60, 4 * (6 + 15), 40),
        (of("mm", [[2, 3], [3, 5]], [H, H]), "matmul", 60, 2 * (6 + 15), 20),
        # Elements of one byte are read, with two bytes each written; scales and the output type are no matrices.
        (
            of("_scaled_mm", [[2, 3], [3, 5], [], [], [], [], [], []], ["c10::Float8_e4m3fn"] * 2 + [F] * 2),
            "matmul",
            60,
            6 + 15,
            2 * 10,
        ),
        (of("addmm", [[5], [2, 3], [3, 5], [], []]), "matmul", 60, 4 * (6 + 15 + 5), 40),
        (of("linear", [[4, 2, 3], [5, 3], [5]]), "matmul", 240, 4 * (24 + 15 + 5), 160),
        (of("bmm", [[7, 2, 3], [7, 3, 5]]), "batched_matmul", 420, 4 * 7 * (6 + 15), 280),
        (of("matmul", [[7, 2, 3], [3, 5]]), "matmul", 420, 4 * (42 + 15), 280),
        (of("matmul", [[7, 1, 2, 3], [4, 3, 5]]), "batched_matmul", 28 * 60, 4 * 28 * 21, 28 * 40),
        (of("mv", [[4, 6], [6]]), "matmul", 48, 4 * 30, 16),
        # 3x3 kernels, stride 2, padding 1: 8 -> 4.
        (
            of("convolution", [[2, 3, 8, 8], [16, 3, 3, 3], [16]], values=["", "", "", "[2,2]", "[1,1]", "[1,1]"]),
            "convolution",
            2 * 2 * 16 * 16 * 27,
            4 * (2 * 3 * 64 + 16 * 27),
            4 * 2 * 16 * 16,
        ),
        (
            of("cudnn_convolution", [[1, 4, 9, 9], [8, 2, 3, 3]], values=["", "", "[0,0]", "[3,3]", "[1,1]"]),
            "convolution",
            2 * 8 * 9 * 18,
            4 * (4 * 81 + 8 * 18),
            4 * 8 * 9,
        ),
        (
            of("convolution_backward", [[2, 16, 4, 4], [2, 3, 8, 8], [16, 3, 3, 3]]),
            "convolution",
            2 * 2 * 2 * 16 * 16 * 27,
            2 * 4 * (2 * 3 * 64 + 16 * 27),
            2 * 4 * 2 * 16 * 16,
        ),
        # Batch 2, 10 queries, 4 heads of 8; keys of 2 heads.
        (
            of("_flash_attention_forward", [[2, 10, 4, 8], [2, 12, 2, 8], [2, 12, 2, 8]], [H] * 3),
            "attention",
            2 * 2 * 8 * 10 * 12 * 8,
            2 * (2 * 4 * 10 * 8 + 2 * 2 * 2 * 12 * 8),
            2 * 2 * 4 * 10 * 8,
        ),
        (
            of("scaled_dot_product_attention", [[1, 1, 4, 8]] * 3, [H] * 3, ["", "", "", "", "0.0", "True"]),
            "attention",
            2 * 2 * 4 * 4 * 8 / 2,
            2 * 3 * 32,
            64,
        ),
        (of("native_layer_norm", [[6, 4, 10], [], [10], [10], []]), "normalization", 8 * 240, 960, 960),
        (of("native_batch_norm", [[2, 5, 3, 3], [5], [5]]), "normalization", 8 * 90, 360, 360),
        (of("_softmax", [[4, 100], [], []]), "softmax", 5 * 400, 1600, 1600),
        (of("_softmax_backward_data", [[4, 100], [4, 100], [], []]), "softmax", 4 * 400, 3200, 1600),
        (of("add", [[4, 5], [5], []]), "elementwise", 20, 4 * 25, 80),
        (of("gelu", [[3, 7], []], [H, ""]), "elementwise", 8 * 21, 42, 42),
        # The third tensor is the output; a comparison writes a byte, and a choice the type of what it chooses from.
        (of("mul", [[3, 7], [], [3, 7]]), "elementwise", 21, 84, 84),
        (of("clamp_min", [[3, 7], [], [3, 7]], [F, "Int", F]), "elementwise", 21, 84, 84),
        (of("ge", [[3, 7], []], [F, "Scalar"]), "elementwise", 21, 84, 21),
        (of("where", [[3, 7], [3, 7], [1]], ["bool", F, F]), "elementwise", 21, 21 + 84 + 4, 84),
        # 2 x 3 planes of 5 x 5 outputs, each with a position of 8 bytes.
        (
            of("max_pool2d_with_indices", [[2, 3, 9, 9]], None, ["", "[3, 3]", "[2]", "[1]", "[1]", "False"]),
            "pooling",
            9 * 150,
            4 * 486,
            12 * 150,
        ),
        (
            of("avg_pool2d_backward", [[2, 3, 4, 4], [2, 3, 8, 8]], None, ["", "", "[2]", "[]", "[0]", "False"]),
            "pooling",
            4 * 96,
            4 * 96,
            4 * 384,
        ),
        (of("sum", [[8, 9], [], []]), "reduction", 72, 288, 4),
        (of("embedding", [[1000, 16], [4, 3], []], [F, "long int", ""]), "embedding", 0, 12 * 64 + 96, 12 * 64),
        # 12 lookups in a table of 2 rows read it once; their gradients are added to 2 rows.
        (of("embedding", [[2, 16], [4, 3], []], [F, "long int", ""]), "embedding", 0, 2 * 64 + 96, 12 * 64),
        (
            of("embedding_dense_backward", [[4, 3, 16], [4, 3], []], [F, "long int", ""], ["", "", "2"]),
            "embedding",
            12 * 16,
            14 * 64 + 96,
            2 * 64,
        ),
        (of("_thnn_fused_lstm_cell", [[2, 32], [2, 32], [2, 8]]), "rnn", 24 * 16, 4 * (64 + 64 + 16), 4 * (32 + 64)),
        (of("_foreach_add_", [[[3, 4], [5]], [[3, 4], [5]], []]), "optimizer", 17, 4 * 34, 4 * 17),
        (of("copy_", [[3, 4], [3, 4], []], ["long int", "int", ""]), "copy", 0, 48, 96),
        (of("fill_", [[3, 4], []], [H, ""]), "copy", 0, 0, 24),
        (of("cat", [[[3, 4], [5, 4]], []], ["TensorList", ""]), "copy", 0, 128, 128),
        (of("cat", [[[3, 4], [5, 4]], [], [8, 4]], ["TensorList", "", F]), "copy", 0, 128, 128),
    ],
)
def test_counts_by_hand(found: Operator | None, kind: str, flops: float, read: float, written: float) -> None:
    assert found is not None
    assert (found.kind, found.flops, found.bytes_read, found.bytes_written) == (kind, flops, read, written)
    assert found.bytes_moved == read + written


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [[2, 3], [4, 5]]),
        ("mm", [[2, 3]]),
        ("mm", [[0, 3], [3, 5]]),
        ("mm", [[2, -3], [-3, 5]]),
        ("mm", [[2.5, 3], [3, 5]]),
        ("mm", [[1 << 40, 1 << 40], [1 << 40, 2]]),
        ("mm", []),
        ("convolution", [[2, 3, 8, 8], [16, 3, 3, 3]]),
        ("bmm", [[2, 3], "text"]),
        ("embedding", [[1000], [3]]),
        ("max_pool2d_with_indices", [[2, 3, 9, 9]]),
        ("nothing_known", [[2, 3]]),
    ],
)
def test_shapes_that_do_not_tell_give_nothing(name: str, shapes: list) -> None:
    assert of(name, shapes) is None


@pytest.mark.parametrize("text", [None, "", "{", "[" * 9000, '{"a": 1}', '"text"', "[[2, 3], [3"])
def test_rows_that_are_no_arrays_count_as_not_recorded(text: str | None) -> None:
    assert operator_of(Call.of_row("aten::mm", text)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


ARGUMENTS = st.lists(JSON, max_size=8)


@given(st.sampled_from(sorted(counting_rules())), ARGUMENTS, ARGUMENTS, ARGUMENTS)
def test_damaged_calls_never_raise(name: str, shapes: list, dtypes: list, values: list) -> None:
    found = operator_of(Call.of_row(name, json.dumps(shapes), json.dumps(dtypes), json.dumps(values)))
    assert found is None or (found.flops >= 0 and found.bytes_moved >= 0 and min(found.dims) >= 1)


def test_the_backward_pass_of_attention_has_five_products() -> None:
    forward, backward = attention((2, 3, 8, 4), (3, 8)), attention((2, 3, 8, 4), (3, 8), backward=True)
    assert backward.flops == 2.5 * forward.flops


@pytest.mark.parametrize(
    "make",
    [
        lambda: batched_matmul(1, 0, 2, 3),
        lambda: attention((1, 1, 0, 1), (1, 1)),
        lambda: convolution((1, 0, 2), (1, 1, 1), (1, 1, 2)),
        lambda: rowwise("softmax", 1, -2),
        lambda: streaming("copy", 0, 0, 0),
    ],
)
def test_a_dimension_of_zero_is_named(make) -> None:
    with pytest.raises(InvalidInputError, match="must be 1 or more"):
        make()


def test_the_work_of_kernels_is_that_of_their_operators() -> None:
    ops = make_table(
        "ops",
        {
            "id": [1, 2, 3],
            "rank": [0, 0, 0],
            "name": ["aten::mm", "my::op", "aten::add"],
            "start_ns": [0, 1, 2],
            "dur_ns": [1, 1, 1],
            "shapes": ["[[2,3],[3,5]]", "[[4]]", None],
        },
    )
    kernels = make_table(
        "kernels",
        {
            "id": [10, 11, 12, 13, 14],
            "rank": [0] * 5,
            "name": ["gemm", "custom", "add", "ncclDevKernel_AllReduce", "lonely"],
            "start_ns": [0, 10, 20, 30, 40],
            "dur_ns": [40, 30, 20, 500, 10],
            "op_id": [1, 2, 3, 3, None],
        },
    )
    trace = Trace(TraceMeta(""), {"ops": ops, "kernels": kernels})
    found, shaped = operators_of_kernels(trace)
    assert [one.flops if one else None for one in found] == [60, None, None, None, None]
    assert shaped.tolist() == [True, True, False, False, False]
    coverage = operator_coverage(trace)
    assert coverage.kernel_ns == 100
    assert (coverage.with_op, coverage.with_shapes, coverage.known) == (0.9, 0.7, 0.4)


@pytest.mark.parametrize(
    ("name", "workgroups", "size", "expected"),
    [
        ("vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char*, 3ul> >", 2, 128, (1024, 12)),
        ("vectorized_elementwise_kernel<8, FillFunctor<c10::Half>, at::detail::Array<char*, 1> >", 2, 256, (4096, 2)),
        ("unrolled_elementwise_kernel<gelu<c10::BFloat16>, at::detail::Array<char*, 2> >", 3, 128, (1536, 4)),
        ("void at::native::elementwise_kernel<512, 1, copy<double> >", 5, 512, (2560, 16)),
        ("elementwise_kernel_manual_unroll<128, 8, copy<float> >", 1, 128, (1024, 8)),
    ],
)
def test_a_pointwise_kernel_tells_its_elements(
    name: str, workgroups: int, size: int, expected: tuple[int, int]
) -> None:
    found = operator_of_kernel(name, workgroups, size)
    assert found is not None
    assert (found.dims[0], found.bytes_moved / found.dims[0]) == expected


@pytest.mark.parametrize(
    "name", ["ampere_sgemm_128x64_tn", "softmax_warp_forward<float>", "", "elementwise", "a" * 10**5]
)
def test_other_kernels_tell_nothing(name: str) -> None:
    assert operator_of_kernel(name, 10, 256) is None
    assert operator_of_kernel("vectorized_elementwise_kernel<4, x>", 0, 256) is None


@pytest.mark.parametrize("groups", [float("nan"), float("inf"), -1, 2**60])
def test_a_grid_that_cannot_be_tells_nothing(groups: float) -> None:
    assert operator_of_kernel("vectorized_elementwise_kernel<4, x>", groups, 128) is None  # type: ignore[arg-type]
    assert operator_of_kernel("elementwise_kernel<128, 0, x>", 4, 128) is None
    assert operator_of_kernel("vectorized_elementwise_kernel<" + "9" * 5000 + ", x>", 4, 128) is None
