"""Traces to share: `anonymous_trace` keeps public names, numbers all others, and leaves every figure as it is.

A name is public if each of its words is in `datasets/public_names.toml`. A private name is replaced whole
(`kernel17`), but for the pieces from which figures follow: the class of a kernel, its tile, the phase of an operator,
the mark of a step. A public template keeps its public arguments. One text has one new name everywhere, so that what is
the same, such as a process group, stays the same.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import devices_in_name
from profilers.files import shipped_table
from profilers.trace.arrays import MISSING, Ints, arrow_array, encode_text, text_array
from profilers.trace.kernels import ClassRule, classify
from profilers.trace.schema import SCHEMAS
from profilers.trace.trace import Trace, TraceMeta

#: Noun of a private name by the kind of its event; of other texts by their column.
_NOUNS: Mapping[str, str] = {
    **{"ops": "op", "launches": "call", "kernels": "kernel", "copies": "copy", "collectives": "kernel"},
    **{"syncs": "sync", "ranges": "range", "counters": "counter", "iterations": "step"},
    **{"group_name": "group", "category": "category", "unit": "unit"},
}
#: Words of a name. Of shorter pieces, no list is kept: they are abbreviations, and hardly tell a secret.
_WORD, _LEAST = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"), 4
_IDENTIFIER = re.compile(r"[^\W\d][\w$]*")
#: A string of JSON, and whether it is a key; and what else may be in JSON.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_NUMBERED = re.compile(r"text\d+(?:_\w+)?")
_REST = re.compile(r"(?:[^A-Za-z\"]|true|false|null|NaN|Infinity|(?<=\d)[eE](?=[-+\d]))*")
#: Python functions as PyTorch's profiler names them: the library that they are of, if it is one that launches kernels.
_FRAME = re.compile(
    r"(?:(?:.*/)?(?P<library>(?:torch|triton|numpy)/))?(?P<path>.*)[.]py\((?P<line>\d+)\): (?P<function>.*)"
)
_MANGLED = re.compile(r"_Z(?=[NL\d])")


class _PublicNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `datasets/public_names.toml`, whose head explains its keys."""

    words: str
    beginnings: tuple[str, ...]
    ends: tuple[str, ...]
    telling: tuple[str, ...]
    private: tuple[str, ...]
    private_keys: tuple[str, ...]


@dataclass(frozen=True)
class PublicNames:
    """What an anonymous trace may say.

    Parameters
    ----------
    words : frozenset of str
        Public words, in lower case.
    beginning, end, telling, private, private_key : pattern
        What is kept of a private name, and what makes a text private.
    """

    words: frozenset[str]
    beginning: re.Pattern[str]
    end: re.Pattern[str]
    telling: re.Pattern[str]
    private: re.Pattern[str]
    private_key: re.Pattern[str]

    def is_public(self, text: str) -> bool:
        """Return whether everybody may read a text: all its words are public, and it is no path, address or hash.

        Examples
        --------
        >>> names = public_names()
        >>> [names.is_public(text) for text in ("aten::mm", "ProfilerStep#12", "acme::fused_router", "/home/me")]
        [True, True, False, False]
        """
        if not text.isascii() or self.private.search(text):
            return False
        words = _WORD.findall(" ".join(_unmangled(text)) if _MANGLED.match(text) else text)
        return all(len(word) < _LEAST or word.lower() in self.words for word in words)


@cache
def public_names() -> PublicNames:
    """Return the shipped lists of public names."""
    lists = shipped_table("public_names.toml", "public names", _PublicNames)
    beginning, ends, telling, private, key = (
        "|".join(group) for group in (lists.beginnings, lists.ends, lists.telling, lists.private, lists.private_keys)
    )
    words, end = frozenset(lists.words.split()), re.compile(f"(?:{ends})$", re.IGNORECASE)
    patterns = (re.compile(beginning), end, re.compile(telling), re.compile(private), re.compile(key, re.IGNORECASE))
    return PublicNames(words, *patterns)


