"""Whole files of every age: header, rank, clock, devices, damage, and what Quality says of them."""

import gzip
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import balanced, table

from profilers.errors import BrokenFileError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.ingest.assembly import Placement
from profilers.ingest.stage import Stage
from profilers.readers.common.reader import find_reader
from profilers.readers.common.source import fingerprint, first_bytes, read_source
from profilers.readers.kineto import KinetoReader
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Trace

KERNEL = '{"ph":"X","cat":"kernel","name":"k","ts":1.5,"dur":2.25,"args":{"device":0,"stream":7}}'
OP = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":9}'


def read(folder: Path, content: str | bytes, name: str = "t.json", **limits: int) -> Trace:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    stage = Stage(**limits)
    meta = KinetoReader().read([path], stage)
    place = Placement(0, meta.ranks[0] if meta.ranks else 0, {}, {})
    rank_of = {OWN_RANK: place.own_rank}
    devices = tuple(replace(device, rank=rank_of.get(device.rank, device.rank)) for device in meta.devices)
    tables = {kind: place.put(table) for kind, table in stage.tables().items()}
    return Trace(replace(meta, devices=devices), tables)


def test_a_file_of_today(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        f"""{{"schemaVersion":1,"deviceProperties":[{{"id":0,"name":"NVIDIA H100","numSms":132,"totalGlobalMem":85}}],
        "distributedInfo":{{"backend":"nccl","rank":3,"world_size":8}},"baseTimeNanoseconds":1700000000000000000,
        "traceEvents":[{OP},{KERNEL}],"traceName":"x.json"}}""",
    )
    assert table(trace, "ops", "id", "rank", "name", "start_ns", "dur_ns") == [(0, 3, "aten::mm", 1000, 9000)]
    assert table(trace, "kernels", "id", "rank", "name", "start_ns", "dur_ns") == [(1, 3, "k", 1500, 2250)]
    meta = trace.meta
    assert (meta.format, meta.version, meta.sources) == ("kineto", "schema 1", ("t.json",))
    assert (meta.world_size, meta.clock_base_ns) == (8, 1_700_000_000_000_000_000)
    assert meta.devices == (DeviceProperties(3, 0, "NVIDIA H100", 132, 85),)
    assert dict(meta.quality.counts) == {"events": 2, "kept": 2}


def test_a_file_of_2021_with_string_threads_and_epoch_times(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        """[{"name":"process_name","ph":"M","pid":2},
        {"ph":"X","cat":"Operator","name":"ProfilerStep#1","pid":2,"tid":"25738","ts":1621401187223005,"dur":90},
        {"ph":"X","cat":"Runtime","name":"cudaLaunchKernel","pid":2,"tid":"25738","ts":1621401187223010,"dur":5,
         "args":{"correlation":9,"external id":4}},
        {"ph":"X","cat":"Kernel","name":"volta_sgemm","pid":0,"tid":"stream 7","ts":1621401187223020,"dur":55,
         "args":{"stream":7,"correlation":9,"external id":4}},
        {"ph":"X","cat":"Memset","name":"Memset (Device)","pid":0,"tid":"stream 7","ts":1621401187223080,"dur":1}]""",
    )
    assert table(trace, "ops", "name", "thread", "start_ns") == [("ProfilerStep#1", 25738, 1621401187223005000)]
    assert table(trace, "launches", "api", "correlation", "external_id") == [("runtime", 9, 4)]
    assert table(trace, "kernels", "name", "stream", "external_id") == [("volta_sgemm", 7, 4)]
    assert table(trace, "copies", "direction", "dur_ns") == [("memset", 1000)]
    assert trace.meta.quality["skipped_flow"] == 1
    assert trace.meta.version == "schema unknown"


def test_metadata_after_the_events_names_the_rank(tmp_path: Path) -> None:
    trace = read(
        tmp_path, f'{{"traceEvents":[{KERNEL}],"distributedInfo":{{"rank":"5"}},"deviceProperties":[{{"id":1}}]}}'
    )
    assert table(trace, "kernels", "rank") == [(5,)]
    assert trace.meta.devices == (DeviceProperties(5, 1, ""),)


@pytest.mark.parametrize(
    "header",
    [
        '"distributedInfo":7,"deviceProperties":{}',
        '"distributedInfo":{"rank":-1,"world_size":-3},"deviceProperties":[]',
        '"distributedInfo":{"rank":4294967296,"world_size":0.5},"baseTimeNanoseconds":1e30',
        '"distributedInfo":[],"deviceProperties":null,"schemaVersion":[[]],"baseTimeNanoseconds":"x"',
    ],
)
def test_a_header_without_sense_is_no_header(tmp_path: Path, header: str) -> None:
    trace = read(tmp_path, f'{{{header},"traceEvents":[{KERNEL}]}}')
    meta = trace.meta
    assert (meta.world_size, meta.clock_base_ns, meta.devices) == (None, 0, ())
    assert table(trace, "kernels", "rank") == [(0,)]


