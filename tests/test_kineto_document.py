"""The text layer: which events come out of which damage, and what is counted."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import BrokenFileError
from profilers.readers.common.json_documents import Document

A, B, C = '{"ph":"X","name":"a","ts":1}', '{"ph":"X","name":"b","ts":2}', '{"ph":"X","name":"c","ts":3}'


def read(text: str) -> tuple[str, dict[str, int], dict[str, Any]]:
    """Return the names of the events as one word, the counts that are not zero, and the header."""
    document = Document(text, "t.json")
    names = "".join(str(event.get("name", "-")) for event in document)
    return names, {name: n for name, n in document.counts.items() if n}, document.header


@pytest.mark.parametrize(
    ("text", "names", "counts"),
    [
        (f'{{"traceEvents":[{A},{B}]}}', "ab", {"events": 2}),
        (f"[{A},{B}]", "ab", {"events": 2}),
        (f"\n [ {A} ,\n{B} ]\n", "ab", {"events": 2}),
        (f'{{"traceEvents":[{A},{B},]}}', "ab", {"events": 2}),
        (f'{{"traceEvents":[{A} {B}]}}', "ab", {"events": 2}),
        (f'{{"traceEvents":[{A}],"x":1,"traceEvents":[{B}]}}', "ab", {"events": 2}),
        (f'{{"traceEvents":[{A},null,{B}]}}', "ab", {"events": 2}),
        (f'{{"traceEvents":[{A},7,"s",[1],{B}]}}', "ab", {"events": 5, "dropped_broken": 3}),
        ('{"traceEvents":[]}', "", {}),
        ("{}", "", {}),
        ('{"traceEvents":{}}', "", {}),
        ('{"traceEvents":5}', "", {}),
        (f'{{"traceEvents":[{A},{B}', "ab", {"events": 2, "truncated_files": 1}),
        (f'{{"traceEvents":[{A},{B},', "ab", {"events": 2, "truncated_files": 1}),
        (f'{{"traceEvents":[{A},{B}]', "ab", {"events": 2, "truncated_files": 1}),
        (f'{{"traceEvents":[{A},{B[:9]}', "a", {"events": 2, "dropped_broken": 1, "truncated_files": 1}),
        ('{"traceEvents"', "", {"truncated_files": 1}),
        ('{"trace', "", {"truncated_files": 1}),
    ],
)
def test_whole_and_cut_documents(text: str, names: str, counts: dict[str, int]) -> None:
    assert read(text)[:2] == (names, counts)


@pytest.mark.parametrize(
    ("event", "names", "counts"),
    [
        (r'{"ph":"X","name":"C:\dir\x","ts":2}', "aC:\\dir\\xc", {"events": 3, "repaired_escape": 1}),
        (r'{"ph":"X","name":"\u12","ts":2}', "a\\u12c", {"events": 3, "repaired_escape": 1}),
        (r'{"ph":"X","name":"\\ \" \/ \u0041 \q"}', 'a\\ " / A \\qc', {"events": 3, "repaired_escape": 1}),
        ('{"ph":"X","name":"b\nb\t\x01"}', "ab\nb\t\x01c", {"events": 3}),
        ('{"ph":"X","name":"b"b","ts":2}', "ac", {"events": 3, "dropped_broken": 1}),
        ('{"ph":"X","name":"b}', "ac", {"events": 3, "dropped_broken": 1}),
        ('{"ph":"X" "ts":2,"args":{"name":"inner","ts":5}}', "ac", {"events": 3, "dropped_broken": 1}),
        ('{"ph":"X" "ts":2,"args":{"x":[{"id":1},{"y":2}],"z":3}}', "ac", {"events": 3, "dropped_broken": 1}),
        ('{"ph":"X","name":"bc"}}', "abcc", {"events": 4, "dropped_broken": 1}),
        ('{"name":"b","x":NaN,"y":[Infinity,-Infinity]}', "abc", {"events": 3, "repaired_nan": 3}),
        ('{"name":"b","x":1e9999999999999999999}', "ac", {"events": 3, "dropped_broken": 1}),
        ('{"name":"b","x":' + "9" * 5000 + "}", "ac", {"events": 3, "dropped_broken": 1}),
        ('{"name":"b","x":' + "[" * 5000 + "]" * 5000 + "}", "ac", {"events": 3, "dropped_broken": 1}),
        ('{"name":"b","x":' + "[" * 5000 + "}", "ac", {"events": 3, "dropped_broken": 1}),
        ('{"name":"x","name":"b"}', "abc", {"events": 3}),
    ],
)
def test_a_broken_event_costs_that_event_and_neither_its_neighbours_nor_the_header(
    event: str, names: str, counts: dict[str, int]
) -> None:
    got = read(f'{{"traceEvents":[{A},{event},{C}],"distributedInfo":{{"rank":3}}}}')
    assert got == (names, counts, {"distributedInfo": {"rank": 3}})


@pytest.mark.parametrize("tail", ['"deviceProperties":[{"id":0,"name":"A100"},{"id":1,"name":"A100"}]}', '"x":1}'])
def test_a_broken_last_event_leaves_the_metadata_after_it(tail: str) -> None:
    names, counts, header = read(f'{{"traceEvents":[{A},{{"ph":"X","a"b":1}}],{tail}')
    assert (names, counts) == ("a", {"events": 2, "dropped_broken": 1})
    assert header == json.loads("{" + tail)


def test_a_bad_escape_followed_by_more_backslashes_goes_forward() -> None:
    names, counts, _ = read('["\\x" \\ \\ \\ \\ \\ \\ \\ \\ , {"ph":"X","name":"a"}]')
    assert names == "a"
    assert counts["events"] == 1 + counts["dropped_broken"]


def test_a_broken_header_member_does_not_hide_the_events() -> None:
    text = f'{{"schemaVersion":1,"record_shapes":tru,"traceEvents":[{A}],"traceName":"t"}}'
    assert read(text) == ("a", {"events": 1}, {"schemaVersion": 1, "traceName": "t"})


def test_numbers_with_a_point_stay_decimal() -> None:
    (event,) = Document('[{"ts":1621401187223197.123,"dur":5}]', "t")
    assert event == {"ts": Decimal("1621401187223197.123"), "dur": 5}


@pytest.mark.parametrize("text", ["", "   ", "7", "x{", '"traceEvents"'])
def test_no_json_container_is_an_error_that_says_where(text: str) -> None:
    with pytest.raises(BrokenFileError, match=r"^t\.json: byte \d+: neither"):
        list(Document(text, "t.json"))


@given(st.lists(st.fixed_dictionaries({"name": st.text(), "ts": st.integers()}), min_size=1), st.integers(0, 10**6))
def test_a_cut_keeps_every_complete_event(events: list[dict[str, Any]], cut: int) -> None:
    pieces = [json.dumps(event) for event in events]
    text = '{"traceEvents":[' + ",".join(pieces) + "]}"
    at = cut % (len(text) + 1)
    complete, end = 0, len('{"traceEvents":[')
    for piece in pieces:
        end += len(piece) + 1
        complete += at >= end - 1
    assert list(Document("[" + text[16:at], "t")) == events[:complete]


@pytest.mark.parametrize("bad", ['"name":"a"b%d"', '"name":"a\\q%d"'], ids=["lost", "repaired"])
def test_many_broken_events_cost_no_more_than_their_text(bad: str) -> None:
    body = ",\n".join('{"ph":"X",' + bad % i + ',"args":{"x":[1,2,3]}}' for i in range(20_000))
    begun = time.process_time()
    _, counts, _ = read(f'{{"traceEvents":[{body}]}}')
    assert counts["events"] == 20_000
    assert time.process_time() - begun < 2.5  # counting lines for every error took 4.7 s, growing as the square
