"""Runs one SQL statement of DuckDB in a process of its own, which `seqpoint.queries` starts and, if it must, kills.

DuckDB's own limits do not hold for every statement: with a limit of 1 GB, a list of 3e8 numbers took 15 GB and could
not be interrupted for 78 s. The system's limit on the memory of a process, and its end, hold for all.

The process reads a job (a line of JSON) from stdin, answers with the tables that the statement needs (a line of JSON),
reads them as Arrow streams, and answers with the rows, or with an error of one line. It is run as a file and imports
nothing of this project.
"""

import json
import sys
from decimal import Decimal
from typing import Any

#: Bytes of JSON of the rows of an answer, and characters of an error.
_MOST_BYTES, _MOST_TEXT = 1 << 26, 400


def main() -> None:
    """Answer the job on stdin."""
    job = json.loads(sys.stdin.buffer.readline())
    try:
        import duckdb
    except ImportError:
        _answer({"missing": True})
        return
    _limit_memory(job["process_bytes"])
    try:
        _answer(_run(job))
    except (duckdb.OutOfMemoryException, MemoryError):
        _answer({"error": "it takes too much memory; narrow it, by rank, iteration or name"})
    except (duckdb.Error, RuntimeError, ValueError, RecursionError) as error:
        lines = str(error).partition("\nLINE ")[0].split()
        hint = f" (views: {', '.join(job['views'])})" if isinstance(error, duckdb.CatalogException) else ""
        _answer({"error": " ".join(lines)[:_MOST_TEXT] + hint})


def _limit_memory(most: int) -> None:
    """Limit the memory of this process, where the system can; a statement cannot raise it."""
    try:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    except (ImportError, OSError, ValueError):
        return


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(content).encode() + b"\n")
    sys.stdout.buffer.flush()


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the statement of a job, or why it is refused."""
    connection = _connect(job)
    statements = connection.extract_statements(job["query"])
    if len(statements) != 1:
        return {"error": f"{len(statements)} statements; write one SELECT"}
    if (kind := statements[0].type.name) != "SELECT":
        return {"error": f"a statement of the kind {kind}; a trace is only read, by one SELECT"}
    named = {name.lower() for name in connection.get_table_names(job["query"])}
    views = {name: text for name, text in job["views"].items() if name in named}
    named |= {name for text in views.values() for name in connection.get_table_names(text)}
    needed = [name for name in job["tables"] if name in named]
    _answer({"needs": needed})
    _limit_memory(job["process_bytes"] + 2 * json.loads(sys.stdin.buffer.readline()))
    _add_tables(connection, job, needed)
    for name, text in views.items():
        connection.execute(f"create view {name} as {text}")
    return _rows(connection.execute(statements[0]), job["limit"])


def _connect(job: dict[str, Any]) -> Any:
    """Return a connection that can read the files of the job, and no other, and whose settings cannot change."""
    import duckdb

    settings: dict[str, Any] = {
        "memory_limit": f"{job['memory_bytes']}B", "threads": str(job["threads"]), "temp_directory": "",
        "max_temp_directory_size": "0B",
        "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
        "allow_community_extensions": "false", "python_enable_replacements": "false",
    }  # fmt: skip
    connection = duckdb.connect(":memory:", config=settings)
    files = ", ".join(_quoted(file) for of_table in job["files"].values() for file in of_table)
    # A small buffer, since an endless statement fills it before the first row is seen.
    connection.execute("set streaming_buffer_size = '32KB'")
    for setting in (f"allowed_paths = [{files}]", "enable_external_access = false", "lock_configuration = true"):
        connection.execute(f"set {setting}")
    return connection


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _add_tables(connection: Any, job: dict[str, Any], names: list[str]) -> None:
    """Add the tables that come on stdin; one with files has the rows of the files, and null in columns they lack."""
    import pyarrow as pa

    for name in names:
        with pa.ipc.open_stream(sys.stdin.buffer) as stream:
            table = stream.read_all()
        files = ", ".join(map(_quoted, job["files"].get(name, ())))
        if not files:
            connection.register(name, table)
            continue
        connection.register(f"columns_of_{name}", table)
        read = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
        connection.execute(f"create view {name} as from columns_of_{name} union all by name from {read}")


def _rows(result: Any, limit: int) -> dict[str, Any]:
    """Return the first rows of a result, and whether there are more."""
    columns = [[str(name), str(kind)] for name, kind, *_ in result.description]
    rows, size = list[Any](), 0
    while (row := result.fetchone()) is not None:
        if len(rows) == limit or size > _MOST_BYTES:
            return {"columns": columns, "rows": rows, "more": True}
        rows.append([_plain(cell) for cell in row])
        size += len(json.dumps(rows[-1]))
    return {"columns": columns, "rows": rows, "more": False}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; dates, intervals and bytes become text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Decimal):
        return float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


if __name__ == "__main__":
    main()
