"""SQLite files of strangers: what is read is what SQLite reads, whatever the file, and nothing in it is run."""

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import BrokenFileError
from profilers.readers.common import database as module
from profilers.readers.common.database import open_database
from profilers.trace.arrays import MISSING

LONGEST_S = 20


@contextmanager
def writing(path: Path, *pragmas: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        for pragma in ("synchronous = OFF", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        yield connection
        connection.commit()


def plain(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [None if value == MISSING else value for value in values.tolist()]
    return values.to_pylist()


def read(path: Path, table: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in columns}
    with open_database(path) as database:
        for batch in database.read(table, columns):
            assert list(batch) == list(columns)
            for name, values in batch.items():
                found[name] += plain(values)
    return found


def asked(path: Path, table: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return what SQLite itself says, in the types of `Database.read`."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
        rows = connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    return {name: plain(module._column([row[i] for row in rows])) for i, name in enumerate(columns)}


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where SQLite is asked."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("SQLite was asked")

    monkeypatch.setattr(module.Database, "_select", refuse)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.integers(-200, 200),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.binary(max_size=30),
    st.text("ab", min_size=0, max_size=2).map(lambda text: text * 700),
)
NUMBERS = st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from([0, 1, 127, 128, -129, 2**47]))
TEXTS = st.one_of(st.none(), st.text(st.characters(codec="utf-8"), max_size=40), st.binary(max_size=9))
KINDS = {
    "INTEGER NOT NULL DEFAULT 3": st.integers(-(2**63) + 1, 2**63 - 1),
    "INTEGER": NUMBERS,
    "BIGINT": VALUES,
    "REAL": st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-(2**60), 2**60)),
    "DOUBLE": NUMBERS,
    "TEXT": TEXTS,
    "VARCHAR(9)": VALUES,
    "": VALUES,
    "NUMERIC": VALUES,
    "BLOB": VALUES,
    "FLOATING POINT": NUMBERS,
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]], list[str]]:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6))
    rows = draw(st.lists(st.tuples(*(KINDS[kind] for kind in kinds)), max_size=40))
    pragmas = [
        f"page_size = {draw(st.sampled_from([512, 1024, 4096, 65536]))}",
        f"auto_vacuum = {draw(st.sampled_from([0, 1]))}",
        f"encoding = '{draw(st.sampled_from(['UTF-8', 'UTF-8', 'UTF-8', 'UTF-16le']))}'",
    ]
    return kinds, rows, pragmas


@given(tables(), st.booleans())
def test_any_table_reads_as_sqlite_reads_it(tmp_path_factory: pytest.TempPathFactory, table: Any, key: bool) -> None:
    kinds, rows, pragmas = table
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    names = [f"c{i}" for i in range(len(kinds))]
    columns = [f"{name} {kind}" for name, kind in zip(names, kinds, strict=True)]
    with writing(path, *pragmas) as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(columns + ['k INTEGER PRIMARY KEY'] * key)})")
        marks = ", ".join("?" * len(kinds))
        connection.executemany(f"INSERT INTO t ({', '.join(names)}) VALUES ({marks})", rows)
    names += ["k"] * key
    assert read(path, "t", names) == asked(path, "t", names)


def test_a_deep_tree_with_gaps_is_read_without_sqlite(tmp_path: Path, directly: None) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path, "page_size = 512") as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT, c REAL, k INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE other (a INTEGER)")
        for i in range(0, 40_000, 100):  # the pages of both tables alternate
            rows = [(j * j, f"text {j % 77}" if j % 3 else None, j / 8, j * 5) for j in range(i, i + 100)]
            connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
            connection.executemany("INSERT INTO other VALUES (?)", [(i,)] * 100)
        connection.execute("DELETE FROM t WHERE k % 7 = 0 OR k BETWEEN 50000 AND 120000")
    found = read(path, "t", ["k", "a", "b", "c", "absent"])
    assert found.pop("absent") == [None] * len(found["k"])
    assert found == asked(path, "t", ["k", "a", "b", "c"])
    assert len(found["k"]) > 20_000


def test_batches_are_bounded(tmp_path: Path, directly: None) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", ((i,) for i in range(400_000)))
    with open_database(path) as database:
        sizes = [len(batch["a"]) for batch in database.read("t", ["a"])]
    assert sum(sizes) == 400_000
    assert max(sizes) <= 2 * 32768 and len(sizes) < 24


