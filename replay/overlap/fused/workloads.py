"""Clusters, sweeps and models of `datasets/workloads/fused.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.datasets import dataset_path
from profilers.devices import find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.toml_text import read_toml
from replay.collectives import Topology
from replay.overlap.fused.cluster import Cluster
from replay.overlap.fused.recommendation import Recommendation
from replay.overlap.fused.work import Work, embedding, gemm, gemv

__all__ = ["SWEEPS", "Workloads", "load_workloads"]

_SHOWN, _MOST_CASES = 60, 100_000
#: Keys of the tables, and what each holds.
_CLUSTER: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(("device", "fabric", "source"), str),
        **dict.fromkeys(("nodes", "devices_per_node", "adapters_per_node"), int),
        "adapter_gbps": float,
    }
)
_MODEL: Mapping[str, type] = MappingProxyType(
    {**dict.fromkeys(("batch", "tables", "pooling", "dim"), int), "bottom": list, "top": list, "source": str}
)
#: The sweeps, and the values that each combines.
SWEEPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"embedding": ("batch", "tables", "pooling", "dim"), "gemv": ("batch", "shape"), "gemm": ("tokens", "shape")}
)


@dataclass(frozen=True)
class Workloads:
    """What a file of workloads holds.

    Parameters
    ----------
    clusters : mapping of str to Cluster
    sweeps : mapping of str to tuple of tuple
        By a name of `SWEEPS`: all combinations of its values.
    models : mapping of str to Recommendation
    """

    clusters: Mapping[str, Cluster]
    sweeps: Mapping[str, tuple[tuple[Any, ...], ...]]
    models: Mapping[str, Recommendation]

    def works(self, sweep: str, cluster: str) -> tuple[Work, ...]:
        """Return the work of every case of a sweep on the devices of a cluster.

        Raises
        ------
        NotFoundError
            There is no such sweep or cluster.

        Examples
        --------
        >>> len(load_workloads().works("embedding", "inter_node"))
        54
        """
        for name, among in ((sweep, self.sweeps), (cluster, self.clusters)):
            if name not in among:
                raise NotFoundError(f"no {name!r}; there are {', '.join(sorted(among))}")
        device, cases = self.clusters[cluster].device, self.sweeps[sweep]
        if sweep == "embedding":
            return tuple(embedding(device, batch=b, tables=t, pooling=p, dim=d) for b, t, p, d in cases)
        if sweep == "gemv":
            return tuple(gemv(device, batch=b, n=n, k=k) for b, (n, k) in cases)
        return tuple(gemm(device, m=m, n=n, k=k) for m, (n, k) in cases)


def load_workloads(path: str | Path | None = None) -> Workloads:
    """Read a TOML file in the layout of `datasets/workloads/fused.toml`, by default that one.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; or it is no such file: the table and the key are named.

    Examples
    --------
    >>> load_workloads().clusters["scale_out"].ranks
    128
    """
    return _shipped() if path is None else _read(Path(path))


@cache
def _shipped() -> Workloads:
    return _read(dataset_path("workloads/fused.toml"))


def _read(file: Path) -> Workloads:
    content = read_toml(file, "workloads")
    try:
        return Workloads(
            MappingProxyType({name: _cluster(name, row) for name, row in _tables(content, "clusters")}),
            MappingProxyType({name: _sweep(name, row) for name, row in _tables(content, "sweeps")}),
            MappingProxyType({name: _model(name, row) for name, row in _tables(content, "models")}),
        )
    except SeqPointError as error:
        raise InvalidInputError(f"{file}: {error}") from error


def _tables(content: Mapping[str, Any], kind: str) -> list[tuple[str, Any]]:
    found = content.get(kind, {})
    if not isinstance(found, dict):
        raise InvalidInputError(f"{kind} is no table of tables [{kind}.NAME]")
    return list(found.items())


def _checked(name: str, row: object, known: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InvalidInputError(f"{name} is no table")
    for key, value in row.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number if known.get(key) is float else isinstance(value, known.get(key, ())) and value is not True
        if not fits:
            shown = f"{key} = {value!r}"[:_SHOWN]
            raise InvalidInputError(
                f"{name}: {shown}; keys are {', '.join(f'{k} ({known[k].__name__})' for k in known)}"
            )
    if missing := [key for key in known if key not in row]:
        raise InvalidInputError(f"{name} lacks {', '.join(missing)}")
    return row


def _cluster(name: str, row: object) -> Cluster:
    found = _checked(f"clusters.{name}", row, _CLUSTER)
    each = found["devices_per_node"]
    topology = Topology(found["nodes"] * each, each, fabric=found["fabric"], nics=found["adapters_per_node"])
    return Cluster(find_device(found["device"]), topology, found["adapter_gbps"] * 1e9)


def _sweep(name: str, row: object) -> tuple[tuple[Any, ...], ...]:
    if name not in SWEEPS:
        raise InvalidInputError(f"no sweep {name!r}; there are {', '.join(SWEEPS)}")
    found = _checked(f"sweeps.{name}", row, {**dict.fromkeys(SWEEPS[name], list), "source": str})
    values = [found[key] for key in SWEEPS[name]]
    count = 1
    for key, several in zip(SWEEPS[name], values, strict=True):
        sizes = [size for one in several for size in (one if key == "shape" and isinstance(one, list) else [one])]
        pairs = key != "shape" or all(isinstance(one, list) and len(one) == 2 for one in several)
        if not sizes or not pairs or any(not isinstance(size, int) or isinstance(size, bool) for size in sizes):
            raise InvalidInputError(
                f"sweeps.{name}: {key} = {several!r}"[:200] + "; give whole numbers (pairs of a shape)"
            )
        count *= len(several)
    if count > _MOST_CASES:
        raise InvalidInputError(f"sweeps.{name}: {count} cases; at most {_MOST_CASES:,}")
    return tuple(
        product(*(tuple(map(tuple, v)) if k == "shape" else v for k, v in zip(SWEEPS[name], values, strict=True)))
    )


def _model(name: str, row: object) -> Recommendation:
    found = _checked(f"models.{name}", row, _MODEL)
    return Recommendation(name, **{**found, "bottom": tuple(found["bottom"]), "top": tuple(found["top"])})
