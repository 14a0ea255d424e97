"""Regenerate tests/accuracy/training_steps.csv, or the shipped costs of training.

    python benchmarks/jobs/accuracy_of_steps.py ../shared/data/training ../shared/new/training > training_steps.csv
    python benchmarks/jobs/accuracy_of_steps.py ../shared/data/training --fit

The costs are fitted to a tenth of Megatron-LM's steps, chosen by a hash of their configurations, and to half of the
systems of MLPerf Training and of SimuMax, chosen by a hash of their names. Steps of the systems that were left out are
scored by what ran, device and precision, MPT's by their length too; BERT's and MPT's are all left out. Then come the
ratios of two steps. Errors are of predicted over measured time, in %.
"""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from profilers.files import dataset_path
from replay.costs.shipped import load_parameters
from replay.workloads import Layout, MeasuredStep, TrainingJob, Transformer, calibrate_systems, write_training_fit
from replay.workloads.training_fits import SHARE, VOCABULARY, chosen_part
from seqpoint.validation.suites import table_columns
from seqpoint.validation.training import RATIOS, run_groups, score_steps
from seqpoint.validation.training_tables import MeasuredSteps, RatioScore, StepScore, read_table, table_kind

COLUMNS = ("case", "n", "median", "mean", "worst", "bias", "covered")
KINDS = ("MLPerf", "SimuMax", "BERT", "MPT")
#: Kinds of tables that are fitted.
FITTED = ("MLPerf", "SimuMax")


def read_tables(folder: Path) -> list[MeasuredSteps]:
    """Return the tables of measured steps in a folder, without Megatron-LM's."""
    kinds = {path: table_kind(table_columns(path)) for path in sorted(folder.glob("*.csv"))}
    return [read_table(path, kind) for path, kind in kinds.items() if kind in KINDS]


def table_of_scores(kind: str, scores: Sequence[StepScore]) -> list[dict[str, str]]:
    """Return a row for the steps that were fitted, one for the others, and one for each group of those."""
    fitted, rest = ([score for score in scores if score.fitted is which] for which in (True, False))
    groups = {"fitted": fitted, "left out": rest, **run_groups(rest)}
    return [_steps(f"{kind}: {name}", some) for name, some in groups.items() if some]


def table_of_ratios(kind: str, ratios: Sequence[RatioScore]) -> list[dict[str, str]]:
    """Return a row for the ratios of each kind, of which one step at least was left out."""
    rest = [ratio for ratio in ratios if not ratio.fitted]
    names = dict.fromkeys(ratio.kind for ratio in rest)
    return [
        _errors(f"{kind}: ratio of {name}", [ratio.predicted / ratio.measured for ratio in rest if ratio.kind == name])
        for name in names
    ]


def _steps(case: str, scores: Sequence[StepScore]) -> dict[str, str]:
    covered = 100 * sum(score.covered for score in scores) / len(scores)
    return _errors(case, [score.ratio for score in scores]) | {"covered": f"{covered:.0f}"}


def _errors(case: str, ratios: Iterable[float]) -> dict[str, str]:
    quotients = np.array(list(ratios))
    errors = 100 * np.abs(quotients - 1)
    return {
        "case": case,
        "n": str(len(errors)),
        "median": f"{np.median(errors):.1f}",
        "mean": f"{errors.mean():.1f}",
        "worst": f"{errors.max():.0f}",
        "bias": f"{np.exp(np.log(quotients).mean()):.3f}",
        "covered": "",
    }


def table(*folders: Path) -> list[dict[str, str]]:
    """Return the rows of the tables in folders."""
    rows = []
    for measured in (*(each for folder in folders for each in read_tables(folder)), published_steps()):
        scores = score_steps(measured.steps, None, None, load_parameters())
        rows += table_of_scores(measured.kind, scores)
        if measured.kind in RATIOS:
            rows += table_of_ratios(measured.kind, RATIOS[measured.kind][0](scores))
    return rows


_MEGATRON = "A100-SXM4-80GB"
#: Published steps of Megatron-LM on A100 (arXiv 2205.05198, table 5): layers, hidden size, heads, stages, chunks of a
#: stage, sequences of a step and of a micro-batch, and seconds with all or with scores alone computed again. Each layer
#: is split over 8 ranks; with scores alone, ranks share the tokens too.
_PUBLISHED = (
    (48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10),
    (96, 12288, 96, 8, 3, 64, 1, 18.13, 13.75),
    (105, 20480, 128, 35, 3, 280, 1, 49.05, 37.83),
    (128, 25600, 160, 64, 1, 512, 1, 94.42, 71.49),
)


def published_steps() -> MeasuredSteps:
    """Return the steps of `_PUBLISHED`, none of which is fitted."""
    steps = []
    for layers, hidden, heads, stages, chunks, batch, micro, *seconds in _PUBLISHED:
        model = Transformer("gpt", "megatron", layers, hidden, heads, 4 * hidden, VOCABULARY)
        for is_selective, took in zip((False, True), seconds, strict=True):
            schedule = "interleaved" if chunks > 1 else "1f1b"
            layout = Layout(8, 1, stages, 8, is_selective, schedule=schedule, chunks=chunks)
            job = TrainingJob(model, 2048, batch, micro, layout, not is_selective, selective_recompute=is_selective)
            run = f"on {layout.devices} GPUs"
            steps.append(MeasuredStep(job, took, "arXiv 2205.05198, table 5", _MEGATRON, "NVIDIA Selene", run))
    return MeasuredSteps("Megatron-LM", tuple(steps), len(steps))


def fitted_tables(folder: Path) -> list[list[MeasuredStep]]:
    """Return the steps that the shipped costs are fitted to, of whose systems half are taken.

    Layers of Megatron-LM's runs are computed again, which `calibrate_training` finds to explain them better.
    """
    (megatron,) = (path for path in sorted(folder.glob("*.csv")) if table_kind(table_columns(path)) == "Megatron")
    steps = chosen_part(read_table(megatron, "Megatron").steps, SHARE)
    again = [replace(step, device=_MEGATRON, job=replace(step.job, recompute=True)) for step in steps]
    return [again, *(list(table.steps) for table in read_tables(folder) if table.kind in FITTED)]


def fit(folder: Path) -> None:
    """Fit and write the shipped costs."""
    target = dataset_path("fits/training.json")
    write_training_fit(target, calibrate_systems(fitted_tables(folder), parameters=load_parameters()))


if __name__ == "__main__":
    if "--fit" in sys.argv:
        fit(Path(sys.argv[1]))
    else:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table(*map(Path, sys.argv[1:])))
