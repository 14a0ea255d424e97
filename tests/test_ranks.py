"""Jobs of many ranks: their survey, the ranks that stand for all, damaged ranks, killed workers, merged folders."""

import json
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import seqpoint as sp
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError, WorkerError
from profilers.ingest.pipeline import worker_results
from profilers.trace.activity import times_in_steps
from profilers.trace.schema import KINDS
from profilers.trace.steps import step_times
from profilers.trace.store import load_trace, save_trace
from profilers.writers.slicing import SliceOptions, merge, merge_folders, slice_trace
from seqpoint.cli import cli
from seqpoint.communication import host_gaps
from seqpoint.opening import rank_numbers
from seqpoint.rank_facts import facts_of_ranks
from tests.traces import event, kernel, kineto, launch
from tests.traces import step as kineto_step

NODES, CARDS, STEPS = 10, 4, 3
#: What is slow: a card (rank 9), node 5, the links of node 7, and the host of card 1 of every node.
CARD, NODE, LINK = 9, 5, 7


def job(folder: Path) -> Path:
    """Write the files of a job: a product, a collective in the node, a product, a collective between nodes."""
    folder.mkdir()
    slow = np.ones((NODES, CARDS))
    slow[NODE], slow[divmod(CARD, CARDS)] = 1.2, 1.5
    scatter = 1 + 0.002 * np.random.default_rng(1).random((NODES, CARDS))
    link = np.ones(NODES)
    link[LINK] = 3.0
    events: dict[int, list[dict[str, object]]] = {rank: [] for rank in range(NODES * CARDS)}
    begin = np.zeros((NODES, CARDS))
    for step in range(STEPS):
        t = {"first": begin + 20 + 150 * (np.arange(CARDS) == 1)}
        t["shard"] = t["first"] + 400 * slow * scatter
        t["second"] = np.broadcast_to(t["shard"].max(axis=1, keepdims=True) + 50 * link[:, None], t["shard"].shape)
        t["replicate"] = t["second"] + 300 * slow * scatter
        end = np.broadcast_to(t["replicate"].max(axis=0), t["replicate"].shape) + 30
        for rank, of_rank in events.items():
            at = divmod(rank, CARDS)
            first, shard, second, replicate = (float(t[name][at]) for name in t)
            of_rank += _step(step, rank, float(begin[at]), (first, shard, second, replicate, float(end[at])))
        begin = end + 5
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85 << 30}
    for rank, of_rank in events.items():
        info = {"rank": rank, "world_size": NODES * CARDS, "backend": "nccl"}
        content = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": info, "traceEvents": of_rank}
        (folder / f"rank{rank:02d}.json").write_text(json.dumps(content))
    return folder


