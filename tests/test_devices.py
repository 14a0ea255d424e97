"""The device catalogue: figures are sourced, names resolve, a bad file is refused with its place."""

import copy
import os
import pickle
import re
from pathlib import Path

import pytest

from profilers.devices.catalogue import (
    CERTAINTIES,
    DTYPES,
    FIGURE_RANGES,
    FIGURE_UNITS,
    USER_DEVICES,
    Device,
    RatedFigure,
    find_device,
    load_devices,
)
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.costs.architectures import architecture_notes
from seqpoint.cli import main

SHIPPED = load_devices()

ALIASES = {
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB": "V100-SXM2-32GB",
    "Tesla V100-DGXS-32GB": "V100-SXM2-32GB",
    "Tesla_V100-PCIE-32GB": "V100-PCIE-32GB",
    "NVIDIA A100-PG509-200": "A100-SXM4-40GB",
    "NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA_A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA H100 80GB HBM3": "H100-SXM5-80GB",
    "NVIDIA H100 PCIe": "H100-PCIE-80GB",
    "NVIDIA H200": "H200-SXM-141GB",
    "NVIDIA B200": "B200-SXM-192GB",
    "NVIDIA GB200": "GB200-192GB",
    "Tesla T4": "T4",
    "Tesla P4": "P4",
    "Tesla P100-PCIE-16GB": "P100-PCIE-16GB",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 2080 Ti": "RTX 2080 Ti",
    "NVIDIA GeForce GTX 1080 Ti": "GTX 1080 Ti",
    "NVIDIA GeForce GTX 1050": "GTX 1050",
    "AMD_Instinct_MI100": "MI100",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI250": "MI250-GCD",
    "AMD Instinct MI250X": "MI250X-GCD",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI350X": "MI350X",
    "AMD Instinct MI355X": "MI355X",
    "Radeon Vega Frontier Edition": "Radeon Vega Frontier Edition",
}

