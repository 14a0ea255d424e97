"""One LLM inference engine with continuous batching under load: waiting, first tokens, throughput.

Read in this order: `requests` (arrivals and lengths), `step_times` (how long a step of the engine takes), `engine`
(which tokens each step holds, and when each request ends), and `load` (percentiles by arrival rate, and saturation).
"""

from replay.serving.engine import EngineLimits, Served, simulate
from replay.serving.load import load_table, saturation_rate
from replay.serving.requests import Requests, read_requests, with_rate
from replay.serving.step_times import EngineStepTimes, TimeCurve

__all__ = [
    "EngineLimits",
    "EngineStepTimes",
    "Requests",
    "Served",
    "TimeCurve",
    "load_table",
    "read_requests",
    "saturation_rate",
    "simulate",
    "with_rate",
]
