"""A bad row in the middle of what a suite reads is skipped and named; the other rows are scored."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from replay.calibration.tables import MeasuredTable, skipped_rows, skipping_rows
from seqpoint.cli import cli
from seqpoint.validation.suites import SUITES
from tests.test_detailed_command import PTX
from tests.test_job_memory import SIMUMAX as MEMORY
from tests.test_training_tables import BERT, MLPERF, SIMUMAX
from tests.traces import write_trace

JOBS = Path(__file__).parents[2] / "shared" / "data" / "jobs"
OPERATORS = ("op,device,latency_ms,B,H", "ln,A100-PCIE-40GB,0.1,4096,1024", "softmax,Tesla T4,0.2,4096,2048")
COLLECTIVES = (
    "collective,size,num_workers,devices_per_node,device,time_stats.all_reduce.median",
    "all_reduce,1048576,8,8,NVIDIA A100-SXM4-80GB,0.2", "all_reduce,8388608,8,8,NVIDIA A100-SXM4-80GB,0.4",
)  # fmt: skip
SWEEP = (
    "collective,ranks_count,message_bytes,time_us,system",
    "all_reduce,8,1048576,200,a100_sxm", "all_reduce,8,8388608,400,a100_sxm",
)  # fmt: skip
FRAMEWORK = (
    "system,framework,dtype,latency_us,m_elements,n_elements,k_elements",
    "h100_sxm,vllm,bfloat16,100,4096,4096,4096", "h100_sxm,vllm,bfloat16,200,8192,4096,4096",
)  # fmt: skip
MODELS = (
    "device,model,mode,seq_len,batch,e2e_ms",
    "Tesla_V100-PCIE-32GB,bert_large,inf,512,8,250", "Tesla_T4,bert_large,inf,512,8,900",
)  # fmt: skip
MEGATRON = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor parallelism,"
    "data parallelism,pipeline parallelism,iteration time (ms)",
    "2,16,8,1024,16,24,1024,1,1,2,372.2", "4,16,8,1024,16,24,1024,1,2,2,200",
)  # fmt: skip
PASSES = ("kernel,workgroups_per_cu,latency_us", *(f"k,{n},{10 + n}" for n in range(1, 10)))
DRAM = (
    "mapping,pattern,window,requests,cycles,read_row_hits,write_row_hits",
    "rorabgbachco,stream_read,64,120000,104853,116198,0",
)  # fmt: skip
COUNTERS = (
    "benchmark,kernel,l1_read_hits_sectors,l1_read_misses_sectors,l2_read_hits_sectors,l2_read_misses_sectors,"
    "dram_read_bytes,dram_write_bytes", "other,one,1,2,3,4,5,6",
)  # fmt: skip
TIMES = ("op,device,B,H,latency_ms,block_x,block_y", "add,Tesla V100-PCIE-32GB,4096,1024,0.1,128,1")
GEMMS = (
    "m,n,k,macro_tile_m,macro_tile_n,kernel,time_us",
    *(f"{m},{n},1024,{tile},{tile},k{tile},{m * n / 4e4 + tile}" for m in (512, 1024, 2048) for n in (512, 768, 2048)
      for tile in (64, 128)),
)  # fmt: skip
PRODUCTS = (
    "system,dtype,m_elements,n_elements,k_elements,latency_us",
    "a100_sxm,bfloat16,4096,4096,4096,600", "h100_sxm,bfloat16,4096,4096,4096,250",
)  # fmt: skip
NCCL = (
    "system,implementation,dtype,collective,ranks_count,message_bytes,time_us",
    "b200_sxm,NCCL,half,all_reduce,4,4194304,40", "b200_sxm,NCCL,half,all_reduce,8,4194304,50",
)  # fmt: skip
LAYER = (
    "device,model,mode,seq_len,batch,target,input_shapes,output_shape,fw_ms",
    'Tesla T4,bert,inf,512,8,h.0.fc,"[[4096, 1024]]","(4096, 4096)",9',
    'Tesla P4,bert,inf,512,8,h.0.fc,"[[4096, 1024]]","(4096, 4096)",9',
)  # fmt: skip
LAYERS = (
    "node,device,model,mode,batch,seq_len,fw_ms,bw_ms",
    *(f"{node},Tesla T4,bert_large,inf,8,512,{0.5 + row},0" for row, node in enumerate(
        ["bert_encoder_layer_0_output_dense", "bert_encoder_layer_0_attention_self_query", "matmul", "softmax",
         "bert_encoder_layer_0_output_layer_norm", "bert_encoder_layer_0_dropout", "gelu"])),
)  # fmt: skip


def table(folder: Path, name: str, lines: tuple[str, ...], bad: str) -> None:
    """Write a CSV file with a bad line below its first row."""
    (folder / name).write_text("\n".join([*lines[:2], bad, *lines[2:]]) + "\n")


def records(folder: Path, good: Mapping[str, object], **change: object) -> None:
    """Write a CSV file of two good rows with a bad one between them."""
    with (folder / "records.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(good))
        writer.writeheader()
        writer.writerows([good, {**good, **change}, good])


def memory(folder: Path) -> None:
    used = {f"memory_{name}_rank{i}_mib": 68149 for i in range(8) for name in ("allocated", "reserved")}
    records(folder, MEMORY | used, memory_allocated_rank3_mib="much")


def kernels(folder: Path, **change: object) -> None:
    """Write measured kernels: the one in the middle is bad, and so is the second of two rows of counters."""
    (folder / "ptx").mkdir()
    shutil.copy(PTX, folder / "ptx" / "k.ptx")
    pointers = [{"name": name, "type": "f32*", "n": 4096} for name in "yx"]
    good = {
        "ptx": "k.ptx", "entry": "copy", "grid": [8, 1, 1], "block": [128, 1, 1], "measured_cycles": 5000.0,
        "params": [*pointers, {"name": "n", "type": "s32", "value": 4096}], "counters_row": {"kernel": "copy"},
    }  # fmt: skip
    bad = {**good, "params": [{**pointers[0], **change}, pointers[1], good["params"][2]]}  # type: ignore[index]
    (folder / "ptx" / "kernels.json").write_text(json.dumps({"kernels": {"a": good, "b": bad, "c": good}}))


def texture(folder: Path) -> None:
    kernels(folder, texture={"height": 4, "format": "f32", "filter": "point", "address": "clamp"})


def counters(folder: Path) -> None:
    kernels(folder)
    (folder / "hardware_counters").mkdir()
    lines = "benchmark,kernel,l2_read_hit_rate,dram_read_bytes\nx,copy,0.5,16384\nx,other,a lot,1\n"
    (folder / "hardware_counters" / "accelsim_hw_perf_volta.csv").write_text(lines)


def straggler_jobs(folder: Path) -> None:
    if not JOBS.exists():
        pytest.skip(f"no measured jobs at {JOBS}")
    for name in ("straggler_traces.parquet", "straggler_answers.json"):
        shutil.copy(JOBS / name, folder)
    path = folder / "straggler_traces.parquet"
    jobs = pq.read_table(path)
    names = pc.unique(jobs["job"]).to_pylist()
    jobs = pa.concat_tables([jobs.filter(pc.equal(jobs["job"], name)) for name in names[:2]])
    duration = jobs["duration_s"].to_pylist()
    duration[2] = None
    column = pa.array(duration, jobs["duration_s"].type)
    pq.write_table(jobs.set_column(jobs.schema.get_field_index("duration_s"), "duration_s", column), path)


def epochs(folder: Path) -> None:
    for name in ("base", "again", "half", "wide"):
        (folder / "speech").mkdir(exist_ok=True)
        shutil.copy(dataset_path(f"measured/epochs/speech/{name}-sorted.parquet"), folder / "speech")
    path = folder / "speech" / "half-sorted.parquet"
    log = pq.read_table(path)
    lengths = log["sequence_length"].to_pylist()
    lengths[1] = None
    index = log.schema.get_field_index("sequence_length")
    pq.write_table(log.set_column(index, "sequence_length", pa.array(lengths, pa.int64())), path)


def figures(folder: Path) -> None:
    text = dataset_path("published/c3.toml").read_text()
    (folder / "c3.toml").write_text(text + "\n[figures.one]\nvalue = 1\n")


def traces(folder: Path) -> None:
    for name in ("a", "c"):
        write_trace(folder / f"{name}.json", 4)
    (folder / "b.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}]}')


def of(name: str, lines: tuple[str, ...], bad: str) -> Callable[[Path], None]:
    return lambda folder: table(folder, name, lines, bad)


def changed(good: Mapping[str, object], **change: object) -> Callable[[Path], None]:
    return lambda folder: records(folder, good, **change)


#: By suite and case: what writes the files, the row that is skipped, and a part of the reason.
BAD: dict[tuple[str, str], tuple[Callable[[Path], None], int | str | None, str]] = {
    ("kernels", "no number"): (of("a.csv", OPERATORS, "ln,Tesla T4,fast,4096,1024"), 2, "latency_ms is 'fast'"),
    ("kernels", "empty"): (of("a.csv", OPERATORS, "ln,Tesla T4,,4096,1024"), 2, "latency_ms is nan"),
    ("kernels", "cells"): (of("a.csv", OPERATORS, "ln,Tesla T4,1"), 2, "3 cells, not 5"),
    ("kernels", "device"): (of("a.csv", OPERATORS, "ln,NVIDIA H300 NVL,1,4096,1024"), 2, "'NVIDIA H300 NVL'"),
    ("kernels", "operator"): (of("a.csv", OPERATORS, "lm,Tesla T4,1,4096,1024"), 2, "no operator 'lm'"),
    ("kernels", "no UTF-8"): (
        lambda folder: (folder / "a.csv").write_bytes("\n".join(
            [*OPERATORS[:2], "ln,Tesla T\udc94,1,4096,1024", OPERATORS[2]]).encode(errors="surrogateescape")),
        2, "device is no UTF-8"),
    ("kernels", "framework"): (
        of("a_gemm.csv", FRAMEWORK, "h300_nvl,vllm,bfloat16,100,4096,4096,4096"), 2, "'h300_nvl'"),
    ("kernels", "sweep"): (of("llmcompass_a100_gelu.csv", ("1024,10", "2048,20", "4096,30"), "8192"), 3, "columns are"),
    ("collectives", "size"): (
        of("a.csv", COLLECTIVES, "all_reduce,none,8,8,NVIDIA A100-SXM4-80GB,1"), 2, "size is 'none'"),
    ("collectives", "system"): (of("a.csv", SWEEP, "all_reduce,8,1048576,200,voodoo"), 2, "'voodoo'"),
    ("models", "model"): (of("a.csv", MODELS, "Tesla_T4,bert_huge,inf,512,8,9"), 2, "bert_huge"),
    ("models", "device"): (of("a.csv", MODELS, "Voodoo 2,bert_large,inf,512,8,9"), 2, "'Voodoo 2'"),
    ("training", "Megatron"): (of("a.csv", MEGATRON, "2,16,8,1024,16,24,1024,1,1,2,"), 2, "iteration time (ms) is ''"),
    ("training", "MLPerf"): (changed(MLPERF, step_time_median_s="x"), 2, "step_time_median_s is 'x'"),
    ("training", "device"): (changed(MLPERF, accelerator="NVIDIA H300 NVL"), 2, "no device 'NVIDIA H300 NVL'"),
    ("training", "SimuMax"): (changed(SIMUMAX, tp_ranks="3"), 2, "do not divide"),
    ("training", "BERT"): (changed(BERT, gpus_count="x"), 2, "gpus_count is 'x'"),
    ("job_memory", "memory"): (memory, 2, "memory_allocated_rank3_mib is 'much'"),
    ("bert", "layers"): (of("a.csv", LAYERS, "gelu,Tesla T4,bert_large,inf,8,512,x,0"), 2, "fw_ms is 'x'"),
    ("bert", "throughput"): (
        changed({**{k: v for k, v in BERT.items() if k != "step_time_s"}, "phase": 2,
                 "throughput_sequences_per_s": 900}, precision="FP4"), 2, "precision 'FP4'"),
    ("stragglers", "duration"): (straggler_jobs, 3, "duration_s is missing"),
    ("selection", "length"): (epochs, None, "sequence_length"),
    ("replay", "trace"): (traces, None, "none of its 1 events"),
    ("contention", "trace"): (traces, None, "none of its 1 events"),
    ("audit", "trace"): (traces, None, "none of its 1 events"),
    ("occupancy", "latency"): (of("a.csv", PASSES, "k,20,0"), 2, "latency_us is 0"),
    ("gemms", "tile"): (of("a100_f32.csv", GEMMS, "512,512,1024,x,64,k64,1"), 2, "macro_tile_m is 'x'"),
    ("gemms", "time"): (of("a100_f32.csv", GEMMS, "512,512,1024,64,64,k64,1e30"), 2, "check its unit"),
    ("memory", "pattern"): (of("a.csv", DRAM, "rorabgbachco,zigzag,32,1,1,0,0"), 2, "no pattern 'zigzag'"),
    ("memory", "mapping"): (of("a.csv", DRAM, "RoRoRo,stream_read,32,1,1,0,0"), 2, "RoRoRo"),
    ("memory", "counter"): (of("a.csv", (*COUNTERS, *TIMES[2:]), "other,two,-1,2,3,4,5,6"), 2, "l1_read_hits_sectors"),
    ("memory", "time"): (of("a.csv", TIMES, "add,Voodoo 2,4096,1024,0.1,128,1"), 2, "'Voodoo 2'"),
    ("detailed", "texture"): (texture, "b", "width"),
    ("detailed", "null pointer"): (lambda folder: kernels(folder, n=None), "b", "n: Expected `int`, got nothing"),
    ("detailed", "alias"): (lambda folder: kernels(folder, alias_of="nobody"), "b", "nobody"),
    ("detailed", "range"): (
        lambda folder: kernels(folder, fill={"kind": "randint", "low": 5, "high": 5}), "b", "low must be below high"),
    ("detailed", "counter"): (counters, 2, "l2_read_hit_rate is 'a lot'"),
    ("published", "entry"): (figures, "figures.one", "lacks the key"),
    ("pairs", "operators"): (
        of("a.csv", PRODUCTS, "h100_sxm,bfloat16,4096,4096,4096,?"), 2, "latency_us is '?'"),
    ("pairs", "device"): (of("a.csv", PRODUCTS, "h300_nvl,bfloat16,4096,4096,4096,1"), 2, "'h300_nvl'"),
    ("pairs", "collectives"): (of("a.csv", NCCL, "b200_sxm,NCCL,half,all_rescue,8,4194304,9"), 2, "'all_rescue'"),
    ("pairs", "models"): (of("a.csv", LAYER, "Tesla T4,bert,inf,512,8,fc,[[8;1]],[1],1"), 2, "no list of sizes"),
}  # fmt: skip


#: Files whose good rows make no case: nothing is compared of them.
NO_CASE = (("memory", "counter"), ("bert", "throughput"), ("contention", "trace"))


def test_every_suite_has_a_bad_row() -> None:
    assert {suite for suite, _ in BAD} == set(SUITES)


@pytest.mark.parametrize(("suite", "case"), BAD, ids=lambda value: value)
def test_a_bad_row_is_skipped_and_named(tmp_path: Path, suite: str, case: str) -> None:
    write, row, reason = BAD[suite, case]
    write(tmp_path)
    shown = CliRunner().invoke(cli, ["validate", suite, str(tmp_path), "--json"])
    assert shown.exit_code == 0, repr(shown.exception)
    (skipped,) = json.loads(shown.stdout)["skipped_rows"]
    assert str(tmp_path) in skipped["file"] and skipped["row"] == row and reason in skipped["reason"]
    assert reason in shown.stderr
    if (suite, case) not in NO_CASE:
        assert json.loads(shown.stdout)["rows"]


def test_rows_keep_their_numbers_and_other_files_their_rows(tmp_path: Path) -> None:
    bad = ["ln,Tesla T4,-1,4096,1024", "ln,Nobody,1,4096,1024", "ln,Tesla T4,1,4096,0.5"]
    (tmp_path / "a.csv").write_text("\n".join([*OPERATORS, *bad, "ln,Tesla T4,1,4096,8192"]) + "\n")
    (tmp_path / "b.csv").write_text("\n".join([*OPERATORS, "ln,Tesla T4,?,4096,8192"]) + "\n")
    validation = sp.validate("kernels", tmp_path)
    skipped = validation.results["kernels"].skipped
    assert sorted((Path(row.file).name, row.row) for row in skipped) == [
        ("a.csv", 3),
        ("a.csv", 4),
        ("a.csv", 5),
        ("b.csv", 3),
    ]
    assert any(note.startswith("4 rows are skipped") for note in validation.summary()[-6:]) or any(
        "4 rows are skipped" in note for note in validation.summary()
    )


def test_rows_alike_are_counted_together(tmp_path: Path) -> None:
    lines = [*OPERATORS, *["ln,Tesla T4,-1,4096,1024"] * 200]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    result = sp.validate("kernels", tmp_path).results["kernels"]
    assert len(result.skipped) == 200
    assert result.notes[-2:] == [
        "200 rows are skipped; --json lists all",
        f"skipped: {tmp_path / 'a.csv'}: row 3: latency_ms is -1; it must be finite and above zero (and 199 more)",
    ]


def test_a_file_of_a_folder_that_cannot_be_read_is_skipped_and_one_that_is_named_is_not(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("\n".join(COLLECTIVES) + "\n")
    header = COLLECTIVES[0].rpartition(",")[0]
    (tmp_path / "short.csv").write_text(f"{header}\n{COLLECTIVES[1].rpartition(',')[0]}\n")
    result = sp.validate("collectives", tmp_path).results["collectives"]
    (skipped,) = result.skipped
    assert skipped.content() == {
        "file": str(tmp_path / "short.csv"), "row": None,
        "reason": "no column time_stats.all_reduce.median; needed are time_stats.<collective>.median (ms), "
        "size (bytes), num_workers, devices_per_node, collective",
    }  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"short.csv: no column"):
        sp.validate("collectives", [tmp_path / "good.csv", tmp_path / "short.csv"])


def test_a_table_of_bad_rows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{OPERATORS[0]}\nln,Tesla T4,-1,4096,1024\nln,Nobody,1,4096,1024\n")
    with pytest.raises(InvalidInputError, match=r"a.csv: row 1: latency_ms is -1"):
        sp.validate("kernels", tmp_path)


def test_the_scoreboard_names_skipped_rows(tmp_path: Path) -> None:
    table(tmp_path, "a.csv", OPERATORS, "ln,Nobody,1,4096,1024")
    shown = CliRunner().invoke(cli, ["validate", str(tmp_path), "--json"])
    (skipped,) = json.loads(shown.stdout)["skipped_rows"]
    assert (skipped["suite"], skipped["row"]) == ("kernels", 2) and "kernels skipped" in shown.stderr


def test_refused_rows_are_errors_elsewhere(tmp_path: Path) -> None:
    table(tmp_path, "a.csv", OPERATORS, "ln,Tesla T4,?,4096,1024")
    measured = MeasuredTable.read(tmp_path / "a.csv")
    assert measured is not None and len(skipped_rows(tmp_path / "a.csv")) == 0
    with pytest.raises(InvalidInputError, match=r"row 2: latency_ms is '\?'"):
        measured.floats("latency_ms")
    with skipping_rows() as skipped, pytest.raises(InvalidInputError):
        measured.floats("latency_ms")
    assert not skipped
