"""Devices that names of files say: the same for kernels, collectives and traces."""

from pathlib import Path

import pytest

from profilers.devices.catalogue import device_of_file, devices_in_name, load_devices
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.collectives import read_collectives
from replay.costs.kernels import read_measurements


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("rtx_2080_ti_all_reduce", ["RTX 2080 Ti"]),  # its first word alone is none
        ("v100_pcie", ["V100-PCIE-32GB"]),
        ("v100", ["V100-SXM2-16GB"]),
        ("a100_dgx_all_reduce", ["A100-SXM4-80GB"]),  # the catalogue's alias
        ("a100-40gb.linear", ["A100-SXM4-40GB"]),
        ("nvidia_a100_sxm4_80gb", ["A100-SXM4-80GB"]),
        ("Tesla V100-DGXS-32GB", ["V100-SXM2-32GB"]),
        ("mi300_rank0.json", ["MI300X"]),
        ("mi300a", ["MI300A"]),
        ("h100_80gb", ["H100-SXM5-80GB"]),  # what follows agrees
        ("gh200", ["GH200-96GB"]),
        ("v100_32gb", ["V100-SXM2-32GB", "V100-PCIE-32GB"]),  # what follows makes it another, and two have it
        ("a100_pcie", ["A100-PCIE-40GB", "A100-PCIE-80GB"]),
        ("a100_against_h100", ["A100-SXM4-80GB", "H100-SXM5-80GB"]),
        ("a100_a100", ["A100-SXM4-80GB"]),
        ("rtx", []),
        ("all_reduce_2080", []),
        ("h200_nvl_linear", ["H200-NVL-141GB"]),
        ("h200_pcie_linear", []),  # the catalogue's H200 have other links and power
        ("h100_nvl_linear", ["H100-NVL-94GB"]),
        ("xa100", []),
        ("", []),
    ],
)
def test_devices_of_names(name: str, devices: list[str]) -> None:
    assert [one.name for one in devices_in_name(name)] == devices


def test_every_name_of_the_catalogue_says_its_device() -> None:
    for device in load_devices().values():
        for name in (device.name, *device.aliases):
            assert [one.name for one in devices_in_name(f"run_{name}_x")] == [device.name]


def test_a_given_device_is_for_names_that_say_none() -> None:
    assert device_of_file(Path("a100.csv"), "H200").name == "A100-SXM4-80GB"
    assert device_of_file(Path("mine.csv"), "H200").name == "H200-SXM-141GB"
    assert device_of_file(Path("a100_h100.csv"), "H200").name == "H200-SXM-141GB"
    with pytest.raises(InvalidInputError, match=r"more than one device \(A100-SXM4-80GB, H100-SXM5-80GB\)"):
        device_of_file(Path("a100_h100.csv"), None)
    with pytest.raises(NotFoundError, match="no device is called 'Voodoo 2'"):
        device_of_file(Path("a100.csv"), "Voodoo 2")


def test_an_unknown_device_is_an_error_even_where_a_column_says_it(tmp_path: Path) -> None:
    kernels, collectives = tmp_path / "k.csv", tmp_path / "c.csv"
    kernels.write_text("op,device,latency_ms,B,M,N,K\nlinear,V100,1.0,1,512,512,512\n")
    collectives.write_text(
        "device,size,num_workers,devices_per_node,collective,time_stats.all_reduce.median\nV100,1024,2,2,all_reduce,1\n"
    )
    assert read_measurements(kernels, "H200")[0].device.name == "V100-SXM2-16GB"
    assert read_collectives(collectives, "H200")[0].device.name == "V100-SXM2-16GB"
    for read, file in ((read_measurements, kernels), (read_collectives, collectives)):
        with pytest.raises(NotFoundError, match="no device is called 'Voodoo 2'"):
            read(file, "Voodoo 2")