GOOD = """
[devices."Mine"]
vendor = "AMD"
architecture = "CDNA 9"
aliases = ["AMD Instinct Mine"]

[devices."Mine".figures]
compute_units = { value = 10, unit = "1", source = "a test", certainty = "published" }
memory_gbps = { value = 2.5, unit = "GB/s", source = "a test", certainty = "recollection" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "devices.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("device", SHIPPED.values(), ids=lambda device: device.name)
def test_every_shipped_figure_is_sourced_and_in_its_unit(device: Device) -> None:
    assert device.figures
    for name, figure in device.figures.items():
        assert figure.source.strip()
        assert figure.certainty in CERTAINTIES
        assert figure.unit == FIGURE_UNITS[name]
        assert figure.value > 0


@pytest.mark.parametrize("device", SHIPPED.values(), ids=lambda device: device.name)
def test_a_recollection_says_so_and_nothing_else_does(device: Device) -> None:
    said = {name: "recollection" in figure.source for name, figure in device.figures.items()}
    assert said == {name: figure.certainty == "recollection" for name, figure in device.figures.items()}


@pytest.mark.parametrize("device", SHIPPED.values(), ids=lambda device: device.name)
def test_every_device_has_what_a_roofline_needs(device: Device) -> None:
    assert device.compute_units > 0
    assert device.memory_bytes_per_s > 1e11
    assert device.flops_per_s("fp32") > 1e12
    assert device.flops_per_s("fp8") >= device.flops_per_s("fp32")


@pytest.mark.parametrize("device", SHIPPED.values(), ids=lambda device: device.name)
def test_the_fp32_peak_is_what_units_and_clock_allow(device: Device) -> None:
    """A lane does 2 FLOP a cycle; an SM or CU has 64 or 128 FP32 lanes, an MI300 CU issues two (256 FLOP)."""
    if "clock_mhz" not in device.figures:
        pytest.skip(f"{device.name}: the clock is unknown")
    per_cycle = device.flops_per_s("fp32") / (device.compute_units * device.value("clock_mhz") * 1e6)
    assert min(abs(per_cycle / expected - 1) for expected in (128, 256)) < 0.1


@pytest.mark.parametrize(("written", "name"), ALIASES.items())
def test_names_that_profilers_write_resolve(written: str, name: str) -> None:
    assert find_device(written).name == name


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "nvidia A100-SXM4-80GB", " NVIDIA  A100-SXM4-80GB ", "A100"])
def test_spelling_does_not_matter(name: str) -> None:
    assert find_device(name) is SHIPPED["A100-SXM4-80GB"]


@pytest.mark.parametrize(
    ("device", "spellings", "others"),
    [
        ("H100-SXM5-80GB", ["NVIDIA H100 80GB HBM3", "h100_sxm", "H100 SXM 80 GB"], ["H100 94GB", "H100 MIG 1g.10gb"]),
        ("H200-SXM-141GB", ["NVIDIA H200", "NVIDIA H200-SXM5-141GB", "h200_sxm"], ["H200 96GB"]),
        ("B200-SXM-192GB", ["NVIDIA B200", "NVIDIA Blackwell GPU (B200-SXM-180GB)", "b200_sxm"], ["B100", "B200 96GB"]),
        ("A100-PCIE-80GB", ["NVIDIA A100 80GB PCIe", "NVIDIA A100 - PCIe - 80 GB", "A100 PCIe 80GB HBM3"],
         ["A100 PCIe", "A100 PCIe 24GB"]),
        ("A100-SXM4-80GB", ["a100_sxm", "A100 SXM 80GB", "A100-80GB"], ["A100X"]),
        ("MI325X", ["AMD Instinct MI325X 256GB HBM3E DLC", "MI325X", "amd_mi325x"], ["MI325", "MI325X 128GB"]),
        ("RTX 2080 Ti", ["NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti", "rtx_2080_ti"], ["RTX 2080", "2080 Ti"]),
    ],
)  # fmt: skip
def test_a_device_has_many_spellings_and_another_product_is_none(
    device: str, spellings: list[str], others: list[str]
) -> None:
    assert {find_device(name).name for name in spellings} == {device}
    for name in others:
        with pytest.raises(NotFoundError, match="no device is called"):
            find_device(name)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"'MI300Z'; nearest: .*MI300X.*TOML"):
        find_device("MI300Z")


def test_a_name_unlike_any_gives_the_command_that_lists_all() -> None:
    with pytest.raises(NotFoundError, match=r"`seqpoint devices` lists all"):
        find_device("@")


def test_published_peaks_in_si_units() -> None:
    # AMD ROCm documentation, MI300 series microarchitecture: 1307.4 TFLOPS matrix FP16, 5.3 TB/s, 304 CUs.
    device = find_device("MI300X")
    assert device.flops_per_s("fp16") == pytest.approx(1307.4e12)
    assert device.memory_bytes_per_s == pytest.approx(5.3e12)
    assert device.compute_units == 304
    # NVIDIA A100 data sheet (2020): NVLink 600 GB/s both ways.
    assert find_device("A100").link_bytes_per_s == pytest.approx(300e9)


@pytest.mark.parametrize(
    ("name", "dtype", "figure"),
    [
        ("MI300X", "tf32", "tf32_tflops"),
        ("MI210", "tf32", "fp32_tflops"),
        ("V100", "bf16", "fp32_tflops"),
        ("P4", "fp16", "fp32_tflops"),
        ("A100", "fp8", "fp16_tflops"),
        ("GTX 1050", "fp8", "fp32_tflops"),
    ],
)
def test_a_type_without_units_falls_back(name: str, dtype: str, figure: str) -> None:
    assert find_device(name).flops_per_s(dtype) == find_device(name).value(figure) * 1e12


def test_fp64_has_no_stand_in() -> None:
    with pytest.raises(InvalidInputError, match="'P4': fp64_tflops is unknown"):
        find_device("P4").flops_per_s("fp64")


def test_no_peak_at_all_names_what_was_looked_for() -> None:
    bare = Device("Bare", "AMD", "none", (), {})
    with pytest.raises(InvalidInputError, match="'Bare': fp8_tflops or fp16_tflops or fp32_tflops is unknown"):
        bare.flops_per_s("fp8")


def test_unknown_type_and_unknown_figure_list_what_there_is() -> None:
    with pytest.raises(InvalidInputError, match=", ".join(DTYPES)):
        find_device("P4").flops_per_s("int3")
    with pytest.raises(InvalidInputError, match="'P4': nvfp4_tflops is unknown"):
        find_device("P4").flops_per_s("nvfp4")
    with pytest.raises(InvalidInputError, match=r"'speed'; the figures are compute_units"):
        find_device("P4").value("speed")


def test_missing_figure_names_device_and_figure() -> None:
    with pytest.raises(InvalidInputError, match="'T4': link_gbps is unknown"):
        _ = find_device("T4").link_bytes_per_s


def test_a_device_is_immutable_hashable_and_travels() -> None:
    figures = {"links": RatedFigure(2.0, "1", "a test", "published")}
    device = Device("Mine", "AMD", "none", (), figures)
    figures.clear()
    assert device.value("links") == 2
    assert len({device, pickle.loads(pickle.dumps(device)), copy.deepcopy(device)}) == 1
    with pytest.raises(TypeError):
        device.figures["links"] = RatedFigure(3.0, "1", "a test", "published")  # type: ignore[index]


def test_a_file_adds_a_device(tmp_path: Path) -> None:
    devices = load_devices(write(tmp_path, GOOD))
    assert len(devices) == len(SHIPPED) + 1
    assert find_device("instinct mine", devices).memory_bytes_per_s == 2.5e9
    with pytest.raises(NotFoundError):
        find_device("Mine")


def test_a_file_replaces_a_device_as_a_whole(tmp_path: Path) -> None:
    devices = load_devices(write(tmp_path, GOOD.replace('"Mine"', '"mi300x"')))
    assert len(devices) == len(SHIPPED)
    assert set(find_device("AMD MI300X", devices).figures) == {"compute_units", "memory_gbps"}
    assert len(SHIPPED["MI300X"].figures) > 10


def test_of_two_owners_of_an_alias_the_later_file_wins_and_names_go_first(tmp_path: Path) -> None:
    text = GOOD.replace('"AMD Instinct Mine"', '"NVIDIA H100 80GB HBM3", "MI300X"')
    devices = load_devices(write(tmp_path, text))
    assert find_device("NVIDIA H100 80GB HBM3", devices).name == "Mine"
    assert find_device("MI300X", devices).name == "MI300X"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"absent\.toml: no such file of devices"):
        load_devices(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[devices", "no TOML"),
        ("a = " + "[" * 5000, "no TOML"),
        ("value = " + "9" * 5000, "no TOML"),
        (".".join(["a"] * 20_000) + " = 1", "no TOML .a key has more than 64 dots"),
    ],
)
def test_a_file_that_is_no_toml(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"devices\.toml: {message}"):
        load_devices(write(tmp_path, text))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInputError, match="no TOML"):
        load_devices(path)


def test_a_huge_file_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="larger than 1 MiB"):
        load_devices(write(tmp_path, "#" * (2**20 + 1)))


BAD = {
    "no devices": ("", r"devices\.toml: lacks the key 'devices'"),
    "other key": (GOOD + "\n[other]\n", r"devices\.toml: unknown key 'other'"),
    "devices no table": ("devices = 3", "devices: Expected `table`, got `int`"),
    "device no table": ("[devices]\nMine = 3", "device 'Mine': Expected `table`, got `int`"),
    "key missing": (GOOD.replace('vendor = "AMD"', ""), r"device 'Mine': lacks the key 'vendor'"),
    "key unknown": (GOOD.replace("vendor =", "maker ="), r"device 'Mine': unknown key 'maker'"),
    "empty text": (
        GOOD.replace('"CDNA 9"', '" "'),
        r"device 'Mine': 'architecture' is a line of printable text",
    ),
    "control text": (GOOD.replace('"CDNA 9"', r'"\u001b[2J"'), r"'architecture' is a line of printable text"),
    "aliases no list": (
        GOOD.replace('["AMD Instinct Mine"]', '"Mine"'),
        "device 'Mine': aliases: Expected `list`, got `str`",
    ),
    "alias no text": (GOOD.replace('["AMD Instinct Mine"]', "[3]"), r"aliases\[0\]: Expected `str`, got `int`"),
    "figure unknown": (
        GOOD.replace("memory_gbps", "bandwidth"),
        r"figure 'bandwidth': unknown; the figures are",
    ),
    "figure no table": (
        re.sub(r"memory_gbps = .*", "memory_gbps = 3", GOOD),
        r"figure 'memory_gbps': Expected `table`, got `int`",
    ),
    "figure key missing": (
        GOOD.replace('source = "a test", ', ""),
        r"figure 'compute_units': lacks the key 'source'",
    ),
    "unit": (GOOD.replace("GB/s", "TB/s"), r"figure 'memory_gbps': the unit is 'GB/s', not 'TB/s'; convert"),
    "certainty": (
        GOOD.replace("recollection", "sure"),
        r"figure 'memory_gbps': certainty 'sure' is none of data-sheet",
    ),
    "source empty": (
        GOOD.replace('source = "a test"', 'source = ""'),
        r"figure 'compute_units': 'source' is a line",
    ),
    "text value": (GOOD.replace("2.5", '"2.5"'), "figure 'memory_gbps': value: Expected `float`, got `str`"),
    "bool value": (GOOD.replace("2.5", "true"), "figure 'memory_gbps': value: Expected `float`, got `bool`"),
    "zero": (GOOD.replace("2.5", "0"), r"figure 'memory_gbps': 'value' is finite and above zero"),
    "negative": (GOOD.replace("2.5", "-1"), r"'value' is finite and above zero; leave the figure out"),
    "nan": (GOOD.replace("2.5", "nan"), r"'value' is finite and above zero"),
    "infinite": (GOOD.replace("2.5", "inf"), r"'value' is finite and above zero"),
    "huge": (GOOD.replace("2.5", "9" * 400), "figure 'memory_gbps': value: Number out of range"),
    "too many units": (
        GOOD.replace("value = 10,", "value = 1e300,"),
        r"device 'Mine': figure 'compute_units': 1e.300 1 is not within 1 to 100000",
    ),
    "too slow": (GOOD.replace("2.5", "1e-3"), r"figure 'memory_gbps': 0.001 GB/s is not within 0.01 to 1e.06"),
    "above its peak": (
        GOOD.replace('"GB/s"', '"TFLOPS"').replace("memory_gbps", "bf16_tflops")
        + 'bf16_sustained_tflops = { value = 3, unit = "TFLOPS", source = "a test", certainty = "published" }',
        r"device 'Mine': figure 'bf16_sustained_tflops': 3 is above bf16_tflops of 2.5",
    ),
    "count": (GOOD.replace("value = 10", "value = 10.5"), r"figure 'compute_units': the value is a count"),
    "shared name": (
        GOOD + GOOD.replace("Mine", "Other").replace("Instinct Other", "MINE"),
        r"device 'Other': the name",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_devices(path)
    assert str(caught.value).startswith(str(path))


OWN = """
[devices."My GPU"]
vendor = "NVIDIA"
architecture = "Ampere"
aliases = ["NVIDIA My GPU 24GB"]

