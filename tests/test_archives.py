"""Archives of ranks, reports that a tool converts, and files of other tools that are refused by name."""

import gzip
import io
import json
import os
import pickle
import stat
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import seqpoint as sp
from profilers.errors import BrokenFileError, NotFoundError, SeqPointError, UnknownFormatError
from profilers.ingest import archives
from profilers.ingest.pipeline import IngestOptions, collect, ingest
from profilers.readers.common import foreign
from profilers.readers.common.source import fingerprint
from profilers.trace.store import load_trace
from tests.readings import database
from tests.test_ncu import RAW
from tests.test_nsys import export
from tests.traces import write_trace

PACKED = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".zip"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let temporary folders lie in a folder that must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def ranks(folder: Path, count: int = 2) -> dict[str, bytes]:
    """Return the files of some ranks by name, the second packed, and a file that no reader knows."""
    files = {"readme.txt": b"ranks of a job"}
    for rank in range(count):
        info = {"backend": "nccl", "rank": rank, "world_size": count}
        path = write_trace(folder / f"rank{rank}.json", 3, distributedInfo=info)
        content = path.read_bytes()
        files[f"rank{rank}.json{'.gz' if rank == 1 else ''}"] = gzip.compress(content) if rank == 1 else content
        path.unlink()
    return files


def tar(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write an archive whose form the suffix of `path` tells."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    elif path.name.endswith((".tar.gz", ".tgz")):
        path.write_bytes(gzip.compress(tar(files)))
    elif path.suffix == ".zst":
        target = pa.BufferOutputStream()
        with pa.CompressedOutputStream(target, "zstd") as stream:
            stream.write(tar(files))
        path.write_bytes(target.getvalue().to_pybytes())
    else:
        path.write_bytes(tar(files))
    return path


@pytest.mark.parametrize("suffix", PACKED)
def test_an_archive_of_ranks_is_the_folder_of_its_files(tmp_path: Path, temporary: Path, suffix: str) -> None:
    files = ranks(tmp_path)
    (tmp_path / "ranks").mkdir()
    for name, content in files.items():
        (tmp_path / "ranks" / name).write_bytes(content)
    of_folder = collect([tmp_path / "ranks"])
    packed = pack(tmp_path / f"job{suffix}", {f"job/{name}": content for name, content in files.items()})
    trace = sp.open(packed)
    assert trace.meta.sources == (f"job{suffix}:job/rank0.json", f"job{suffix}:job/rank1.json.gz")
    assert (trace.meta.ranks, trace.meta.fingerprint) == ((0, 1), of_folder.meta.fingerprint)
    assert trace.meta.quality == of_folder.meta.quality
    assert all(table.equals(of_folder.tables[kind]) for kind, table in trace.tables.items())
    assert not any(temporary.iterdir())


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_ingest_reads_an_archive_in_several_processes(tmp_path: Path, suffix: str) -> None:
    packed = pack(tmp_path / f"job{suffix}", ranks(tmp_path, 3))
    said: list[str] = []
    summary = ingest(
        [packed], tmp_path / "job.trace", IngestOptions(progress=lambda done, total, what: said.append(what))
    )
    assert said[0] == f"unpacking job{suffix}" and f"job{suffix}:rank2.json" in said
    assert load_trace(tmp_path / "job.trace").meta == collect([packed]).meta
    assert summary.meta.ranks == (0, 1, 2) and not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_interrupted_ingest_of_an_archive_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(tmp_path / "job.tar", ranks(tmp_path))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("profilers.ingest.pipeline.assemble", interrupted)
        ingest([packed], tmp_path / "job.trace")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".job.trace.work"]
    assert ingest([packed], tmp_path / "job.trace").resumed == 2
    os.utime(packed, (1, 1))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("profilers.ingest.pipeline.assemble", interrupted)
        ingest([packed], tmp_path / "again.trace")
    os.utime(packed, (2, 2))
    assert ingest([packed], tmp_path / "again.trace").resumed == 0