def test_sqlite_reads_on_where_a_row_leaves_its_page(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        rows = ((i, "x" * 9000 if i == 150_000 else f"{i % 9}") for i in range(160_000))
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    assert read(path, "t", ["a", "b"]) == asked(path, "t", ["a", "b"])


@pytest.mark.parametrize(
    "script",
    [
        "PRAGMA journal_mode = WAL; CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "CREATE TABLE t (a, b, PRIMARY KEY (b)) WITHOUT ROWID; INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "CREATE TABLE t (a INTEGER PRIMARY KEY DESC, b); INSERT INTO t VALUES (7, 'x'), (NULL, 'y')",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (7, 'x'), (NULL, 'y')",
        "CREATE TABLE t (a INT PRIMARY KEY, b); INSERT INTO t VALUES (7, 'x'), (NULL, 'y')",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN b DEFAULT 'new'",
        "CREATE TABLE t (a); INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN b; INSERT INTO t VALUES (2, 'c')",
        "CREATE TABLE t (z, a, b); INSERT INTO t VALUES (0, 1, 'x'); ALTER TABLE t DROP COLUMN z",
        "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, CAST(x'ff41' AS TEXT)), (2, x'ff00')",
        "CREATE TABLE t (a REAL, b REAL); INSERT INTO t VALUES (1, 9e999), (0.5, -9e999), (NULL, NULL)",
        "CREATE TABLE t (a, b)",
    ],
)
def test_every_kind_of_table(tmp_path: Path, script: str) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.executescript(script)
    assert read(path, "t", ["a", "b"]) == asked(path, "t", ["a", "b"])


def test_types_are_those_of_the_values(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.execute("CREATE TABLE t (i INTEGER, f REAL, s TEXT, n TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(1, 2, "x", None), (None, None, None, None)])
    with open_database(path) as database:
        (batch,) = database.read("t", ["i", "f", "s", "n", "absent"])
    assert batch["i"].tolist() == [1, MISSING]
    assert str(batch["f"].type) == "double" and batch["f"].to_pylist() == [2.0, None]
    assert str(batch["s"].type) == "string" and batch["s"].to_pylist() == ["x", None]
    assert batch["n"].tolist() == batch["absent"].tolist() == [MISSING, MISSING]


def test_nothing_of_the_file_is_run(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.executescript(
            """
            CREATE TABLE t (a INTEGER, g AS (hex(zeroblob(4000000))), s AS (a + 1) STORED, b TEXT);
            INSERT INTO t (a, b) VALUES (1, 'x');
            CREATE VIEW v AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS a FROM r;
            CREATE TABLE w (a INTEGER);
            CREATE TRIGGER kernel AFTER INSERT ON w BEGIN DELETE FROM t; END;
            CREATE VIRTUAL TABLE f USING fts5(a);
            """
        )
    with open_database(path) as database:
        assert {"t", "w"} <= set(database.tables)
        assert not {"v", "f", "kernel"} & set(database.tables)
        assert database.tables["t"] == ("a", "b")
        with pytest.raises(BrokenFileError, match="has no table v"):
            next(database.read("v", ["a"]))
    assert read(path, "t", ["a", "b", "g"]) == {"a": [1], "b": ["x"], "g": [None]}


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        ("t", "CREATE VIEW t AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS a FROM r"),
        ("t", "CREATE TABLE u (a)"),
        ("t", "CREATE VIRTUAL TABLE t USING fts5(a)"),
        ("t", "CREATE TABLE t (a, b AS (load_extension('x')))"),
        ("t", None),
        ("t", "DROP TABLE w"),
        ('"', "CREATE TABLE t (a)"),
    ],
)
def test_a_schema_that_lies(tmp_path: Path, name: str, sql: str | None) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path) as connection:
        connection.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (5); CREATE TABLE w (a)")
        connection.execute("CREATE VIEW x AS SELECT 1 AS a")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET name = ?, tbl_name = ?, sql = ? WHERE name = 't'", (name, name, sql)
        )
        connection.execute("UPDATE sqlite_master SET sql = 'CREATE VIEW t AS SELECT abs(1) AS a' WHERE name = 'x'")
    start = time.monotonic()
    try:
        found = read(path, "t", ["a"])
    except BrokenFileError as error:
        assert "\n" not in str(error)
    else:
        assert found == {"a": [5]}
    assert time.monotonic() - start < LONGEST_S


