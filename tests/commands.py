"""Types of the fixture `run`, which calls the command line in the process of a test."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Result:
    """Exit status of a command, and what it printed on stdout and stderr."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]
