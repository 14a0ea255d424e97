"""BERT-Large: its synthetic steps, the study of its characterisation, and the measurements that it is scored on."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.devices import find_device
from profilers.errors import InvalidInputError
from replay import workloads
from replay.costs.shipped import load_parameters
from replay.graph.graph import RESOURCES
from replay.studies.workloads import layer_graph
from replay.what_ifs import parse_what_if
from replay.workloads.decoder import DecoderPass
from replay.workloads.transformer import embedding_block, head_block, layer_block
from seqpoint.cli import cli
from seqpoint.validation.bert import SUITE, layer_seconds, load_cases, profile_of
from seqpoint.validation.suites import SuiteOptions
from tests.graphs import make_graph

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "bert.csv").read_text().splitlines()))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no measurements at {DATA}")
BERT = workloads.load_transformers()["bert_large"]
NODES = {
    "bert_encoder_layer_0_attention_self_query": 3,
    "bert_encoder_layer_0_output_dense": 9,
    "matmul": 1,
    "softmax": 1,
    "bert_encoder_layer_0_output_dropout": 1,
    "bert_encoder_layer_0_output_layer_norm": 1,
    "gelu": 1,
}
LAYERS = "node,device,model,mode,batch,seq_len,fw_ms,bw_ms\n"
THROUGHPUT = (
    "framework,gpu,phase,sequence_tokens,nodes_count,gpus_count,precision,micro_batch_sequences,grad_accum_steps,"
    "throughput_sequences_per_s\n"
)


def job(**changes: object) -> workloads.TrainingJob:
    values = {"model": BERT, "length": 128, "global_batch": 4, "micro_batch": 4, "optimizer": "lamb"} | changes
    return workloads.TrainingJob(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_ranks_share_the_products_and_the_weights_of_a_layer(ranks: int) -> None:
    whole, part = (layer_block(BERT, DecoderPass(4, 128, training=True, ranks=n)) for n in (1, ranks))

    def flops(block: object) -> float:
        return sum(s.operator.flops for s in block.forward if "matmul" in s.operator.kind)  # type: ignore[attr-defined]

    assert flops(part) * ranks == flops(whole)
    replicated = 6 * BERT.hidden
    assert (part.weights - replicated) * ranks == whole.weights - replicated
    exchanges = [step.collective for step in (*part.forward, *part.backward) if step.collective]
    assert exchanges == ["all_reduce"] * (4 if ranks > 1 else 0)


def test_it_has_the_parameters_of_bert_large() -> None:
    run = DecoderPass(4, 128, training=True)
    parts = [embedding_block(BERT, run), head_block(BERT, run, shared=True)] + [layer_block(BERT, run)] * 24
    # 336.2 million with Hugging Face's heads; the vocabulary is filled up to 30,592 words here.
    assert sum(part.weights for part in parts) == 336_226_108 + 70 * 1025


@pytest.mark.parametrize(("precision", "optimizer", "moved"), [
    ("fp32", "lamb", 52), ("tf32", "lamb", 52), ("fp16", "lamb", 64), ("bf16", "lamb", 64),
    ("fp32", "adam", 44), ("fp16", "adam", 62),
])  # fmt: skip
def test_bytes_of_an_optimizer_follow_its_passes(precision: str, optimizer: str, moved: int) -> None:
    passes = job(precision=precision, optimizer=optimizer).optimizer_passes
    assert sum(each.read + each.written for each in passes) == moved


def test_a_trace_tells_phases_types_and_what_every_operator_reads() -> None:
    small = workloads.Transformer("small", "bert", 2, 256, 4, 1024, 1000)
    trace = sp.synthesize(job(model=small, precision="fp16"), "MI100")
    found = sp.characterize(trace)
    assert {row.name for row in found.rows("phase")} == {"forward", "backward", "optimizer"}
    rows = {row.name: row for row in found.rows()}
    parameters = 2 * layer_block(small, DecoderPass(4, 128)).weights
    stage, scale = rows["amp_C::multi_tensor_lamb_stage1"], rows["amp_C::multi_tensor_scale"]
    assert stage.bytes is not None and scale.bytes is not None and stage.bytes > 28 * parameters
    assert stage.bytes / 28 == pytest.approx(scale.bytes / 12, rel=1e-6)
    normalised = (5 * 512 + 80) * 256 * 2  # bytes of what is normalised: five times all tokens, once the masked ones
    assert rows["aten::native_layer_norm_backward"].bytes == 3 * normalised
    known = sum(row.time_ns for row in rows.values() if row.bytes is not None)
    assert known > 0.9 * found.facts.total_ns


def test_tf32_speeds_up_products_alone() -> None:
    small = workloads.Transformer("small", "bert", 1, 1024, 16, 4096, 1000)
    rows = {}
    for precision in ("fp32", "tf32"):
        found = sp.characterize(sp.synthesize(job(model=small, precision=precision), "A100-SXM4-80GB"))
        rows[precision] = {row.name: row.time_ns for row in found.rows("class")}
    assert rows["tf32"]["gemm"] < 0.5 * rows["fp32"]["gemm"]
    assert rows["tf32"]["optimizer"] == rows["fp32"]["optimizer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp4"}, "no precision 'fp4'; there are fp32, tf32, fp16, bf16, fp8"),
        ({"optimizer": "sgd"}, "no optimizer 'sgd'; there are adam, adam8bit, lamb"),
        ({"layout": workloads.Layout(2, sequence_parallel=True)}, "BERT has no sequence parallelism"),
        (
            {"model": workloads.load_transformers()["gpt2_large"]},
            "style gpt2; styles that train here are megatron, bert",
        ),
    ],
)
def test_what_does_not_train_is_said(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        job(**changes)


def test_near_memory_speeds_up_what_waits_for_memory_and_leaves_products() -> None:
    small = workloads.Transformer("small", "bert", 1, 1024, 16, 4096, 30522)
    graph = layer_graph(sp.synthesize(job(model=small, precision="fp32"), "MI100"), load_parameters())
    parameters = load_parameters()
    changed = parse_what_if("near_memory:all:4")(graph, parameters)
    floor = parameters["kernel_floor_amd_ns"]
    gemm = np.array(["gemm" in graph.names[n] if n >= 0 else False for n in graph.tasks.name])
    kernel = graph.on_device()
    assert (changed.tasks.duration_ns[gemm] == graph.tasks.duration_ns[gemm]).all()
    before, after = (g.tasks.duration_ns[kernel & ~gemm] for g in (graph, changed))
    assert (after <= before).all() and (after >= np.minimum(before, floor) - 1e-6).all()
    longest = int(np.argmax(before))
    assert (after[longest] - floor) / (before[longest] - floor) == pytest.approx(0.25, abs=0.02)
    assert (changed.tasks.demand[kernel & ~gemm, RESOURCES.index("hbm")] == 1.0).all()
    assert any("products stay" in note for note in changed.notes)


def test_near_memory_by_the_parameter_is_that_by_its_factor() -> None:
    graph = make_graph([50_000, 60_000], demands=[(0.2, 0.9), (0.2, 0.4)])
    parameters = load_parameters()
    times = parameters["near_memory_bandwidth"]
    one, two = (parse_what_if(text)(graph, parameters) for text in ("near_memory:all", f"near_memory:all:{times:g}"))
    assert one.tasks.duration_ns.tolist() == two.tasks.duration_ns.tolist()
    with pytest.raises(InvalidInputError):
        parse_what_if("near_memory:all:-1")


def test_the_study_reads_what_characterize_says() -> None:
    case = load_cases()["n128_b4_fp32"]
    profile = profile_of(case, load_parameters())
    assert profile.lamb_share == pytest.approx(
        next(row.time_ns for row in profile.characterization.rows("phase") if row.name == "optimizer")
        / profile.characterization.facts.total_ns
    )
    assert sum(profile.product_flops.values()) == 0.947040288768e12


def test_times_of_a_layer_are_those_of_its_operators() -> None:
    run, device = DecoderPass(8, 512, training=True), find_device("V100-PCIE-32GB")
    fitted, carried = (layer_seconds(run, device, load_parameters(), w) for w in ((), (device.name,)))
    assert set(fitted) == set(carried) and fitted != carried
    assert set(layer_seconds(DecoderPass(8, 512), device, load_parameters())) == set(fitted) - {"dropout"}


def test_measured_layers_and_throughput_are_read_from_any_folder(tmp_path: Path) -> None:
    lines = [f"{node},MI100,bert_large,train,2,512,{took},{took}" for node, took in NODES.items()]
    (tmp_path / "layers.csv").write_text(LAYERS + "\n".join(lines) + "\n")
    (tmp_path / "rates.csv").write_text(
        THROUGHPUT + "X,V100-32GB (DGX-2),1,128,1,1,FP16-mixed,64,4,200\nX,V100-32GB (DGX-2),1,128,1,1,FP32,32,8,48\n"
        "X,V100-32GB,2,512,1,1,FP32,4,8,19\n"
    )
    result = CliRunner().invoke(cli, ["validate", "bert", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    shown = CliRunner().invoke(cli, ["validate", "bert", str(tmp_path)])
    assert "X, phase 2: products of all tokens would run faster than the device can" in shown.stderr + shown.stdout
    assert "precision: X, V100-32GB (DGX-2), phase 1, 1 GPUs" in result.stdout
    layers, throughput = SUITE.read(sorted(tmp_path.glob("*.csv")), SuiteOptions()).values()
    assert layers[0].seconds["feed-forward"] == pytest.approx(0.018)
    assert [one.skips_padding for one in throughput] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAYERS + "matmul,MI100,bert_large,both,2,512,1,1\n", "row 1: no mode 'both'; there are inf, train"),
        (LAYERS + "matmul,MI100,bert_large,inf,2,512,0,0\n", r"row 1: fw_ms \+ bw_ms is 0"),
        (LAYERS + "matmul,MI100,bert_large,inf,2,512,1,0\n", "no operator of projection, feed-forward"),
        (LAYERS + "matmul,Nothing,bert_large,inf,2,512,1,0\n", "no device is called 'Nothing'"),
        (THROUGHPUT + "X,V100-32GB,1,128,1,1,FP8,64,4,200\n", "precision 'FP8'; there are FP16-mixed, TF32, FP32"),
        (THROUGHPUT + "X,V100-32GB,1,128,1,1,FP32,64,4,-2\n", "throughput_sequences_per_s is '-2'"),
        (THROUGHPUT + "X,V100-32GB,1,128,1,x,FP32,64,4,2\n", "gpus_count"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message) as error:
        SUITE.read([file], SuiteOptions())
    assert str(file) in str(error.value)


@needs_data
def test_no_share_or_ratio_is_another_than_the_table_says() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "jobs"))
    from accuracy_of_bert import table

    found = table(DATA)
    assert [row["case"] for row in found] == [row["case"] for row in TABLE]
    for row, expected in zip(found, TABLE, strict=True):
        assert float(row["ours"]) == pytest.approx(float(expected["ours"]), rel=2e-3, abs=2e-4), expected
        assert not row["limit"] or float(row["error"]) <= float(row["limit"]), row
