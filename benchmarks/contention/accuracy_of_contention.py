"""Regenerate tests/accuracy/contention.csv (traces) or tests/accuracy/recordings.csv (recordings).

    python benchmarks/contention/accuracy_of_contention.py traces ../shared/data/traces > tests/accuracy/contention.csv
    python benchmarks/contention/accuracy_of_contention.py recordings > tests/accuracy/recordings.csv

Traces: overlapped kernels against the same kernels alone, a row for each trace and method. Errors are in % of the times
alone. A trace without overlapped kernels has a row with the reason. It takes some minutes.

Recordings: scenarios of every recording in datasets/measured, or of another folder. `shipped` is with the parameters of
datasets/parameters.toml, `left out` with fits to the other quarters. `takes` is how far takes of a scenario differ.
Without a recording there is only the head.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from profilers.errors import NotFoundError, SeqPointError
from profilers.files import dataset_path
from replay.contention import ContentionRecording, read_contention
from replay.costs.shipped import load_parameters
from seqpoint.validation.contention import (
    ContentionCase,
    predict_contention,
    refit_contention,
    score_by_mechanism,
    score_order,
)
from seqpoint.validation.contention_traces import MethodScore, TraceContentionScore, score_contention
from seqpoint.validation.replay import load_recording

COLUMNS = (
    "recording", "device", "how", "mechanism", "scenarios", "median", "p90", "ends", "slowdown", "serial", "free",
    "covered", "takes", "takes_p90", "order_compared", "order_right",
)  # fmt: skip
#: Files of each trace, as a pattern below the folder of traces.
TRACES: Mapping[str, str] = MappingProxyType(
    {
        "ddp4": "kineto/ddp4/mi300_4ranks_merged.json.gz",
        "nanogpt8": "kineto/nanogpt8/*.json.gz",
        "trace_diff_a100": "kineto/hta/trace_diff_a100.json.gz",
        "trace_diff_v100": "kineto/hta/trace_diff_v100.json.gz",
        "dlrm8": "kineto/dlrm8/*.json.gz",
        "dlrm128": "kineto/hta/dlrm128_sampled_rank*.json.gz",
        "multistream_a100": "kineto/hta/multistream_a100_rank0.json.gz",
        "nccl_a100": "kineto/hta/nccl_a100_rank0.json.gz",
        "resnet_act_checkpoint": "kineto/tracelens/other/resnet_act_checkpoint_mi300_rank0.json.gz",
        "xdit_flux": "kineto/tracelens/other/xdit_flux_mi300.json.gz",
        "sglang_prefill": "kineto/tracelens/other/sglang_Qwen3-8B_prefilldecode.json.gz",
        "nsys_mfu_2gpu": "nsys/mfu_2gpu_before_2026.2.sqlite",
        "nsys_h100_2gpu": "nsys/h100_2gpu_1s_2026.2.sqlite",
        "nsys_cloverleaf": "nsys/cloverleaf_a100_2024.5.sqlite",
        "nsys_saxpy": "nsys/saxpy_mpi_a100_2022.2.sqlite",
        "nsys_fuser": "nsys/fuser_h200_2024.6.sqlite",
        "rocprofv3_50steps": "rocm/rocprofv3_mi350x_50steps.json.gz",
        "rpd_vllm": "rocm/rpd_mi300x_vllm.rpd.gz",
        "rocprofv1_gfx942": "rocm/rocprofv1_gfx942/results.db",
    }
)
MEASURES = ("mean", "p90", "inferred", "explained", "sides", "covered")
TRACE_COLUMNS = ("trace", "device", "method", *MEASURES, "noise", "kernels", "groups", "slowed", "remark")


def trace_rows(folder: Path, names: Sequence[str] = tuple(TRACES)) -> Iterator[dict[str, str]]:
    """Return rows of traces, one for each method; one without a method for a trace without overlapped kernels."""
    for name in names:
        files = sorted(folder.glob(TRACES[name]))
        if not files:
            raise NotFoundError(f"{folder / TRACES[name]}: no such trace; name the folder of traces")
        try:
            score = score_contention(name, load_recording(files, "auto"), parameters=load_parameters())
        except SeqPointError as error:
            yield {**dict.fromkeys(TRACE_COLUMNS, ""), "trace": name, "remark": str(error).rpartition(": ")[2]}
            continue
        for method, errors in (score.methods or {"": None}).items():
            yield _trace_row(score, method, errors)


def _trace_row(score: TraceContentionScore, method: str, errors: MethodScore | None) -> dict[str, str]:
    figures = dict.fromkeys(MEASURES, float("nan")) if errors is None else asdict(errors)
    shares = {"noise": score.noise, **figures}
    return {
        **{name: "" if value != value else f"{100 * value:.2f}" for name, value in shares.items()},
        **{name: str(getattr(score, name)) for name in ("trace", "device", "kernels", "groups", "slowed", "remark")},
        "method": method,
    }


#: Columns that may not get worse: errors, in per cent.
ERRORS = ("median", "p90", "ends", "slowdown")


def shipped_recordings(folder: Path | None = None) -> list[ContentionRecording]:
    """Return the recordings of a folder, by default those that the project ships; none where there is none."""
    try:
        return read_contention(folder or dataset_path("measured"))
    except NotFoundError:
        return []


def rows(recording: ContentionRecording, how: str) -> list[dict[str, str]]:
    """Return the rows of a recording, a mechanism each and all."""
    cases = (
        predict_contention([recording], load_parameters())
        if how == "shipped"
        else refit_contention([recording], load_parameters())
    )
    return [_row((recording, how, one.mechanism), cases) for one in score_by_mechanism(cases)]


def _row(what: tuple[ContentionRecording, str, str], cases: Sequence[ContentionCase]) -> dict[str, str]:
    recording, how, mechanism = what
    mine = [case for case in cases if mechanism in (case.mechanism, "all")]
    score, order = score_by_mechanism(mine)[-1], score_order(mine)
    shares = {
        "median": score.median, "p90": score.p90, "ends": score.ends, "slowdown": score.slowdown,
        "serial": score.serial, "free": score.free, "covered": score.covered, "takes": score.spread,
        "takes_p90": score.spread_p90,
    }  # fmt: skip
    return {
        "recording": recording.source,
        "device": recording.device.name,
        "how": how,
        "mechanism": mechanism,
        "scenarios": str(score.cases),
        **{name: f"{100 * value:.2f}" for name, value in shares.items()},
        "order_compared": str(order.compared),
        "order_right": str(order.right),
    }


def _write(columns: Sequence[str], lines: Iterator[dict[str, str]]) -> None:
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(line)
        sys.stdout.flush()


if __name__ == "__main__":
    what, paths = sys.argv[1], [Path(path) for path in sys.argv[2:3]]
    if what == "traces":
        _write(TRACE_COLUMNS, trace_rows(*paths))
    else:
        recordings = shipped_recordings(*paths)
        _write(COLUMNS, (line for each in recordings for how in ("shipped", "left out") for line in rows(each, how)))
