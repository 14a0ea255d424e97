"""Contention measured: in recordings of kernels side by side and in traces; its prediction, and fits of the model.

`read_recording` reads the output of `benchmarks.gpu`. `scenario_model` predicts its scenarios as projections do, and
`calibrate_contention` fits the parameters of contention to them. A "work" is a kernel or a copy that was recorded.
`measure_pairs` finds kernels in a trace that ran both alone and beside other work. `contention_time` sums the time that
contention took from all kernels.
"""

from replay.contention.fitting import (
    ContentionFit,
    FittedRange,
    base_parameters,
    calibrate_contention,
    read_contention_fit,
    write_contention_fit,
)
from replay.contention.launches import PairOptions
from replay.contention.pairs import ContentionPairs, collective_pairs, measure_pairs
from replay.contention.prediction import MECHANISMS, Ceilings, ScenarioModel, ceilings_of, mechanism_of, scenario_model
from replay.contention.reading import read_contention, read_recording
from replay.contention.recording import (
    TRANSFERS,
    ContentionRecording,
    RecordedMember,
    RecordedScenario,
    RecordedTask,
    fold_of,
    linked_groups,
)
from replay.contention.totals import ContentionRow, ContentionTime, contention_time

__all__ = [
    "MECHANISMS",
    "TRANSFERS",
    "Ceilings",
    "ContentionFit",
    "ContentionPairs",
    "ContentionRecording",
    "ContentionRow",
    "ContentionTime",
    "FittedRange",
    "PairOptions",
    "RecordedMember",
    "RecordedScenario",
    "RecordedTask",
    "ScenarioModel",
    "base_parameters",
    "calibrate_contention",
    "ceilings_of",
    "collective_pairs",
    "contention_time",
    "fold_of",
    "linked_groups",
    "measure_pairs",
    "mechanism_of",
    "read_contention",
    "read_contention_fit",
    "read_recording",
    "scenario_model",
    "write_contention_fit",
]