def sample(path: Path) -> bytes:
    with writing(path, "page_size = 512") as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT, c REAL)")
        rows = ((i * 7919, f"name {i}" * (1 + 90 * (i == 9)), i / 3) for i in range(3000))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    return path.read_bytes()


def survives(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    start = time.monotonic()
    try:
        read(path, "t", ["a", "b", "c"])
    except BrokenFileError as error:
        assert "\n" not in str(error)
    assert time.monotonic() - start < LONGEST_S


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_crash(tmp_path: Path, seed: int) -> None:
    content = bytearray(sample(tmp_path / "t.sqlite"))
    dice = random.Random(seed)
    for _ in range(dice.choice([1, 8, 200])):
        at = dice.choice([dice.randrange(len(content)), dice.randrange(len(content)) // 512 * 512 + dice.randrange(16)])
        content[at] = dice.choice([0, 255, dice.randrange(256), content[at] ^ 1 << dice.randrange(8)])
    survives(tmp_path / "t.sqlite", bytes(content))


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_never_crashes(tmp_path: Path, share: float) -> None:
    content = sample(tmp_path / "t.sqlite")
    survives(tmp_path / "t.sqlite", content[: int(len(content) * share)])


def test_a_truncated_file_keeps_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    content = sample(path)
    path.write_bytes(content[: len(content) // 2])
    found: list[int] = []
    with open_database(path) as database, pytest.raises(BrokenFileError, match="table t is damaged"):
        for batch in database.read("t", ["a"]):
            found += plain(batch["a"])
    assert found == [i * 7919 for i in range(len(found))] and len(found) > 500


def test_a_long_value_beside_those_that_are_read_costs_nothing(tmp_path: Path, directly: None) -> None:
    path = tmp_path / "t.sqlite"
    with writing(path, "page_size = 1024") as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT, c TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ((i, f"{i}", "x" * (9 * i)) for i in range(900)))
    assert read(path, "t", ["a", "b"]) == {"a": list(range(900)), "b": [f"{i}" for i in range(900)]}


def test_a_tree_that_names_its_own_root_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    content = bytearray(sample(path))
    root = 512 * (_root(path) - 1)
    assert content[root] == 5
    content[root + 8 : root + 12] = _root(path).to_bytes(4, "big")
    survives(path, bytes(content))


def test_a_tree_whose_pages_share_their_children_ends(tmp_path: Path) -> None:
    # Eighteen levels of pages with sixty children each, all of them one page: 60^18 rows by name.
    path = tmp_path / "t.sqlite"
    content = bytearray(sample(path))
    root, first = _root(path), len(content) // 512 + 1
    leaf = _leaf(content, root)
    for level in range(18):
        child = leaf if level == 0 else first + level - 1
        content += _interior(child)
    content[512 * (root - 1) : 512 * root] = _interior(first + 17)
    content[28:32] = (len(content) // 512).to_bytes(4, "big")
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(BrokenFileError, match="table t is damaged"):
        read(path, "t", ["a", "b", "c"])
    assert time.monotonic() - start < LONGEST_S


def _root(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0])


def _leaf(content: bytes, page: int) -> int:
    start = 512 * (page - 1)
    return page if content[start] == 13 else _leaf(content, int.from_bytes(content[start + 8 : start + 12], "big"))


def _interior(child: int) -> bytes:
    """Return an interior page of 512 bytes with 40 cells that all name one child."""
    page = bytearray(512)
    page[0] = 5
    page[3:5] = (40).to_bytes(2, "big")
    page[5:7] = (512 - 200).to_bytes(2, "big")
    page[8:12] = child.to_bytes(4, "big")
    for cell in range(40):
        at = 512 - 5 * (cell + 1)
        page[12 + 2 * cell : 14 + 2 * cell] = at.to_bytes(2, "big")
        page[at : at + 5] = child.to_bytes(4, "big") + bytes([cell])
    return bytes(page)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000, b"no database"])
def test_what_is_no_database_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(content)
    with pytest.raises(BrokenFileError, match=r"t\.sqlite") as caught, open_database(path) as database:
        next(database.read("t", ["a"]))
    assert "\n" not in str(caught.value)
