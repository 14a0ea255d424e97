"""Wrong arguments of the public functions: one line that says what was given, what is wanted, and an example."""

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from tests.traces import write_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> sp.Trace:
    return sp.open(write_trace(tmp_path_factory.mktemp("arguments") / "job.json", 4))


EXAMPLE = '["overlap:ideal", "scale_device:MI355X"]'
COMPOSE = 'to compose what-ifs, join them in one text: "overlap:ideal+t3"'
BAD: dict[str, tuple[Callable[[Any], object], str]] = {
    "nested": (lambda t: sp.project(t, [["a", "b"]]),
        f"what_ifs is [['a', 'b']]; it must be a list of texts or what-ifs, such as {EXAMPLE}; {COMPOSE}"),
    "tuples": (lambda t: sp.project(t, [("overlap:ideal", "t3")]), COMPOSE),
    "dict": (lambda t: sp.project(t, {"a": 1}), "what_ifs is {'a': 1}; it must be a list of texts"),
    "none": (lambda t: sp.project(t, None), "what_ifs is None"),
    "number": (lambda t: sp.project(t, 5), "what_ifs is 5"),
    "draws": (lambda t: sp.project(t, ["t3"], draws="x"), "draws is 'x'; it must be a whole number"),
    "iterations": (lambda t: sp.project(t, ["t3"], iterations=1), "iterations is 1; it must be a list of"),
    "device": (lambda t: sp.project(t, ["t3"], device=5), "device is 5; it must be a text or None, such as \"H100\""),
    "no trace": (lambda t: sp.select(5), 'trace is 5; it must be a trace, an IterationTable, a text, a path'),
    "open none": (
        lambda t: sp.open(None),
        'paths is None; it must be a text, a path or a list of texts or paths, such as "job.json.gz"'),
    "open bytes": (lambda t: sp.open(b"x"), "paths is b'x'"),
    "open empty text": (lambda t: sp.open(""), "a path is empty; name a file"),
    "open nothing": (lambda t: sp.open([]), "no file is given; name the files of the trace"),
    "open a trace": (lambda t: sp.open(t), "paths is a Trace"),
    "open a table": (lambda t: sp.open(pd.DataFrame({"a": [1]})), "paths is a DataFrame"),
    "open 0-d": (lambda t: sp.open(np.array("x")), "paths is a ndarray"),
    "progress": (lambda t: sp.open("x", progress=3), "progress is 3; it must be a function or None"),
    "one side": (lambda t: sp.compare(t), "missing a required argument: 'after'; its arguments are before"),
    "a side": (lambda t: sp.compare(t, 5), "sp.compare: after is 5"),
    "what-ifs": (lambda t: sp.compare(t, t, what_if=["t3"]), "what_if is ['t3']; it must be a text, a WhatIf or None"),
    "no such argument": (
        lambda t: sp.select(t, points=3),
        "got an unexpected keyword argument 'points'; its arguments are trace, max_points"),
    "by": (lambda t: sp.describe(t, by=5), "by is 5; it must be a text or a list of texts"),
    "selection": (lambda t: sp.estimate({}, t, base=t), "the selection has no points; give what sp.select returned"),
    "job": (lambda t: sp.synthesize("bert_large", "H100"), "it must be a TrainingJob, an InferenceJob or a Dlrm"),
    "shapes": (lambda t: sp.predict("matmul", [1, 2], "H100"), "shapes is [1, 2]; it must be a list of lists"),
    "suite": (lambda t: sp.validate("kernels", 5), "sp.validate: paths is 5"),
    "plan": (lambda t: sp.sweep(5), "plan is 5; it must be a SweepPlan, a text or a path"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_one_line(trace: sp.Trace, case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(InvalidInputError) as refused:
        call(trace)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [name for name in sp.__all__ if inspect.isfunction(getattr(sp, name))])
def test_no_public_function_shows_its_internals_for_an_object(name: str) -> None:
    parameters = inspect.signature(getattr(sp, name)).parameters
    if parameters and name != "quantize":  # which takes whatever NumPy takes
        with pytest.raises(InvalidInputError, match=rf"^sp\.{name}: "):
            getattr(sp, name)(*[object()] * sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values()))


def test_lists_of_other_kinds_are_lists(trace: sp.Trace) -> None:
    name = "scale_kernels:gemm:0.5"
    expected = sp.project(trace, [name], iterations=[1, 2], draws=2).to_dict()["rows"]
    for what_ifs in (name, (name,), np.array([name]), np.str_(name), {name}, iter([name]), pd.Series([name])):
        assert sp.project(trace, what_ifs, iterations=np.array([1, 2]), draws=np.int64(2)).to_dict()["rows"] == expected


def test_paths_of_other_kinds_are_paths(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.json", 2)
    for paths in (str(path), [str(path)], (path,), np.array([str(path)]), np.str_(path), {path}, iter([path])):
        assert len(sp.open(paths).iterations) == 2


def test_misspelt_names_offer_the_nearest(trace: sp.Trace) -> None:
    with pytest.raises(NotFoundError, match="no what-if is called 'overlp'; did you mean overlap"):
        sp.project(trace, ["overlp:ideal"])
    with pytest.raises(NotFoundError, match=r"^not a trace: cannot be read"):
        sp.project("not a trace")


def test_functions_keep_their_names_and_travel_to_processes() -> None:
    assert sp.open is sp.open and sp.open.__name__ == "open" and "Paths" not in str(sp.open.__doc__)
    assert pickle.loads(pickle.dumps(sp.describe)) is sp.describe
    assert list(inspect.signature(sp.select).parameters)[:2] == ["trace", "max_points"]


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing a module would put it in the place of the function."""
    modules = {path.stem for path in Path(sp.__file__).parent.glob("*.py")}
    assert modules & set(sp.__all__) == set()
