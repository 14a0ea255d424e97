"""The class of kernels by name, on the names of `kernel_names.csv`, and the rules that give it."""

import csv
import re
from collections import Counter
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import integers, strings
from profilers.trace.kernels import (
    CLASSES,
    COLLECTIVE,
    COMPUTE_BOUND,
    ClassRule,
    classify,
    is_collective,
    read_class_rules,
    shipped_rules,
)

#: Names as libraries write them, some shortened: most from real traces, the others from the sources of libraries.
with (Path(__file__).parent / "kernel_names.csv").open(encoding="utf-8") as _file:
    NAMES = [(row["class"], row["name"]) for row in csv.DictReader(_file)]


def test_the_name_says_the_class() -> None:
    wrong = [(name, label, classify(name)) for label, name in NAMES if classify(name) != label]
    assert not wrong, wrong[:20]
    assert len(NAMES) > 600 and {label for label, _ in NAMES} == set(CLASSES)


def test_a_name_is_collective_exactly_if_its_class_is() -> None:
    assert [is_collective(name) for _, name in NAMES] == [label == COLLECTIVE for label, _ in NAMES]


def test_each_rule_has_its_class_by_its_example() -> None:
    for rule in shipped_rules():
        assert classify(rule.example) == rule.class_, rule
        assert re.search("|".join(rule.patterns), rule.example, re.IGNORECASE), rule
        assert rule.class_ in CLASSES and rule.why
    assert {rule.class_ for rule in shipped_rules()} == set(CLASSES)
    assert len(set(CLASSES)) == len(CLASSES) and set(CLASSES) >= COMPUTE_BOUND
    assert classify("") == "other"


@pytest.mark.parametrize("text", ["_", "triton_poi_fused_", "to_copy_", "copy_", "flashinfer", "__", "::ep", "add "])
def test_long_names_take_bounded_time(text: str) -> None:
    """A name of 1 MiB takes no second, although a pattern may try each of its positions as begin and as end."""
    name = "triton_poi_fused_" + text * ((1 << 20) // len(text)) + "!"
    start = perf_counter()
    assert classify(name) in CLASSES and classify(name[17:]) in CLASSES
    assert perf_counter() - start < 2


RULES_FILE = """
[[classes]]
pattern = "my_*_kernel[4]"
class = "gemm"

[[classes]]
pattern = "*nccl*Generic*"
class = "copy"
"""


def rules_file(folder: Path, text: str = RULES_FILE) -> Path:
    path = folder / "classes.toml"
    path.write_text(text)
    return path


def test_own_rules_come_first_and_fit_whole_names(tmp_path: Path) -> None:
    rules = read_class_rules(rules_file(tmp_path))
    assert rules == (ClassRule("my_*_kernel[4]", "gemm"), ClassRule("*nccl*Generic*", "copy"))
    names = ["my_softmax_kernel[4]", "my_softmax_kernel4", "ncclDevKernel_Generic_1(int)", "a my_x_kernel[4]"]
    assert [classify(name, rules) for name in names] == ["gemm", "softmax", "copy", "other"]
    assert [classify(name) for name in names] == ["softmax", "softmax", "collective", "other"]
    assert not is_collective(names[2], rules)


FIRST = '[[classes]]\npattern = "a"\nclass = "gemm"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"classes.toml: a file of classes holds \[\[classes\]\] tables with pattern"),
        ("rules = 1", "a file of classes holds"),
        ("classes = []", "a file of classes holds"),
        (FIRST + '[[classes]]\npattern = "b"', "rule 2: lacks the key 'class'"),
        ('[[classes]]\npattern = 3\nclass = "gemm"', "rule 1: pattern: Expected `str`, got `int`"),
        ('[[classes]]\npattern = ""\nclass = "gemm"', "rule 1: pattern: "),
        (f'[[classes]]\npattern = "{"a" * 501}"\nclass = "gemm"', "rule 1: pattern: "),
        (FIRST.replace("gemm", "gem"), "rule 1: no class of kernels is called 'gem'; near names: gemm"),
        (FIRST + 'why = "b"', "rule 1: unknown key 'why'; the keys are pattern, class"),
        (FIRST * 1001, "1001 rules; at most 1000 are read"),
        ("[[classes", "classes.toml: no TOML"),
    ],
)
def test_a_bad_file_of_rules_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SeqPointError, match=message) as caught:
        read_class_rules(rules_file(tmp_path, text))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_pattern_of_many_stars_takes_bounded_time() -> None:
    rule = ClassRule("*a" * 249, "gemm")
    start = perf_counter()
    assert not rule.fits("ab" * 100_000) and classify("ab" * 100_000, [rule] * 20) in CLASSES
    assert perf_counter() - start < 2


DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
#: Least share of the GPU time of a file, by class, read off its kernels' names by eye.
SHARES = {
    "tracelens/h100/gaunernst_bert-small-uncased.json.gz": {"gemm": 0.5, "elementwise": 0.05, "attention": 0.05},
    "tracelens/mi300/Falconsai_nsfw_image_detection.json.gz": {"gemm": 0.5, "normalization": 0.05},
    "misc/resnet50_v100_2021_schema.json.gz": {"convolution": 0.5, "normalization": 0.1, "elementwise": 0.05},
    "hta/dlrm128_sampled_rank0.json.gz": {"collective": 0.2, "embedding": 0.15},
}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", sorted(SHARES))
def test_real_files_spend_their_time_where_their_model_says(name: str) -> None:
    kernels = collect([DATA / name]).kernels
    time: Counter[str] = Counter()
    names = strings(kernels, "name")
    labels = [classify(name) for name in names]
    for label, duration in zip(labels, integers(kernels, "dur_ns"), strict=True):
        time[label] += int(duration)
    shares = {label: duration / time.total() for label, duration in time.items()}
    assert {label: shares.get(label, 0) > least for label, least in SHARES[name].items()} == dict.fromkeys(
        SHARES[name], True
    ), shares
    assert shares.get("other", 0) < 0.02, sorted(
        {name for name, label in zip(names, labels, strict=True) if label == "other"}
    )
    assert np.isclose(sum(shares.values()), 1)