[devices."My GPU".figures]
compute_units = { value = 72, unit = "1", source = "data sheet", certainty = "data-sheet" }
fp32_tflops = { value = 31.2, unit = "TFLOPS", source = "data sheet", certainty = "data-sheet" }
memory_gbps = { value = 600, unit = "GB/s", source = "data sheet", certainty = "data-sheet" }
"""


def test_a_device_of_ones_own_is_found_wherever_devices_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "other.toml").write_text(OWN.replace("My GPU", "Other GPU").replace("600", "700"))
    monkeypatch.setenv(USER_DEVICES, os.pathsep.join(str(tmp_path / name) for name in ("own.toml", "other.toml")))
    assert find_device("nvidia my gpu 24gb").memory_bytes_per_s == 600e9
    assert find_device("Other GPU").memory_bytes_per_s == 700e9
    for arguments, seen in ((["devices", "My GPU"], "data sheet"), (["devices"], "Other GPU")):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code and seen in capsys.readouterr().out
    monkeypatch.delenv(USER_DEVICES)
    with pytest.raises(NotFoundError, match="SEQPOINT_DEVICES"):
        find_device("My GPU")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "compute_units = { value = 72",
            "compute_units = { value = 7.5",
            "own.toml: device 'My GPU': figure 'compute",
        ),
        ('unit = "GB/s"', 'unit = "TB/s"', r"figure 'memory_gbps': the unit is 'GB/s', not 'TB/s'"),
        ('vendor = "NVIDIA"', "", "lacks the key 'vendor'"),
        ("[devices", "[device s", "own.toml: no TOML"),
    ],
)
def test_a_file_of_ones_own_that_is_wrong_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    (tmp_path / "own.toml").write_text(OWN.replace(old, new, 1))
    monkeypatch.setenv(USER_DEVICES, str(tmp_path / "own.toml"))
    with pytest.raises(SeqPointError, match=message):
        load_devices()
    with pytest.raises(SystemExit) as stop:
        main(["devices"])
    assert stop.value.code == 1


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USER_DEVICES, "absent.toml")
    with pytest.raises(NotFoundError, match=r"absent\.toml: no such file of devices"):
        find_device("A100")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Tesla_V100-PCIE-32GB", "V100-PCIE-32GB"),
        ("NVIDIA_A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("NVIDIA_H100_80GB_HBM3", "H100-SXM5-80GB"),
        ("NVIDIA_L4", "L4"),
        ("Tesla_P4", "P4"),
        ("AMD_Instinct_MI100", "MI100"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("AMD Instinct MI300X VF", "MI300X"),
    ],
)
def test_names_as_data_spell_them_are_found(written: str, name: str) -> None:
    assert find_device(written).name == name


def test_every_figure_has_a_range_that_holds_every_device_of_the_catalogue() -> None:
    assert set(FIGURE_RANGES) == set(FIGURE_UNITS)
    for device in load_devices().values():
        for name, figure in device.figures.items():
            low, high = FIGURE_RANGES[name]
            assert 2 * low <= figure.value <= high / 2 or figure.unit == "1", (device.name, name)


def test_an_architecture_without_traits_is_told() -> None:
    (note,) = architecture_notes(find_device("Arc Pro B60"))
    assert note.startswith("Arc Pro B60: nothing is known of the architecture Xe2; links, matrix units and power")
    assert not architecture_notes(find_device("MI300X"))
