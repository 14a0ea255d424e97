"""Whole jobs: the operators of a model, how long they take, and the traces they would leave."""

from replay.jobs.architecture import STYLES, Transformer, find_transformer, load_transformers
from replay.jobs.step import Step, backward, fused
from replay.jobs.tally import Tally, tally
from replay.jobs.timing import Timed, time_operators
from replay.jobs.transformer import Pass, forward

__all__ = [
    "STYLES",
    "Pass",
    "Step",
    "Tally",
    "Timed",
    "Transformer",
    "backward",
    "find_transformer",
    "forward",
    "fused",
    "load_transformers",
    "tally",
    "time_operators",
]
