"""Data formats: bits, codes equal to a scalar reference and to ml_dtypes, special values, packing, errors, command."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from commands import Run
from reference_formats import MAGNITUDES, OCP, block_of, fp8, nvfp4, values_of

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from replay.formats import FORMATS, directional_copies, error_statistics, find_format, quantize, unpack

POWERS_OF_TWO = [*MAGNITUDES, *OCP, "mxint8"]
TYPES = [np.float16, np.float32, np.float64]
#: Element types of ml_dtypes.
PEERS = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
}
#: File of an array with more bytes than an integer of 64 bits can count.
_HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8)}\n"
OVERFLOW = b"\x93NUMPY\x01\x00" + len(_HEAD).to_bytes(2, "little") + _HEAD


def blocks(kind: type[np.floating]) -> np.ndarray:
    """Return blocks of 32: random at many scales, ties, zeros, subnormals, the largest, infinities and NaN."""
    rng, limits = np.random.default_rng(0), np.finfo(kind)
    scale = np.exp2(rng.uniform(limits.minexp - limits.nmant, limits.maxexp - 3, (40, 1)))
    random = rng.standard_normal((40, 32)) * scale
    ties = rng.integers(-515, 516, (12, 32)) / 256 * np.exp2(rng.integers(-6, 6, (12, 1)))
    spread = rng.standard_normal((12, 32)) * np.exp2(rng.integers(-12, 3, (12, 32)))
    with np.errstate(over="ignore"):
        array = np.concatenate([random, ties, spread, np.zeros((8, 32))]).astype(kind)
    tiny = limits.smallest_subnormal
    array[-8, ::3] = -0.0
    array[-7, :] = tiny * rng.integers(-9, 10, 32)
    array[-6, :] = limits.tiny * rng.uniform(-2, 2, 32)
    array[-5, :] = limits.max * rng.uniform(-1, 1, 32)
    array[-4, 3:5] = limits.max, -limits.max
    array[-3, 5], array[-2, 20] = np.inf, -np.inf
    array[-1, 7], array[-1, 9] = np.nan, 1.0
    return array


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", POWERS_OF_TWO)
def test_a_copy_equals_the_reference_bit_for_bit(name: str, kind: type[np.floating]) -> None:
    size = find_format(name).block
    rows = blocks(kind).reshape(-1, size)
    copy = quantize(rows, name)
    expected = [block_of(name, row.tolist()) for row in rows]
    assert copy.codes.tolist() == [codes for codes, _, _ in expected]
    assert copy.scales.reshape(-1).tolist() == [scale for _, scale, _ in expected]
    if copy.microexponents.size:
        assert copy.microexponents.reshape(-1).tolist() == [shifts for _, _, shifts in expected]
    values = np.array([values_of(name, block) for block in expected])
    largest = np.finfo(np.float32).max  # values above it saturate there
    values = np.clip(values, -largest, largest).astype(np.float32)
    np.testing.assert_array_equal(copy.dequantize(), values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(copy.dequantize())[numbers], np.signbit(values)[numbers])


@pytest.mark.parametrize("kind", TYPES)
def test_nvfp4_equals_the_reference_bit_for_bit(kind: type[np.floating]) -> None:
    everything = blocks(kind).reshape(-1, 16)
    ordinary = np.random.default_rng(1).standard_normal((40, 16)).astype(kind)
    for rows in (everything, ordinary, np.zeros((2, 16), kind), np.full((1, 16), np.finfo(kind).smallest_subnormal)):
        copy = quantize(rows, "nvfp4")
        tensor, expected = nvfp4(rows.tolist())
        assert copy.tensor_scale == tensor
        assert copy.scales.reshape(-1).tolist() == [scale for _, scale, _ in expected]
        assert copy.codes.tolist() == [codes for codes, _, _ in expected]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("name", "peer"), [("fp8_e4m3", ml_dtypes.float8_e4m3fn), ("fp8_e5m2", ml_dtypes.float8_e5m2)])
def test_fp8_equals_the_reference_and_ml_dtypes(name: str, peer: type, kind: type[np.floating]) -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate([blocks(kind).reshape(-1), rng.standard_normal(999) * 2.0 ** rng.integers(-18, 9, 999)])
    values = values.astype(kind)
    copy = quantize(values, name)
    assert copy.codes.tolist() == [fp8(name.removeprefix("fp8_"), value) for value in values.tolist()]
    # ml_dtypes does not saturate.
    inside = np.abs(values) <= float(find_format(name).largest)
    np.testing.assert_array_equal(copy.codes[inside], values[inside].astype(peer).view(np.uint8))


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2"])
def test_each_code_of_fp8_has_the_value_of_ml_dtypes(name: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    values = unpack(codes.tobytes(), name, (256,)).dequantize()
    peer = PEERS[f"mx{name}"]
    np.testing.assert_array_equal(values, codes.view(peer).astype(np.float32))
    numbers = np.isfinite(values)
    assert (quantize(values[numbers], name).codes == codes[numbers]).all()


@pytest.mark.parametrize("name", list(PEERS))
def test_ocp_elements_and_scales_equal_ml_dtypes(name: str) -> None:
    values = np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)
    copy = quantize(values, name)
    scales = copy.scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    limit = float(find_format(name).largest)
    elements = (values / scales).clip(-limit, limit).astype(PEERS[name])
    np.testing.assert_array_equal(copy.codes, elements.view(np.uint8))
    np.testing.assert_array_equal(copy.dequantize(), elements.astype(np.float32) * scales)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("name", "peer"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16), ("fp32", np.float32)])
def test_wide_floats_equal_those_of_numpy(name: str, peer: type, kind: type[np.floating]) -> None:
    with np.errstate(over="ignore"):
        values = np.concatenate([blocks(kind).reshape(-1), np.array([65519.0, 65520.0]).astype(kind)])
        copy = quantize(values, name)
        if name == "bf16":  # ml_dtypes rounds float64 twice, and so not always to the nearest
            values = np.float32(values)
            copy = quantize(values, name)
        expected = values.astype(peer)
    bits, numbers = expected.view(copy.codes.dtype), ~np.isnan(values)
    np.testing.assert_array_equal(copy.codes[numbers], bits[numbers])
    np.testing.assert_array_equal(copy.dequantize(), expected.astype(np.float32))


def test_bits_per_value_are_those_of_the_specifications() -> None:
    bits = {name: each.bits_per_value for name, each in FORMATS.items()}
    assert bits == {
        "mx9": 9,
        "mx6": 6,
        "mx4": 4,
        "mxfp8_e4m3": Fraction(33, 4),
        "mxfp8_e5m2": Fraction(33, 4),
        "mxfp6_e3m2": Fraction(25, 4),
        "mxfp6_e2m3": Fraction(25, 4),
        "mxfp4": Fraction(17, 4),
        "mxint8": Fraction(33, 4),
        "nvfp4": Fraction(9, 2),
        "fp8_e4m3": 8,
        "fp8_e5m2": 8,
        "fp16": 16,
        "bf16": 16,
        "fp32": 32,
    }


def test_the_largest_numbers_are_those_of_the_specifications() -> None:
    largest = {name: float(each.largest) for name, each in FORMATS.items() if each.kind != "float"}
    ocp = {"mxfp8_e4m3": 448, "mxfp8_e5m2": 57344, "mxfp6_e3m2": 28, "mxfp6_e2m3": 7.5, "mxfp4": 6, "mxint8": 127 / 64}
    assert largest == {"mx9": 127 / 64, "mx6": 15 / 8, "mx4": 3 / 2, "nvfp4": 6, **ocp}


@pytest.mark.parametrize("name", list(FORMATS))
def test_packed_bytes_have_no_bit_unused_and_hold_the_array(name: str) -> None:
    values = np.random.default_rng(4).standard_normal((3, 64, 5))
    copy = quantize(values, name, axis=1)
    data = copy.pack()
    assert len(data) == copy.nbytes
    assert len(data) * 8 - FORMATS[name].tensor_bits == values.size * FORMATS[name].bits_per_value
    again = unpack(data, name, values.shape, axis=-2)
    np.testing.assert_array_equal(again.dequantize(), copy.dequantize())
    assert again.pack() == data
    empty = quantize(np.zeros((0, 64)), name).pack()
    assert unpack(empty, name, (0, 64)).dequantize().shape == (0, 64)


def test_packed_bits_stand_in_the_documented_order() -> None:
    values = np.zeros(16)
    values[:4] = 1.5, -0.75, 0.5, 0.25  # in halves 3 and -1.5, rounded to -2; in quarters 2 and 1
    copy = quantize(values, "mx4")
    assert copy.codes[:4].tolist() == [3, 4 | 2, 2, 1]
    word = int.from_bytes(copy.pack(), "little")
    assert word & 0xFF == 127 and word >> 8 & 0xFF == 0b11111110
    assert [word >> 16 + 3 * i & 7 for i in range(4)] == [3, 6, 2, 1]


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.is_directional])
def test_the_copy_of_the_transpose_is_not_the_transpose_of_the_copy(name: str) -> None:
    rng = np.random.default_rng(5)
    weights = rng.standard_normal((64, 96)) * np.exp2(rng.integers(-4, 5, (64, 96)))
    rows, columns = directional_copies(weights, name)
    assert (rows.dequantize() != columns.dequantize()).any()
    np.testing.assert_array_equal(columns.dequantize(), quantize(weights.T, name).dequantize().T)
    assert rows.nbytes == columns.nbytes


def test_errors_are_counted_by_kind() -> None:
    values = np.zeros((3, 16))
    values[0, :3] = 1.99, 0.25, 1e-9  # 1.5, 0.25 and 0 in MX4: 0.25 is a half of a pair with a larger one
    values[1, 0] = np.nan
    values[2, :] = 1.0
    copy = quantize(values, "mx4")
    found = error_statistics(values, copy)
    error = np.abs(values - copy.dequantize())[[0, 2]]
    assert found.maximum == error.max() and found.mean_absolute == pytest.approx(error.mean())
    assert (found.saturated, found.flushed, found.lost) == (1 / 47, 2 / 47, 15 / 47)
    exact = error_statistics(np.ones(16), quantize(np.ones(16), "mx9"))
    assert exact.sqnr_db == np.inf and exact.maximum == 0


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.overflow == "largest"])
def test_values_beyond_float32_saturate(name: str) -> None:
    values = np.full((1, 32), 1e300) * [[1.0], [-1.0]]
    copy = quantize(values, name)
    each = find_format(name)
    largest = float(each.largest) * (2.0**127 if each.is_directional else 1.0)
    copied = copy.dequantize()
    assert copied.tolist() == (np.sign(values) * min(largest, float(np.finfo(np.float32).max))).tolist()
    found = error_statistics(values, copy)
    assert (found.sqnr_db, found.mean_absolute, found.saturated, found.lost) == (0, 1e300, 1, 0)


def test_infinities_that_are_read_stay_infinite() -> None:
    packed = bytes([127] + 32 * [0x7C])  # the scale 1, and the code of infinity in E5M2
    assert (unpack(packed, "mxfp8_e5m2", (32,)).dequantize() == np.inf).all()


def test_errors_of_tiny_and_of_huge_values_are_those_of_ordinary_ones() -> None:
    values = np.random.default_rng(7).standard_normal(64)
    found = [error_statistics(values * 2.0**power, quantize(values * 2.0**power, "mx4")) for power in (-100, 0, 120)]
    assert len({(each.sqnr_db, each.saturated, each.flushed) for each in found}) == 1
    assert error_statistics(1e-300 * values, quantize(1e-300 * values, "mx4")).sqnr_db == 0


def test_an_array_without_finite_values_has_no_errors() -> None:
    for values in (np.full(32, np.nan), np.full(32, -np.inf)):
        found = error_statistics(values, quantize(values, "mx9"))
        assert found.not_finite == 1
        assert np.isnan([found.mean_absolute, found.maximum, found.sqnr_db, found.saturated, found.lost]).all()


def test_a_number_keeps_its_shape() -> None:
    for name in ("fp8_e4m3", "bf16", "fp32"):
        assert quantize(np.float32(3.0), name).dequantize() == np.array(3.0) and not quantize(3.0, name).shape
        assert quantize(3.0, name).dequantize().shape == ()


class Tensor:
    """A tensor of a library that makes no array of it."""

    def __array__(self, *_: object) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_sqnr_of_normal_values_rises_by_six_decibels_a_bit() -> None:
    values = np.random.default_rng(6).standard_normal(1 << 14).astype(np.float32)
    sqnr = [error_statistics(values, quantize(values, name)).sqnr_db for name in ("mx4", "mx6", "mx9")]
    assert np.diff(sqnr) == pytest.approx([2 * 6.02, 3 * 6.02], abs=1)


@pytest.mark.parametrize(
    ("array", "name", "axis", "problem"),
    [
        (np.ones((4, 17)), "mx9", -1, "blocks of 16, and axis -1 has length 17"),
        (np.ones((17, 32)), "mxfp4", 0, "blocks of 32, and axis 0 has length 17"),
        (np.ones(16, np.int32), "mx9", -1, "float16, float32 or float64, and these are int32"),
        (np.ones(16, complex), "fp16", -1, "these are complex128"),
        (np.ones((2, 16)), "mx9", 2, "no axis 2: axes are -2 to 1"),
        (np.float64(1.0), "mx9", -1, "the array has no axis"),
        (np.ones(32), None, -1, "a data format is given by its name, not by None; formats: mx9"),
        (np.ones(32), 9, -1, "not by 9"),
        *((np.ones((32, 32)), "mx9", axis, "an axis is a whole number") for axis in (1.0, "x", None, True)),
        (np.ma.masked_array(np.ones(32), np.ones(32)), "mx9", -1, r"masked array .*array.filled\(0\)"),
        ([[1.0, 2.0], [3.0]], "mx9", -1, "the values make no array"),
        (Tensor(), "mx9", -1, r"BFloat16\); of a torch tensor, give tensor.detach\(\)"),
    ],
)
def test_bad_arrays_are_named(array: Any, name: Any, axis: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as refusal:
        sp.quantize(array, name, axis)
    assert "\n" not in str(refusal.value)


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"'mxfp9'; nearest: mxfp4, .*; formats: mx9, "):
        sp.quantize(np.ones(32), "mxfp9")


def test_bytes_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"mx9 of shape \(2, 16\) has 36 bytes, and there are 35"):
        unpack(bytes(35), "mx9", (2, 16))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return the file of docs/formats.md."""
    np.save(tmp_path / "weights.npy", 0.02 * np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    return tmp_path / "weights.npy"


def test_the_command_lists_the_formats_with_their_sources(run: Run) -> None:
    rows = json.loads(run("formats", "--json").out)
    assert [row["name"] for row in rows] == list(FORMATS)
    assert [row["bits_per_value"] for row in rows[:3]] == [9.0, 6.0, 4.0]
    assert all(row["source"] for row in rows)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tables the width that the page shows, whatever the terminal has."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.usefixtures("wide")
def test_the_command_shows_errors_of_an_array(run: Run, weights: Path) -> None:
    rows = json.loads(run("formats", weights, "--format", "mx9,nvfp4", "--axis", 0, "--json").out)
    array = np.load(weights)
    assert [row["bytes"] for row in rows] == [4608, 2308]
    assert [row["share_of_array"] for row in rows] == [4608 / 16384, 2308 / 16384]
    assert rows[0]["sqnr_db"] == error_statistics(array, sp.quantize(array, "mx9", axis=0)).sqnr_db
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
    shown = page.split("$ seqpoint formats weights.npy")[1].split("```")[0].splitlines()[1:]
    printed = " ".join(run("formats", weights).out.split())
    rows = [" ".join(line.split()) for line in shown if line != "..."]
    assert len(rows) == 6 and all(row in printed for row in rows)


def test_formats_whose_blocks_do_not_fit_are_left_out_unless_they_are_named(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "odd.npy", np.ones((3, 16), np.float16))
    result = run("formats", "odd.npy", "--explain")
    assert (result.code, "mx9" in result.out, "mxfp4" in result.out) == (0, True, False)
    assert "no whole number of blocks of mxfp8_e4m3" in result.err
    result = run("formats", "odd.npy", "--format", "mxfp4")
    assert result.code == 1 and "blocks of 32, and axis -1 has length 16" in result.err


@pytest.mark.usefixtures("wide")
def test_the_command_says_how_many_values_are_not_finite(run: Run, tmp_path: Path) -> None:
    values = np.ones((4, 32))
    np.save(tmp_path / "finite.npy", values)
    result = run("formats", "finite.npy")
    assert "not finite" not in result.out + result.err
    values[0, :5] = np.inf
    np.save(tmp_path / "some.npy", values)
    result = run("formats", "some.npy", "--format", "mx9", "--explain")
    assert "note: 5 of 128 values are not finite" in result.err and "3.91" in result.out
    np.save(tmp_path / "none.npy", np.full((32, 32), np.nan))
    result = run("formats", "none.npy", "--format", "mx9", "--json")
    (row,) = json.loads(result.out)
    assert "1,024 of 1,024 values are not finite" in result.err
    assert (row["not_finite"], row["mean_absolute"], row["lost"]) == (1.0, None, None)
    assert " - - - " in " ".join(run("formats", "none.npy", "--format", "mx9").out.split())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (OVERFLOW, "cannot be read as an array"),
        (np.array([{}]), "Python objects"),
        (np.ones(32, np.int64), "these are int64"),
        (b"\x93NUMPY", "EOF"),
        (b"PK\x03\x04", "magic string"),
        (None, "no such file"),
    ],
)
def test_bad_files_are_one_line(run: Run, tmp_path: Path, content: object, problem: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / "bad.npy").write_bytes(content)
    elif content is not None:
        np.save(tmp_path / "bad.npy", content, allow_pickle=True)
    result = run("formats", "bad.npy")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert problem in result.err


def test_an_axis_needs_a_file(run: Run) -> None:
    result = run("formats", "--axis", 0)
    assert result.code == 2 and "--axis: no effect without FILE.npy" in result.err