def _step(step: int, rank: int, begin: float, times: tuple[float, ...]) -> list[dict[str, object]]:
    first, shard, second, replicate, end = times
    node, card, c = rank // CARDS, rank % CARDS, 10 * step
    within, between = list(range(node * CARDS, node * CARDS + CARDS)), list(range(card, NODES * CARDS, CARDS))
    meta = {"dtype": "Float", "In msg nelems": 4096, "Out msg nelems": 4096, "Collective name": "allreduce"}
    groups = [
        {"Process Group Name": f"shard{node}", "Process Group Description": "mesh_shard", "Group size": CARDS,
         "Process Group Ranks": str(within)},
        {"Process Group Name": f"copies{card}", "Process Group Description": "mesh_replicate", "Group size": NODES,
         "Process Group Ranks": f"[{between[0]}, ..., {between[-1]}]"},  # as PyTorch truncates them
    ]  # fmt: skip
    rows = [
        event(f"ProfilerStep#{step}", "user_annotation", begin, end - begin - 1),
        kernel("sm90_gemm", first, shard - first, c + 1),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", shard, second - shard, c + 2, stream=20, **meta, **groups[0]),
        kernel("sm90_gemm", second, replicate - second, c + 3),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", replicate, end - replicate, c + 4, stream=20, **meta,
               **groups[1]),
        *(launch(first - 10 + n, c + 1 + n, dur=0.5) for n in range(4)),
    ]  # fmt: skip
    for row in rows:
        if row["cat"] == "kernel":
            row["args"]["device"] = card
    return rows


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of the job."""
    folder = tmp_path_factory.mktemp("ranks")
    sp.ingest(str(job(folder / "job")), folder / "job.trace")
    return folder / "job.trace"


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Path:
    """Return a copy of the trace without its survey, which a test may damage."""
    import shutil

    target = tmp_path / "job.trace"
    shutil.copytree(stored, target, ignore=shutil.ignore_patterns("ranks"))
    return target


def test_facts_of_each_rank_are_those_of_the_whole_trace(stored: Path) -> None:
    whole, rows = load_trace(stored), facts_of_ranks(stored).rows
    steps = step_times(whole)
    for row, expected in zip(rows, times_in_steps(whole, steps), strict=True):
        assert (row.rank, row.device) == (expected.rank, expected.device)
        assert row.elapsed_ns == expected.elapsed_ns and row.times.row() == pytest.approx(expected.times.row())
        assert row.step_ns == tuple(steps.step_ns[steps.rank == row.rank].tolist())
        assert sum(row.step_compute_ns) == pytest.approx(row.compute_ns)
    assert {(row.rank, row.device): row.host_ns for row in rows} == host_gaps(whole)
    assert {kind: sum(row.rows[kind] for row in rows) for kind in KINDS} == {
        kind: whole.tables[kind].num_rows for kind in KINDS
    }
    kernels = whole.kernels.to_pandas()
    by_name = kernels[kernels.name.astype(str).str.contains("gemm")].dur_ns.sum()
    assert sum(row.classes["gemm"][1] for row in rows) == by_name


def test_survey_names_the_slow_card_node_and_link_first(stored: Path) -> None:
    found = sp.survey(stored)
    assert [(part.kind, part.ranks) for part in found.slow_parts] == [
        ("card", (CARD,)),
        ("node", tuple(range(NODE * CARDS, NODE * CARDS + CARDS))),
        ("link", tuple(range(LINK * CARDS, LINK * CARDS + CARDS))),
        ("host", tuple(range(1, NODES * CARDS, CARDS))),
    ]
    card, node, link, host = found.slow_parts
    assert card.factor == pytest.approx(1.5, abs=0.01) and node.factor == pytest.approx(1.2, abs=0.01)
    assert card.cost_ns == pytest.approx(350e3, rel=0.02) and node.cost_ns == pytest.approx(140e3, rel=0.02)
    assert link.factor == pytest.approx(3.0, abs=0.05) and link.cost_ns == pytest.approx(100e3, rel=0.02)
    assert host.cost_ns == pytest.approx(150e3 * (STEPS - 1) / STEPS, rel=0.1)  # not before the first kernel
    late = max(found.rows, key=lambda row: row["waited_ns"])["rank"]
    assert late in found.representatives and 2 <= len(found.representatives) <= 3
    assert any(rank // CARDS not in (NODE, LINK) and rank != CARD for rank in found.representatives)
    table = found.table("place").set_index(["by", "place"])
    assert table.loc[("node", NODE)].slowdown == pytest.approx(0.2, abs=0.01)
    spread = {row["figure"]: row for row in found.quantiles()}["compute"]
    assert spread["most_at"][0] == CARD and spread["median"] == pytest.approx(700e3, rel=0.01)
    image = found.plot()
    assert "NaN" not in str(image) and image.opts.get("style") is not None


def test_equal_ranks_have_no_slow_part(stored: Path) -> None:
    found = sp.survey(stored)
    alike = [row for row in found.facts.rows if row.rank % CARDS == 3 and row.rank // CARDS not in (NODE, LINK)]
    few = replace(found, facts=replace(found.facts, rows=tuple(alike)))
    assert [part.kind for part in few.slow_parts] == ["link"]


def test_groups_without_all_of_their_ranks_are_no_slow_links(stored: Path, tmp_path: Path) -> None:
    kept = frozenset(rank for rank in range(NODES * CARDS) if rank not in (LINK * CARDS, CARD))
    save_trace(slice_trace(load_trace(stored), SliceOptions(ranks=kept)), tmp_path / "cut.trace")
    assert [part.kind for part in sp.survey(tmp_path / "cut.trace").slow_parts] == ["node", "host"]


def test_an_interrupted_survey_goes_on(copied: Path) -> None:
    whole = sp.survey(copied).to_dict()
    files = sorted((copied / "ranks").iterdir())
    assert len(files) == 3
    files[0].write_bytes(b"\x93not facts")
    files[1].unlink()
    assert sp.survey(copied).to_dict() == whole


def test_a_damaged_rank_is_named_and_left_out_on_request(copied: Path) -> None:
    whole = sp.survey(copied)
    for file in (copied / "ranks").iterdir():
        file.unlink()
    (copied / "kernels" / "rank=13.parquet").write_bytes(b"PAR1 cut")
    (copied / "collectives" / "rank=17.parquet").write_bytes(b"")
    with pytest.raises(BrokenFileError, match=r"rank=17\.parquet: damaged"):
        sp.survey(copied)
    found = sp.survey(copied, skip_damaged=True)
    assert list(found.facts.damaged) == [13, 17] and "rank=13.parquet" in found.facts.damaged[13]
    kept = [row for row in whole.rows if row["rank"] not in (13, 17)]
    assert [row["rank"] for row in found.rows] == [row["rank"] for row in kept]
    assert found.slow_parts[0].ranks == (CARD,)
    raw = job(copied.parent / "raw")
    (raw / "rank07.json").write_text('{"schemaVersion": 1, "traceEvents": 3}')
    refused = CliRunner().invoke(cli, ["describe", str(raw)])
    assert refused.exit_code == 1 and "rank07.json" in str(refused.exception)
    shown = CliRunner().invoke(cli, ["describe", str(raw), "--skip-damaged"])
    assert shown.exit_code == 0 and "rank07.json" in shown.stderr and f"rank {CARD}" in shown.stdout
    result = CliRunner().invoke(cli, ["describe", str(copied), "--skip-damaged"])
    assert result.exit_code == 0 and "rank 13 is left out" in result.output


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_was_cut_off_is_named(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    text = (folder / "rank07.json").read_text()
    (folder / "rank07.json").write_text(text[: text.index('"cat": "kernel"')])
    sp.ingest(str(folder), tmp_path / "job.trace")
    notes = sp.survey(tmp_path / "job.trace").notes()
    assert any("no work on a device of 1 rank (7)" in note for note in notes)
    assert any(note.startswith("files that end early; what was complete is kept: 1") for note in notes)


def test_a_killed_worker_is_one_sentence() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        tasks = [pool.submit(_end)]
        with pytest.raises(WorkerError, match=r"a worker was killed.*the same command goes on"):
            list(worker_results(tasks))


def test_ranks_can_be_named(stored: Path) -> None:
    trace = sp.survey(stored).trace(rank_numbers("0,8-10"))
    assert trace.meta.ranks == (0, 8, 9, 10) and trace.meta.quality["ranks_left_out"] == NODES * CARDS - 4
    with pytest.raises(NotFoundError, match="has no rank 99; it has ranks 0 to 39"):
        sp.survey(stored).trace([99])
    for wrong in ("", "1,x", "-3", "3-1", "1-2-3", "0-99999999999", "0-99999999999999"):
        with pytest.raises(InvalidInputError, match="write all, or numbers such as"):
            rank_numbers(wrong)
    with pytest.raises(InvalidInputError, match="no such table"):
        sp.survey(stored).table("step")
    with pytest.raises(InvalidInputError, match="no rank is named"):
        sp.survey(stored).trace([])
    raw = CliRunner().invoke(cli, ["describe", str(stored.parent / "job" / "rank01.json"), "--ranks", "1"])
    assert raw.exit_code == 1 and "--ranks is of a .trace folder" in str(raw.exception)
    assert len(sp.open(stored).meta.ranks) == NODES * CARDS
    assert sp.describe(stored).trace.meta.ranks == sp.survey(stored).representatives


def test_ranks_that_stand_for_others_wait_for_each_other(stored: Path) -> None:
    pair = load_trace(stored, ranks=[8, 9])
    (card,) = [row for row in sp.describe(pair).devices if row.rank == 8]
    assert card.times.waiting_ns and card.times.unmatched == STEPS  # of card 0 of the nodes, of which it is alone
    assert "wait for no peer" not in json.dumps(sp.analyze(pair).to_dict())


def test_commands_read_ranks_that_stand_for_all(stored: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(cli, ["describe", str(stored)])
    assert shown.exit_code == 0 and len(shown.output.splitlines()) <= 40
    first = shown.output.splitlines()[1:4]
    assert all(name in line for name, line in zip((f"rank {CARD}", f"node {NODE}", f"node {LINK}"), first, strict=True))
    content = json.loads(runner.invoke(cli, ["describe", str(stored), "--json"]).stdout)
    assert content == json.loads(json.dumps(sp.survey(stored).to_dict()))
    told = runner.invoke(cli, ["advise", str(stored)])
    assert told.exit_code == 0 and len(told.stdout.splitlines()) <= 40
    assert (
        told.stdout.startswith("3 slow parts and late hosts among 40 ranks on 10 nodes")
        and "The rest is of ranks" in told.stdout
    )
    some = runner.invoke(cli, ["characterize", str(stored)])
    assert some.exit_code == 0 and "which stand for all" in some.stderr
    compared = runner.invoke(cli, ["compare", str(stored), str(stored)])
    assert compared.exit_code == 0 and len(set(compared.stderr.splitlines())) == 1
    chosen = runner.invoke(cli, ["characterize", str(stored), "--ranks", "0,1"])
    assert chosen.exit_code == 0 and "which stand for all" not in chosen.stderr


def test_folders_of_ranks_become_one_trace(stored: Path, tmp_path: Path) -> None:
    whole, parts = load_trace(stored), tmp_path / "parts"
    parts.mkdir()
    folders = []
    for node in range(NODES):
        ranks = frozenset(range(node * CARDS, node * CARDS + CARDS))
        part = slice_trace(whole, SliceOptions(ranks=ranks))
        folders.append(save_trace(part, parts / f"node{node:02d}.trace"))
    merge_folders(folders, tmp_path / "merged.trace")
    merged, expected = load_trace(tmp_path / "merged.trace"), merge([load_trace(folder) for folder in folders])
    assert merged.meta == expected.meta
    for kind, table in expected.tables.items():
        ordered = [("rank", "ascending"), ("start_ns", "ascending")]
        assert merged.tables[kind].sort_by(ordered).to_pylist() == table.sort_by(ordered).to_pylist(), kind
    runner = CliRunner()
    result = runner.invoke(cli, ["ingest", str(parts), "-o", str(tmp_path / "job.trace")])
    assert result.exit_code == 0, result.output
    assert sp.survey(tmp_path / "job.trace").slow_parts == sp.survey(stored).slow_parts
    assert runner.invoke(cli, ["describe", str(parts)]).stdout == runner.invoke(cli, ["describe", str(stored)]).stdout


def test_many_files_of_one_rank_are_no_many_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "epoch"
    folder.mkdir()
    for number in range(34):
        events = [e | {"ts": e["ts"] + 5000 * number} for e in kineto_step(number + 1, 1000.0)]
        (folder / f"step{number:02d}.json").write_text(json.dumps(kineto(events)))
    shown = CliRunner().invoke(cli, ["describe", str(folder)])
    assert shown.exit_code == 0 and "slow part" not in shown.output and "34 files, 1 rank" in shown.output
    assert sp.describe(folder).trace.meta.sources == sp.open(folder).meta.sources


def test_damaged_files_are_left_out_of_an_ingest_on_request(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "rank07.json").write_text('{"schemaVersion": 1, "traceEvents": 3}')
    (folder / "rank08.json").write_text("no trace")
    runner, target = CliRunner(), tmp_path / "job.trace"
    refused = runner.invoke(cli, ["ingest", str(folder), "-o", str(target)])
    assert refused.exit_code == 1 and "rank07.json" in str(refused.exception)
    kept = runner.invoke(cli, ["ingest", str(folder), "-o", str(target), "--skip-damaged"])
    assert kept.exit_code == 0 and kept.stderr.count("left out: ") == 2
    assert "rank07.json" in kept.stderr and "rank08.json: no reader knows its format" in kept.stderr
    meta = load_trace(target, {}).meta
    assert meta.quality["files_left_out"] == 1 and not {7, 8} & set(meta.ranks)