def _unmangled(name: str) -> Iterator[str]:
    """Yield the identifiers of a mangled C++ name, each behind its length, and pieces between that are no codes."""
    at, previous = 0, 0
    for match in re.finditer(r"\d+", name):
        end = match.end() + int(match[0][:4])
        if match.start() >= at and name[match.end() : match.end() + 1].isidentifier():
            yield name[match.end() : end]
            yield from _no_codes(name[previous : match.start()])
            at = previous = end
    yield from _no_codes(name[previous:])


def _no_codes(piece: str) -> list[str]:
    """Return the runs of small letters with more different ones than types of parameters have."""
    return [run for run in re.findall(r"[a-z]{5,}", piece) if len(set(run)) > 4]


@dataclass
class _Names:
    """The new names of texts, each numbered when it is first seen, and the number of names by noun."""

    lists: PublicNames
    taken: frozenset[str]
    new: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def of(self, text: str, noun: str) -> str:
        """Return the new name of a text, which is the text itself if it is public."""
        if (name := self.new.get(text)) is None:
            name = self.new[text] = text if self.lists.is_public(text) else self._renamed(text, noun)
        return name

    def _renamed(self, text: str, noun: str) -> str:
        head = re.split("[<(]", text.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
        if noun == "kernel" and head not in ("", text) and self.lists.is_public(head):
            name = _IDENTIFIER.sub(lambda match: self.of(match[0], "type"), text)
            if self.lists.is_public(name):
                return name
        if (frame := _FRAME.fullmatch(text)) is not None:
            module = re.split("[/.]", text, maxsplit=1)[0]
            library = frame["library"] or (f"{module}/" if module in sys.stdlib_module_names else "")
            file, function = self.of(frame["path"], "file"), self.of(frame["function"], "function")
            return f"{library}{file}.py({frame['line']}): {function}"
        begin = self.lists.beginning.match(text)
        start = begin.end() if begin else 0
        end = self.lists.end.search(text, start)
        stop = end.start() if end else len(text)
        stop -= text[:start].endswith("(") and text.endswith(")")
        if 0 < stop - start < len(text) and self.lists.is_public(text[:start] + " " + text[stop:]):
            name = self.of(text[start:stop], noun)
            between = "_" if name[-1:].isalpha() and text[stop : stop + 1].isalpha() else ""
            return text[:start] + name + between + text[stop:]
        return self.numbered(text, noun)

    def numbered(self, text: str, noun: str) -> str:
        """Return a new name with the pieces of a text from which figures follow, such as the class of a kernel."""
        self.counts[noun] += 1
        plain = f"{noun}{self.counts[noun]}"
        class_ = classify(text) if noun == "kernel" else "other"
        told = [piece for piece in self._told(text) if self.lists.is_public(piece)]
        name = plain if class_ == "other" else f"{class_}_{plain}"
        name = name if set(self._told(name)) <= set(told) else plain  # `gemm` tells more than the class
        name = re.sub("__+", "_", "_".join((name, *(piece for piece in told if piece not in self._told(name)))))
        return name if name not in self.taken else self.numbered(text, noun)

    def _told(self, text: str) -> list[str]:
        """Return the pieces of a text from which figures follow, each once."""
        return list(dict.fromkeys(self.lists.telling.findall(text)))

    def in_json(self, text: str) -> str:
        """Return JSON in which strings and keys have their new names; all else, and its form, stays."""
        if _REST.fullmatch(_STRING.sub("", text)) is None:
            return text[:1] + {"{": "}", "[": "]"}.get(text[:1], "")
        key = ""

        def renamed(match: re.Match[str]) -> str:
            nonlocal key
            try:
                value = str(json.loads(f'"{match[1]}"', strict=False))
            except ValueError:
                value = match[1]
            if match[2]:
                key, name = value, self.of(value, "key")
            elif self.lists.private_key.search(key) and re.search("[^\\W_]", value) and not _NUMBERED.fullmatch(value):
                name = self.new[value] = self.new.get(value) or self.numbered(value, "text")
            else:
                name = self.of(value, "text")
            return match[0] if name == value else json.dumps(name) + (match[2] or "")

        return _STRING.sub(renamed, text)


def anonymous_trace(trace: Trace, public: PublicNames | None = None) -> tuple[Trace, Mapping[str, int]]:
    """Return a trace with public names only, and the number of private names by noun.

    Times, shapes, data types, numbers and ids stay, and so do the figures that the toolkit computes.

    Parameters
    ----------
    trace : Trace
        The trace.
    public : PublicNames, optional
        What it may say; by default the shipped lists.
    """
    columns = {kind: [each for each in SCHEMAS[kind] if _is_text(each.type)] for kind in SCHEMAS}
    texts = {
        (kind, each.name): encode_text(trace.tables[kind][each.name])
        for kind, fields in columns.items() for each in fields if each.name in trace.tables[kind].schema.names
    }  # fmt: skip
    taken = frozenset(chain.from_iterable(known for (_, column), (_, known) in texts.items() if column == "name"))
    names = _Names(public or public_names(), taken)
    tables = dict(trace.tables)
    is_json = {(kind, each.name): _is_json(each) for kind, fields in columns.items() for each in fields}
    for kind, column in sorted(texts, key=lambda key: (is_json[key], key[1] != "name")):  # names number first
        codes, known = texts[kind, column]
        noun = _NOUNS.get(kind if column == "name" else column, "text")
        renamed: dict[int, str] = {}
        for code in dict.fromkeys(codes.tolist()):  # texts by their first row, up to 10 us each
            if code >= 0:
                renamed[code] = names.in_json(known[code]) if is_json[kind, column] else names.of(known[code], noun)
        tables[kind] = _with_texts(tables[kind], column, codes, renamed)
    kernels = {str(name): names.of(str(name), "kernel") for name in texts.get(("kernels", "name"), ((), ()))[1]}
    return Trace(_renamed_meta(trace.meta, names, kernels), tables), +names.counts


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(type_) or pa.types.is_string(type_))


