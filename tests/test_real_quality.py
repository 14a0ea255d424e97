"""What is read of every real file, and what was repaired or left unlinked: a table that may not change silently."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
sys.path.insert(0, str(ROOT / "benchmarks" / "ingest"))
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "ingest.csv").read_text().splitlines()))


@pytest.mark.parametrize("expected", TABLE, ids=[row["file"] for row in TABLE])
def test_a_file_is_read_as_the_table_says(expected: dict[str, str]) -> None:
    from quality import row

    found = {"file": expected["file"], **row(DATA / expected["file"])}
    assert {k: str(found.get(k, "")) for k in expected} == expected


def test_what_formats_md_measured_comes_out() -> None:
    by_name = {row["file"].rpartition("/")[2]: row for row in TABLE}
    wrong = {n: float(r["external_id_wrong"] or 0) / float(r["external_id_checked"]) for n, r in by_name.items()
             if float(r["external_id_checked"] or 0)}  # fmt: skip
    # Right in 100 % of some files and wrong in 100 % of others (2022 to mid-2023), and nothing between.
    assert set(wrong.values()) == {0.0, 1.0}
    assert wrong["nccl_a100_rank0.json.gz"] == 0 and wrong["trace_diff_v100.json.gz"] == 1
    assert by_name["mi350x_swapped_grid.json.gz"]["repaired_grid"] == "20"
    # By correlation alone 1799 of 3442 kernels have no launch; by process and correlation 1810.
    assert by_name["h100_2gpu_1s_2026.2.sqlite"]["kernels"] == "3442"