def test_a_device_without_sense_keeps_its_place(tmp_path: Path) -> None:
    trace = read(tmp_path, f'{{"deviceProperties":[5,{{"id":"x","name":["A"],"numSms":-4}}],"traceEvents":[{KERNEL}]}}')
    assert trace.meta.devices == (DeviceProperties(0, 0, ""), DeviceProperties(0, 0, ""))


@pytest.mark.parametrize(
    ("content", "kernels", "counts"),
    [
        (f"[{KERNEL},{KERNEL}".encode(), 2, {"truncated_files": 1}),
        (f"[{KERNEL},{KERNEL[:30]}".encode(), 1, {"truncated_files": 1, "dropped_broken": 1}),
        (f"[{KERNEL}]".encode().replace(b'"k"', b'"\xff\xfe"'), 1, {"repaired_utf8": 1}),
        (b"\xef\xbb\xbf" + f"[{KERNEL}]".encode(), 1, {}),
        (f"[{KERNEL}]".replace("2.25", "NaN").encode(), 1, {"repaired_nan": 1, "missing_duration": 1}),
        (f"[{KERNEL}]".replace('"k"', r'"C:\k"').encode(), 1, {"repaired_escape": 1}),
        (f"[{KERNEL}]".replace('"k"', '"k\n"').encode(), 1, {}),
        (f"[{KERNEL}]".replace('"k"', '"k\\ud83d"').encode(), 1, {}),
        (f"[{KERNEL},{KERNEL}]".replace("2.25", "-2", 1).encode(), 1, {"dropped_negative": 1}),
        (f"[{KERNEL},{KERNEL}]".replace('"ts":1.5,', "", 1).encode(), 1, {"dropped_no_time": 1}),
        (f"[{KERNEL}]".replace("2.25", "2.25,\"dur\":3").encode(), 1, {}),
        (f"[{KERNEL}]".replace("2.25", "1e-400").encode(), 1, {}),
        (f"[{KERNEL}]".replace("2.25", "1e300").encode(), 1, {"missing_duration": 1}),
        (f"[{KERNEL}]".replace('"device":0', '"device":99999999999999999999').encode(), 1, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_damage_costs_what_it_touches(
    tmp_path: Path, content: bytes, kernels: int, counts: dict[str, int], packed: bool
) -> None:
    trace = read(tmp_path, gzip.compress(content) if packed else content)
    quality = trace.meta.quality
    assert trace.kernels.num_rows == kernels == quality["kept"]
    assert {name: n for name, n in quality.counts.items() if name not in ("events", "kept")} == counts
    assert balanced(quality)


def _events(count: int) -> bytes:
    # Numbers without a pattern, so that the packed file is longer than one chunk.
    rows = (
        f'{{"ph":"X","cat":"kernel","name":"k{i * i * 2654435761 % 2**61}","ts":{i + 1},"dur":1}}' for i in range(count)
    )
    return ("[" + ",".join(rows) + "]").encode()


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.999])
def test_a_truncated_gzip_keeps_what_came_before(tmp_path: Path, share: float) -> None:
    whole = gzip.compress(_events(2000), mtime=0)
    trace = read(tmp_path, whole[: int(len(whole) * share)])
    assert 2000 * share * 0.7 - 10 < trace.kernels.num_rows <= 2000
    assert trace.meta.quality["truncated_files"] == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_damaged_gzip_keeps_what_came_before(tmp_path: Path, share: float) -> None:
    whole = bytearray(gzip.compress(_events(2000), mtime=0))
    at = int(len(whole) * share)
    whole[at : at + 64] = bytes(64)
    trace = read(tmp_path, bytes(whole))
    assert trace.kernels.num_rows > 2000 * share * 0.7
    assert trace.meta.quality["truncated_files"] == 1
    assert balanced(trace.meta.quality)


def test_a_gzip_with_a_wrong_checksum_keeps_everything(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(_events(50), mtime=0))
    whole[-8] ^= 1
    trace = read(tmp_path, bytes(whole))
    assert trace.kernels.num_rows == 50
    assert trace.meta.quality["truncated_files"] == 1
    assert find_reader(tmp_path / "t.json").name == "kineto"


def test_gzip_members_follow_each_other_and_what_is_after_them_is_no_content(tmp_path: Path) -> None:
    first, second = f"[{KERNEL},".encode(), f"{KERNEL}]".encode()
    trace = read(tmp_path, gzip.compress(first) + gzip.compress(b"") + gzip.compress(second) + b"\0\0\0")
    assert trace.kernels.num_rows == 2
    assert dict(trace.meta.quality.counts) == {"events": 2, "kept": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"traceEvents":[]}', "traceEvents is empty; record again, and see that the profiler is active"),
        ('{"schemaVersion":1}', "it has no traceEvents"),
        ('{"traceEvents":[{"ph":"M"},{"ph":"X","ts":1,"dur":-1,"cat":"kernel"}]}', "none of its 2 events can be used"),
        ("", "byte 0: neither a JSON object nor an array"),
        (gzip.compress(b"[" + b" " * 100_000 + b"]"), "unpacks to more than 1,000 bytes; raise the limit"),
        ("[" + " " * 1000 + "]", "no event to read: it has no traceEvents"),
        (b"\x1f\x8b" + b"\xff" * 50, "the gzip stream is damaged at its start; copy the file again"),
    ],
)
def test_a_file_with_nothing_to_read_is_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(BrokenFileError) as caught:
        read(tmp_path, content, limit_bytes=1000)
    assert message in str(caught.value) and "t.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (256 << 20)))
    tracemalloc.start()
    with pytest.raises(BrokenFileError, match="unpacks to more"):
        read_source(path, limit_bytes=1 << 20)
    assert first_bytes(path)[:3] == b"[  "
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["missing.json", "nul\0.json"])
def test_what_cannot_be_opened_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        find_reader(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b'{"traceEvents":[]}', True),
        (b'\xef\xbb\xbf\n [{"name":"x","ph":"M"}]', True),
        (b'{"schemaVersion": 1,', True),
        (b'{"name":"a","version":"1.0"}', False),
        (b"[1,2,3]", False),
        (b"", False),
        (b"\x1f\x8b", False),
        (b"SQLite format 3\x00traceEvents", False),
    ],
)
def test_the_content_decides_not_the_name(tmp_path: Path, content: bytes, known: bool) -> None:
    path = tmp_path / "anything.txt"
    path.write_bytes(content)
    if known:
        assert find_reader(path).name == "kineto"
    else:
        with pytest.raises(
            UnknownFormatError, match=r"no reader knows this format \(readers: .*kineto|the file is empty"
        ):
            find_reader(path)


