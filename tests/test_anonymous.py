"""An anonymous trace says public names only, and all figures stay."""

import json
import re
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

import seqpoint as sp
from benchmarks.sharing import compared, differences, private_words, texts_of, with_private_kernels
from profilers.trace.kernels import ClassRule, classify
from profilers.trace.schema import make_table
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace, TraceMeta
from profilers.writers.anonymous import anonymous_trace, public_names
from replay.costs.occupancy import workgroup_of_name
from replay.costs.tiles import tile_of_name
from replay.from_trace.index import dtype_of_name
from tests.commands import Run
from tests.traces import event, kernel, launch

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data" / "traces" / "kineto"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, {}>(int, {})"
FRAME = "{}.py(33): {}"


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A trace of a file with a secret in every place that has a text."""
    group = {"Process Group Name": "zebra_experts", "Collective name": "allreduce", "Group size": 1, "dtype": "Float"}
    secrets = {"Concrete Inputs": ["", "/data/zebra", "5"], "host": "bulldog"}
    names = ["zebra_router", ELEMENTWISE.format("zebra::Quagga", "zebra::Quagga"), "zebra_hgemm_128x64_32x6_nt"]
    steps = [
        [
            event(f"ProfilerStep#{number}", "user_annotation", t, 990),
            event(FRAME.format("/home/zebra/train", "zebra_main"), "python_function", t, 980),
            event("nn.Module: ZebraBlock_0", "python_function", t + 5, 900),
            event("zebra::route", "cpu_op", t + 10, 80, **secrets),
            event("autograd::engine::evaluate_function: ZebraRouteBackward0", "cpu_op", t + 100, 100),
            event("zebra phase 12", "user_annotation", t + 210, 50),
            *(launch(t + 20 + 100 * i, 10 * number + i) for i in range(4)),
            *(kernel(name, t + 50 + 200 * i, 150, 10 * number + i) for i, name in enumerate(names)),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", t + 700, 90,
                   10 * number + 3, **group),
        ]
        for number, t in ((1, 1000.0), (2, 2000.0), (3, 3000.0))
    ]  # fmt: skip
    devices = [{"id": 0, "name": "Zebra 9000 board"}]
    path = tmp_path_factory.mktemp("private") / "zebra_host17_a100.json"
    path.write_text(json.dumps({"traceEvents": list(chain(*steps)), "deviceProperties": devices, "host": "bulldog"}))
    return sp.open(path)


def test_every_private_name_is_numbered_and_the_pieces_that_figures_follow_from_stay(private: Trace) -> None:
    shared, counts = anonymous_trace(private)
    assert dict.fromkeys(shared.kernels["name"].to_pylist()) == dict.fromkeys(
        ("kernel1", ELEMENTWISE.format("type1::type2", "type1::type2"), "kernel2_hgemm_128x64_32x6_",
         "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    )  # fmt: skip
    ops = list(dict.fromkeys(shared.ops["name"].to_pylist()))
    assert ops == ["op1", "autograd::engine::evaluate_function: op2Backward0"]
    ranges = dict.fromkeys(shared.ranges["name"].to_pylist())
    assert [*ranges][:4] == ["ProfilerStep#1", "file1.py(33): function1", "nn.Module: range1_0", "range2"]
    assert set(shared.collectives["group_name"].to_pylist()) == {"group1"}
    assert shared.meta.sources == ("file_1_A100-SXM4-80GB",) and shared.meta.devices[0].name == "device1"
    assert counts["kernel"] == 2 and counts["op"] == 2


def test_no_secret_is_in_any_written_file_and_all_figures_stay(private: Trace, tmp_path: Path) -> None:
    ruled = replace(private, meta=replace(private.meta, class_rules=(ClassRule("zebra_router", "sort"),)))
    row, places = compared(ruled, tmp_path)
    assert places == [] and row["words"] == "none"
    texts = " ".join(texts_of(tmp_path / "shared.trace")).lower()
    assert re.search("zebra|bulldog|router|quagga|/data|/home", texts) is None
    assert load_trace(tmp_path / "shared.trace").meta.class_of("kernel1") == "sort"
    # The check itself finds what would be left: the trace as it was has secrets.
    assert {"zebra", "bulldog", "quagga"} <= private_words(save_trace(private, tmp_path / "left.trace"))


def test_an_anonymous_trace_stays_as_it_is_and_equal_texts_stay_equal(private: Trace) -> None:
    shared, _ = anonymous_trace(private)
    again, counts = anonymous_trace(shared)
    assert counts == {} and again.tables == shared.tables
    for kind, table in private.tables.items():
        for column in table.schema.names:
            columns = (map(str, each[column].to_pylist()) for each in (table, shared.tables[kind]))
            pairs = set(zip(*columns, strict=True))
            assert len({before for before, _ in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("text", "is_public"),
    [
        ("aten::_scaled_dot_product_flash_attention", True),
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", True),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEvPT0_iiiii", True),
        ("_ZN5zebra24add_rmsnorm_quant_kernelIDF16bLi256EEvPT0_iiiii", False),
        ("_ZNsecret", False),
        ("10.1.22.3", False),
        ("forward/model", False),
        ("ZEBRAforward", False),
        ("löwe", False),
        ("[1, 2]", True),
    ],
)
def test_what_is_public(text: str, is_public: bool) -> None:
    assert public_names().is_public(text) is is_public


def test_every_telling_piece_is_public_and_a_name_that_looks_like_a_rule_says_no_more() -> None:
    lists = public_names()
    pieces = ("_MT128x64x32", "PostGSU", "splitk_reduce", "beta_only", "hgemm", "nvjet", "BFloat16", "warpgroupsize")
    assert [piece for piece in pieces if lists.telling.findall(piece) and not lists.is_public(piece)] == []
    kernels = [
        "LaunchZebraKernel",
        "zebra_landfill<Quagga>",
        "triton_poi_fused_zebra_0",
        "_ZN5zebra4gemmEv",
        "löwe_gemm",
    ]
    table = make_table("kernels", {"id": range(5), "rank": [0] * 5, "name": kernels, "start_ns": range(5)})
    shared, _ = anonymous_trace(Trace(TraceMeta("kineto"), {"kernels": table}))
    assert shared.kernels["name"].to_pylist() == [
        "kernel1", "copy_kernel2_fill", "triton_poi_fused_kernel3_0", "gemm_kernel4", "gemm_kernel5"
    ]  # fmt: skip
    assert [shared.meta.class_of(name) for name in shared.kernels["name"].to_pylist()] == list(map(classify, kernels))


def test_damaged_json_says_nothing(private: Trace) -> None:
    import pyarrow as pa

    index = private.ops.schema.get_field_index("args")
    field = private.ops.schema.field(index)
    damaged = pa.array(['{"a": zebra'] * private.ops.num_rows).dictionary_encode().cast(field.type)
    shared, _ = anonymous_trace(private.with_tables(ops=private.ops.set_column(index, field, damaged)))
    assert set(shared.ops["args"].to_pylist()) == {"{}"}


def test_the_command_writes_a_trace_or_a_page_for_perfetto(run: Run, private: Trace, tmp_path: Path) -> None:
    source, shared = save_trace(private, tmp_path / "zebra.trace"), tmp_path / "shared.trace"
    done = run("export", source, "--anonymous", "-o", shared)
    assert done.code == 0 and "2 private kernels" in done.out and private_words(shared) == set()
    done = run("export", source, "--anonymous", "-o", tmp_path / "shared.json", "--json")
    assert json.loads(done.out)["renamed"]["kernel"] == 2
    assert "zebra" not in (tmp_path / "shared.json").read_text().lower()
    refused = run("export", source, "-o", tmp_path / "other.trace")
    assert refused.code == 1 and "--anonymous" in refused.err and not (tmp_path / "other.trace").exists()
    assert run("export", source, "--anonymous", "--graph", "-o", tmp_path / "g.et").code == 2


def test_a_sample_keeps_its_figures_even_if_no_kernel_is_public() -> None:
    trace = sp.open(ROOT / "datasets" / "samples" / "h100" / "language_step.pt.trace.json.gz")
    trace = with_private_kernels(trace)
    shared, counts = anonymous_trace(trace)
    assert counts["kernel"] > 20
    for function in (sp.describe, sp.characterize):
        assert differences(*(function(each).to_dict() for each in (trace, shared)))[1] == []
    for names in zip(*(dict.fromkeys(each.kernels["name"].to_pylist()) for each in (trace, shared)), strict=True):
        for fact in (tile_of_name, dtype_of_name, lambda name: workgroup_of_name(name, 256)):
            assert len(set(map(fact, names))) == 1, names


@pytest.mark.skipif(not SHARED.exists(), reason="shared traces are not here")
@pytest.mark.parametrize(
    "name", ["hta/critical_path_alexnet.json.gz", "tracelens/other/sglang_Qwen3-8B_decode.json.gz"]
)
def test_real_traces_keep_their_figures_and_say_public_words_only(name: str, tmp_path: Path) -> None:
    row, places = compared(sp.open(SHARED / name), tmp_path)
    assert places == [] and row["words"] == "none"
    shutil.rmtree(tmp_path)
