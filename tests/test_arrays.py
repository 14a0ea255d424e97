"""Arrow columns to NumPy and back, equal to what pyarrow's own conversions give, and without loading pandas."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.trace.arrays import MISSING, arrow_array, numbers, text_array
from profilers.trace.schema import make_table

WHOLE = st.integers(-(1 << 63) + 1, (1 << 63) - 1)


@given(st.lists(st.none() | WHOLE), st.integers(0, 5), st.integers(0, 5))
def test_numbers_of_any_slice(values: list[int | None], before: int, after: int) -> None:
    array = pa.array([*[7] * before, *values, *[None] * after], pa.int64()).slice(before, len(values))
    expected = [MISSING if value is None else value for value in values]
    assert numbers(array, int(MISSING)).tolist() == expected
    assert numbers(pa.chunked_array([array, array], pa.int64()), int(MISSING)).tolist() == expected * 2


def test_nulls_of_a_narrow_column_do_not_wrap() -> None:
    assert numbers(pa.array([1, None, -3], pa.int8()), int(MISSING)).tolist() == [1, MISSING, -3]
    assert numbers(pa.chunked_array([], pa.int32()), 0).tolist() == []


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts(texts: list[str | None]) -> None:
    found = text_array(texts)
    found.validate(full=True)
    assert found.to_pylist() == texts


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_flags(pairs: list[tuple[bool, bool]]) -> None:
    flags, missing = np.array(pairs, np.bool_).reshape(-1, 2).T
    found = arrow_array(flags, missing)
    found.validate(full=True)
    assert found.to_pylist() == [None if gone else flag for flag, gone in pairs]


@pytest.mark.parametrize(
    ("column", "values"),
    [("name", []), ("name", [None]), ("name", ["a", None, "é"]), ("correlation", [None]), ("correlation", [1, None])],
)
def test_a_column_of_any_list(column: str, values: list[object]) -> None:
    assert make_table("kernels", {column: values})[column].to_pylist() == values


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, "x"])
def test_what_is_no_int64_is_refused(value: object) -> None:
    with pytest.raises((pa.ArrowInvalid, OverflowError, pa.ArrowTypeError)):
        make_table("kernels", {"correlation": [1, value]})


def test_an_ingest_loads_no_pandas(tmp_path: Path) -> None:
    names = {"aten::mm": "cpu_op", "ncclDevKernel_AllReduce": "kernel", "ProfilerStep#1": "user_annotation"}
    common = {"ph": "X", "pid": 0, "tid": 1, "ts": 1, "dur": 9, "args": {"External id": 1, "correlation": 1}}
    events = [{**common, "name": name, "cat": category} for name, category in names.items()]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    told = "atexit.register(lambda: print('pandas' in sys.modules))"
    command = f"import atexit, sys\nfrom seqpoint.cli import main\n{told}\nmain()"
    arguments = ["ingest", str(tmp_path / "t.json"), "-o", str(tmp_path / "out.trace")]
    done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n"), done.stderr
    assert (tmp_path / "out.trace").is_dir()
