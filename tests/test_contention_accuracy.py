"""Predicted times are no worse than tables: kernels beside other work in real traces, and works of recordings."""

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import recordings

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces"
#: What a figure may grow by before it is worse, percentage points: of recordings, and of traces.
SLACK, TRACE_SLACK = 0.2, 0.5


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "tests" / "accuracy" / f"{name}.csv").read_text().splitlines()))


ROWS = table("recordings")


def script() -> ModuleType:
    file = ROOT / "benchmarks" / "contention" / "accuracy_of_contention.py"
    spec = importlib.util.spec_from_file_location("accuracy_of_contention", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_every_shipped_recording_and_none_is_worse() -> None:
    module = script()
    shipped = module.shipped_recordings()
    assert {row["recording"] for row in ROWS} == {one.source for one in shipped}
    if not shipped:
        pytest.skip("no recording of works side by side is shipped yet (docs/contention.md)")
    old = {(row["recording"], row["how"], row["mechanism"]): row for row in ROWS}
    for one in shipped:
        for new in module.rows(one, "shipped"):  # those left out are fitted anew by the script: minutes
            before = old[new["recording"], "shipped", new["mechanism"]]
            assert new["scenarios"] == before["scenarios"]
            assert all(float(new[name]) <= float(before[name]) + SLACK for name in module.ERRORS), (before, new)


def test_the_scores_with_limits_are_of_the_same_engine() -> None:
    limited = {row["device"]: row["ours"] for row in table("gpus") if "median error" in row["case"]}
    whole = {row["recording"].upper(): row for row in ROWS if (row["how"], row["mechanism"]) == ("shipped", "all")}
    assert len(limited) > 1
    for device, error in limited.items():
        (row,) = (row for name, row in whole.items() if device in name)
        assert 100 * float(error) == pytest.approx(float(row["median"]), abs=SLACK)


def test_the_table_can_be_made_of_a_recording(tmp_path: Path) -> None:
    works = [recordings.product(2048), recordings.streamed(64), recordings.moved(64, "h2d")]
    recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0)
    module = script()
    (one,) = module.shipped_recordings(tmp_path)
    rows = module.rows(one, "shipped")
    assert [row["mechanism"] for row in rows] == ["HBM", "copy engine", "all"]
    assert set(rows[0]) == set(module.COLUMNS) and float(rows[-1]["median"]) < 0.1
    assert module.shipped_recordings(tmp_path / "one" / "none") == []


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", ["ddp4", "nanogpt8"])
def test_no_method_is_worse_on_a_trace(name: str) -> None:
    """The errors may not grow. The shares that are right may not fall."""
    old = {row["method"]: row for row in table("contention") if row["trace"] == name}
    new = {row["method"]: row for row in script().trace_rows(DATA, [name])}
    assert list(old) == list(new)
    for method, before in old.items():
        after = new[method]
        assert {key: after[key] for key in ("kernels", "groups")} == {key: before[key] for key in ("kernels", "groups")}
        for key, sign in {"mean": 1, "inferred": 1, "noise": 1, "sides": -1}.items():
            assert sign * (float(after[key]) - float(before[key])) <= TRACE_SLACK, (method, key, before, after)


def test_every_trace_has_a_row_and_a_reason_where_nothing_is_scored() -> None:
    module, rows = script(), table("contention")
    assert set(rows[0]) == set(module.TRACE_COLUMNS)
    assert list(dict.fromkeys(row["trace"] for row in rows)) == list(module.TRACES)
    for row in rows:
        assert row["method"] or row["remark"], row
        assert (row["mean"] != "") == (row["method"] != ""), row