def _is_json(column: pa.Field) -> bool:
    return b"JSON" in (column.metadata or {}).get(b"unit", b"")


def _with_texts(table: pa.Table, column: str, codes: Ints, texts: Mapping[int, str]) -> pa.Table:
    """Return a table with a text column replaced; only the texts of its rows are in it."""
    place = np.full(max(texts, default=-1) + 2, MISSING)  # the last is that of null
    place[list(texts)] = np.arange(len(texts))
    rows = place[codes]
    values = text_array(list(texts.values())).take(arrow_array(rows, rows == MISSING))
    index = table.schema.get_field_index(column)
    type_ = table.schema.field(index).type
    if pa.types.is_dictionary(type_):
        values = values.dictionary_encode().cast(type_)
    return table.set_column(index, table.schema.field(index), values)


def _renamed_meta(meta: TraceMeta, names: _Names, kernels: Mapping[str, str]) -> TraceMeta:
    """Return the description of an anonymous trace: what its files say of the device stays, their names do not.

    Rules give kernels the class that they had, where their new name does not.
    """
    classes = {new: meta.class_of(old) for old, new in kernels.items()}
    rules = [(new, label) for new, label in classes.items() if classify(new) != label]
    sources = [
        "_".join((f"file_{number}", *(device.name.replace(" ", "_") for device in devices_in_name(source))))
        for number, source in enumerate(meta.sources, 1)
    ]
    devices = [replace(each, name=_device_name(each.name, names)) for each in meta.devices]
    return replace(
        meta,
        format=names.of(meta.format, "format"),
        version=names.of(meta.version, "version"),
        sources=tuple(sources),
        devices=tuple(devices),
        class_rules=tuple(ClassRule(re.sub(r"[*?]", "?", new), label) for new, label in rules),
    )


def _device_name(name: str, names: _Names) -> str:
    """Return the name of a device if it is public, else that of the catalogue, else a number."""
    known = devices_in_name(name)
    return known[0].name if known and not names.lists.is_public(name) else names.of(name, "device")