def test_no_member_leaves_the_temporary_folder(tmp_path: Path, temporary: Path) -> None:
    files = ranks(tmp_path, 1)
    names = [
        "../../out.json",
        "/tmp/seqpoint-out.json",
        "a/../../b.json",
        "..",
        ".",
        "x\\..\\y.json",
        "c\n\x1b[31m.json",
    ]
    packed = pack(tmp_path / "job.tar", {**dict.fromkeys(names, b"harm"), **files})
    before = {path for path in tmp_path.rglob("*") if temporary not in path.parents}
    found = archives.unpacked(packed, temporary, 1 << 30)
    assert {path for path in tmp_path.rglob("*") if temporary not in path.parents} == before
    assert not Path("/tmp/seqpoint-out.json").exists()
    assert all(temporary in file.resolve().parents and file.name.isprintable() for file in found)
    assert len(found) == len(names) - 2 + len(files)


def test_links_and_devices_are_no_members(tmp_path: Path) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for kind in (
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.CHRTYPE,
            tarfile.BLKTYPE,
            tarfile.FIFOTYPE,
            tarfile.DIRTYPE,
        ):
            member = tarfile.TarInfo(f"kind{kind.decode()}.json")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    (tmp_path / "job.tar").write_bytes(target.getvalue())
    with pytest.raises(NotFoundError, match=r"holds no trace that a reader knows \(0 files looked at\)"):
        collect([tmp_path / "job.tar"])
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        for name in "ab":
            link = zipfile.ZipInfo(f"{name}.json")
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, "/etc/passwd")
    with pytest.raises(NotFoundError, match="0 files looked at"):
        collect([tmp_path / "job.zip"])


def encrypted(path: Path, files: Mapping[str, bytes]) -> None:
    content = bytearray(pack(path, files).read_bytes())
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        position = -1
        while (position := content.find(mark, position + 1)) >= 0:
            content[position + offset] |= 1
    path.write_bytes(content)


