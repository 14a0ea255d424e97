import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from replay.engine.checkpoint import Run
from replay.engine.engine import simulate
from replay.graph.graph import KernelGraph, SharingPolicy


def busy_graph(seed: int = 0, n: int = 60) -> KernelGraph:
    """Return tasks that share three devices and wait for each other."""
    random = np.random.default_rng(seed)
    edges = [(int(a), int(b), float(lag)) for a, b, lag in random.integers(0, n, (80, 3)) if a < b]
    graph = make_graph(
        random.integers(1, 10_000, n), random.uniform(0, 1, (n, 4)), edges,
        device=random.integers(-1, 3, n), priority=random.integers(0, 3, n), waves=random.uniform(0, 4, n),
    )  # fmt: skip
    return replace(graph, devices=((0, 0), (0, 1), (0, 2)))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_a_run_in_steps_through_files_is_the_same_to_the_bit(tmp_path_factory, seed: int, events: int) -> None:
    graph = busy_graph(seed)
    path = tmp_path_factory.mktemp("run") / "a.checkpoint"
    run = Run(graph)
    steps = 0
    while not run.advance(events):
        run.save(path)
        run = Run.load(graph, path)
        steps += 1
    line = run.finish()
    start, end = simulate(graph)
    assert steps > 0
    np.testing.assert_array_equal(line.start_ns, start)
    np.testing.assert_array_equal(line.end_ns, end)


def test_a_checkpoint_of_another_graph_or_policy_is_refused(tmp_path: Path) -> None:
    graph, path = busy_graph(), tmp_path / "a.checkpoint"
    Run(graph).save(path)
    for other in (busy_graph(1), replace(graph, policy=SharingPolicy(in_order=False))):
        with pytest.raises(InvalidInputError, match="another graph"):
            Run.load(other, path)
    with pytest.raises(InvalidInputError, match=r"no checkpoint of this graph|do not fit|another graph"):
        Run.load(busy_graph(0, 10), path)


def test_a_damaged_checkpoint_is_refused_whatever_the_damage(tmp_path: Path) -> None:
    graph, path = busy_graph(), tmp_path / "a.checkpoint"
    run = Run(graph)
    run.advance(30)
    run.save(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InvalidInputError):
            Run.load(graph, path)
    for place in random.integers(0, len(whole), 200).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            again = Run.load(graph, path)
        except InvalidInputError:
            refused += 1
        else:  # what the zip itself does not need
            np.testing.assert_array_equal(again.finish().end_ns, simulate(graph)[1])
    assert refused > 150
    locked = bytearray(whole)
    at = whole.index(b"PK\x01\x02")  # the first entry of the directory says that it is encrypted
    locked[at + 8] |= 1
    path.write_bytes(locked)
    with pytest.raises(InvalidInputError, match="encrypted"):
        Run.load(graph, path)
    path.unlink()
    with pytest.raises(NotFoundError, match="no such file"):
        Run.load(graph, path)


def test_numbers_that_lead_nowhere_are_refused_though_the_file_is_whole(tmp_path: Path, monkeypatch) -> None:
    graph, path = busy_graph(), tmp_path / "a.checkpoint"
    run = Run(graph)
    run.advance(30)
    changes = (("active", 10**9), ("codes", 10**18), ("count", 10**6), ("changed", -7), ("size", 3), ("version", 2**50))
    changes += (("active", 0), ("rows_waiting", 7), ("rows_waiting", -1), ("times", np.nan), ("codes", (1 << 58) + 1))
    for name, value in changes:
        content = None
        with monkeypatch.context() as patch:
            patch.setattr("replay.engine.checkpoint._arrays", _changed(name, value))
            if len(_changed(name, value)(run._state)[name]):
                run.save(path)
                content = path.read_bytes()
        if content is not None:
            with pytest.raises(InvalidInputError, match=r"do not fit|no checkpoint"):
                Run.load(graph, path)
    assert zipfile.is_zipfile(io.BytesIO(path.read_bytes()))


def _changed(name: str, value: int):
    from replay.engine.checkpoint import _arrays

    def arrays(state):
        content = _arrays(state)
        content[name] = content[name].copy()
        if len(content[name]):
            content[name][0] = value
        return content

    return arrays


def test_progress_is_told_and_bad_steps_are_refused() -> None:
    run = Run(busy_graph())
    assert run.share < 1 and not run.finished
    with pytest.raises(InvalidInputError, match="0 events"):
        run.advance(0)
    run.finish()
    assert run.finished and run.share == 1