def test_cpu_events_alone_are_a_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, f'{{"traceEvents":[{OP}]}}')
    assert (trace.ops.num_rows, trace.kernels.num_rows) == (1, 0)


TIMES = st.decimals(min_value=1, max_value=4 * 10**12, places=3)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=20), st.booleans())
def test_times_come_out_exact_from_the_file(tmp_path_factory: pytest.TempPathFactory, spans: Any, epoch: bool) -> None:
    shift = 1_700_000_000_000_000 if epoch else 0
    text = ",".join(f'{{"ph":"X","cat":"kernel","name":"k","ts":{ts + shift},"dur":{dur}}}' for ts, dur in spans)
    trace = read(tmp_path_factory.mktemp("times"), f"[{text}]")
    exact = [(int((ts + shift) * 1000), int(dur * 1000)) for ts, dur in spans]
    assert table(trace, "kernels", "start_ns", "dur_ns") == exact
    assert all(Decimal(start).scaleb(-3) == ts + shift for (start, _), (ts, _) in zip(exact, spans, strict=True))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "args")
ARGS = ("correlation", "External id", "stream", "device", "grid", "block", "rank", "Input Dims", "bytes", "kind",
        "registers per thread", "shared memory", "est. achieved occupancy %", "wait_on_stream")  # fmt: skip
CATEGORIES = ("kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "cuda_sync", "user_annotation", "cpu_instant_event")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(CATEGORIES),
            st.dictionaries(st.sampled_from(ARGS), JSON, max_size=6),
            st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_json_in_any_field_is_a_trace_or_one_error(tmp_path_factory: pytest.TempPathFactory, parts: Any) -> None:
    events = [{"ph": "X", "cat": c, "name": "n", "ts": 5, "dur": 1, "args": args, **odd} for c, args, odd in parts]
    try:
        trace = read(tmp_path_factory.mktemp("odd"), json.dumps({"traceEvents": events}))
    except SeqPointError as error:
        assert "\n" not in str(error)
    else:
        assert balanced(trace.meta.quality)
        assert trace.meta.quality["events"] == len(events)


def test_a_file_read_in_one_pass_has_the_fingerprint_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (3 << 20) + 5):
        path.write_text(f'{{"traceEvents":[{KERNEL}]}}' + " " * size)
        assert stated_fingerprint(path) == fingerprint(path)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert stated_fingerprint(packed) == ""


def stated_fingerprint(path: Path) -> str:
    return KinetoReader().read([path], Stage()).fingerprint