def long_header(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a tar that begins with a header which claims, and packs, 64 MB of attributes."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 26
    path.write_bytes(gzip.compress(header.tobuf() + bytes(1 << 26) + tar(files)))


def twice(path: Path, files: Mapping[str, bytes]) -> None:
    one = tar({"rank0.json": files["rank0.json"]})[:-1024].rstrip(b"\0")
    one += bytes(-len(one) % 512)
    path.write_bytes(one + tar(files))


def many(path: Path, files: Mapping[str, bytes]) -> None:
    path.write_bytes(tar({f"{number}.json": b"" for number in range(40)}))


def bomb(path: Path, files: Mapping[str, bytes]) -> None:
    pack(path, {f"{number}.json": bytes(1 << 19) for number in range(4)})


def cut(size: int) -> Callable[[Path, Mapping[str, bytes]], None]:
    return lambda path, files: path.write_bytes(pack(path, files).read_bytes()[:size]) and None


BAD: dict[str, tuple[str, Callable[[Path, Mapping[str, bytes]], None], str]] = {
    "encrypted": (".zip", encrypted, "the archive is encrypted; unpack it, and give the folder"),
    "twice": (".tar", twice, "holds 'rank0.json' twice; unpack it"),
    "many": (".tar", many, "more than 30 files"),
    "header": (".tar.gz", long_header, "damaged before its first file; copy it again (a header of 67,108,864 bytes)"),
    "bomb": (".tar.gz", bomb, "unpacks to more than 1,048,576 bytes"),
    "zip bomb": (".zip", bomb, "unpacks to more than 1,048,576 bytes"),
    "no directory": (".zip", cut(-60), "its directory is missing; copy it again"),
    "nothing": (".tar", cut(700), "the archive is damaged before its first trace"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    suffix, write_bad, message = BAD[case]
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 30)
    files = ranks(tmp_path, 1)
    path = tmp_path / f"job{suffix}"
    write_bad(path, {"rank0.json": files["rank0.json"], "a.txt": b"a"})
    options = IngestOptions(limit_bytes=1 << 20)
    for read in (lambda: collect([path], options), lambda: ingest([path], tmp_path / "x.trace", options)):
        with pytest.raises(BrokenFileError) as refused:
            read()
        assert message in str(refused.value) and str(refused.value).startswith(str(path))
    assert not any(temporary.iterdir())
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "temporary"]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst"])
def test_members_before_a_damage_are_kept_and_counted(tmp_path: Path, suffix: str) -> None:
    files = {name: content for name, content in ranks(tmp_path).items() if name.startswith("rank")}
    whole = tar(files)
    cut = whole[: 512 * (2 + -(-len(files["rank0.json"]) // 512)) + 100]  # in the second member
    content = {".tar": cut, ".tar.gz": gzip.compress(cut)}.get(suffix)
    if content is None:
        target = pa.BufferOutputStream()
        with pa.CompressedOutputStream(target, "zstd") as stream:
            stream.write(cut)
        content = target.getvalue().to_pybytes()
    path = tmp_path / f"job{suffix}"
    path.write_bytes(content)
    meta = collect([path]).meta
    assert meta.ranks == (0,) and meta.quality["truncated_files"] >= 1 and meta.sources[0] == f"job{suffix}:rank0.json"


def test_a_damaged_header_in_the_middle_is_a_damage(tmp_path: Path) -> None:
    files = {name: content for name, content in ranks(tmp_path).items() if name.startswith("rank")}
    whole = bytearray(tar(files))
    second = 512 * (1 + -(-len(files["rank0.json"]) // 512))
    for content in (bytes(whole[:second]), bytes(whole[:second]) + b"\xff" * 512 + bytes(whole[second + 512 :])):
        (tmp_path / "job.tar").write_bytes(content)
        meta = collect([tmp_path / "job.tar"]).meta
        assert (meta.ranks, meta.quality["truncated_files"]) == ((0,), 1)


def test_a_damaged_member_of_a_zip_costs_no_other(tmp_path: Path) -> None:
    files = {name: content for name, content in ranks(tmp_path, 3).items() if name != "readme.txt"}
    content = bytearray(pack(tmp_path / "job.zip", files).read_bytes())
    with zipfile.ZipFile(tmp_path / "job.zip") as archive:
        begin = archive.infolist()[1].header_offset
    content[begin + 80 : begin + 200] = b"\xff" * 120
    (tmp_path / "job.zip").write_bytes(content)
    meta = collect([tmp_path / "job.zip"]).meta
    assert {0, 2} <= set(meta.ranks) and meta.quality["truncated_files"] >= 1


def test_a_message_names_the_member(tmp_path: Path) -> None:
    bad = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}]}).encode()
    packed = pack(tmp_path / "job.tar", {"rank0.json": bad, "rank1.json": bad})
    with pytest.raises(BrokenFileError, match=rf"^{packed}:rank0.json: none of its 1 events can be used"):
        collect([packed])


def test_a_zip_of_one_file_is_read_in_place_and_archives_in_archives_are_not(tmp_path: Path) -> None:
    files = ranks(tmp_path, 1)
    single = pack(tmp_path / "one.zip", {"rank0.json": files["rank0.json"]})
    assert collect([single]).meta.sources == ("one.zip",)
    nested = pack(tmp_path / "job.tar", {**files, "more.tar": tar(files)})
    assert collect([nested]).meta.sources == ("job.tar:rank0.json",)


# Reports


def tool(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of a name in front of the path."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("name", ["job.nsys-rep", "-job.NSYS-REP", "a b;$(touch x).qdrep"])
def test_a_report_is_converted_by_its_tool(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    exported = database(tmp_path / "exported.sqlite", export())
    (tmp_path / name).write_bytes(b"a report")
    tool(tmp_path / "bin", "nsys", f'echo "$@" > {tmp_path}/called; cp {exported} "$5"', monkeypatch)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    trace = sp.open(name, progress=lambda done, total, what: said.append(what))
    assert trace.meta.format == "nsys" and trace.meta.sources == (name,) and trace.kernels.num_rows
    assert trace.meta.fingerprint == fingerprint(tmp_path / name) and said[0] == f"converting {name} with nsys"
    assert (tmp_path / "called").read_text().startswith("export --type sqlite --output /")
    assert not any(temporary.iterdir()) and not (tmp_path / "x").exists()
    assert ingest([name], "job.trace").meta == trace.meta


def test_counters_of_a_report_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw.csv").write_text(RAW)
    (tmp_path / "k.ncu-rep").write_bytes(b"a report")
    tool(tmp_path / "bin", "ncu", f'test "$3" = --csv && cat {tmp_path}/raw.csv', monkeypatch)
    assert collect([tmp_path / "k.ncu-rep"]).kernels["name"].to_pylist() == ["sgemm", "add"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo loading; echo the file is of version 9 >&2; exit 3", "ended with status 3 (the file is of version 9)"),
        ("exit 0", "it wrote nothing"),
        ("sleep 30 & sleep 30", "it took more than 0.5 s"),
        ('head -c 3000000 /dev/zero > "$5"', "makes more than 1,048,576 bytes"),
    ],
)
def test_a_tool_that_fails_or_hangs_is_said(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr(foreign, "CONVERSION_S", 0.5)
    (tmp_path / "job.nsys-rep").write_bytes(b"a report")
    tool(tmp_path / "bin", "nsys", script, monkeypatch)
    begin = time.monotonic()
    with pytest.raises(BrokenFileError) as refused:
        collect([tmp_path / "job.nsys-rep"], IngestOptions(limit_bytes=1 << 20))
    assert message in str(refused.value) and str(refused.value).startswith(str(tmp_path / "job.nsys-rep"))
    assert time.monotonic() - begin < 10 and not any(temporary.iterdir())


def test_a_report_without_its_tool_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, command in {
        "job.nsys-rep": "run `nsys export --type sqlite --output job.sqlite job.nsys-rep`, and give job.sqlite",
        "-a b.nsys-rep": "run `nsys export --type sqlite --output './-a b.sqlite' './-a b.nsys-rep'`, and give",
        "k.ncu-rep": "run `ncu --import k.ncu-rep --csv --page raw > k.csv`, and give k.csv",
    }.items():
        Path(name).write_bytes(b"a report")
        with pytest.raises(UnknownFormatError) as refused:
            sp.open(name)
        assert command in str(refused.value) and "is not installed here" in str(refused.value)


class Harm:
    """A pickle that would make a file."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("snapshot.pickle", pickle.dumps(Harm()), "it is never unpickled"),
        (
            "job.pftrace",
            b"\x0a\x10",
            "it is a trace of Perfetto in protobuf; convert it with",
        ),
        ("host.xplane.pb", b"\x0a\x10", "a profile of XLA"),
        ("job.pb", b"\x0a\x10", "a protobuf message"),
        ("traces.otf2", b"OTF2", "record again with `rocprofv3"),
        ("timeline.png", b"\x89PNG\r\n\x1a\n", "it is a picture; give the trace that it was drawn from"),
        ("log.json", b'{"loss": 0.5}', "it has no traceEvents"),
        ("table", b"PAR1....", "a Parquet table"),
        ("packed.xz", b"\xfd7zXZ\x00", "unpack it, or pack it with gzip or zstd"),
        ("run", b"\x7fELF", "a program or a library"),
        ("a.unknown", b"\x01\x02", "no reader knows this format (readers: "),
    ],
)
def test_a_file_of_another_tool_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    with pytest.raises(SeqPointError) as refused:
        sp.open(name)
    assert isinstance(refused.value, UnknownFormatError) and message in str(refused.value)
    assert not Path("harm").exists()
