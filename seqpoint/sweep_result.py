"""The result of a sweep: which plans are best, how sure that is, what they cost, and what does not fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import inf, isfinite, nan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.devices.catalogue import find_device
from profilers.trace.arrays import Bools, Floats
from replay.projection.scenarios import (
    COLUMNS,
    GPUS,
    UNCHANGED,
    Row,
    Search,
    SweepPlan,
)
from replay.workloads.job_memory import FITS, usable_bytes
from replay.workloads.training_fits import PlanOrder, plan_order
from seqpoint.notebook import TOP, DataFrame, Result, Table, counted, table_of
from seqpoint.units import duration, tokens_per_dollar

#: Most what-ifs whose Pareto fronts are printed, beside the main one.
_FRONTS = 3
#: Times that differ by less, relative, are the same.
_ROUNDING = 1e-9
_OF_MEMORY = ("memory_bytes", "usable_bytes")


@dataclass(frozen=True, repr=False)
class SweepResult(Result):
    """Scenarios of a sweep with their times, memory and errors.

    Parameters
    ----------
    plan : SweepPlan
        The plan.
    rows : Table
        A row for each scenario that was timed: values of the grid, then ``device`` to ``error``.
    resumed : int
        Chunks that an earlier run had finished.
    finished : bool
        Whether the result was read, because an earlier run of the same plan had written it.
    prices : mapping of str to float
        US dollars for an hour of a GPU, by name of device.
    """

    heading = "Sweep"

    plan: SweepPlan
    rows: pa.Table
    resumed: int = 0
    finished: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def failed(self) -> int:
        """Number of scenarios without a time."""
        return int(self.rows["step_s"].null_count)

    def errors(self, most: int = 5) -> list[tuple[str, int]]:
        """Return the most frequent errors and how many scenarios have each."""
        counts = Counter({row["values"]: row["counts"] for row in self.rows["error"].value_counts().to_pylist()})
        return [(text, count) for text, count in counts.most_common(most + 1) if text][:most]

    def table(self) -> DataFrame:
        """Return a row for each scenario; times in s, memory in bytes."""
        frame: DataFrame = self.rows.to_pandas()
        return frame

    @cached_property
    def main(self) -> str:
        """The what-if that stands for what can be run: none, or the first of the plan."""
        return UNCHANGED if UNCHANGED in self.plan.what_ifs else self.plan.what_ifs[0]

    @cached_property
    def devices(self) -> list[str]:
        """Names of the devices, in the order of the rows."""
        return [name or "" for name in self.rows["device"].unique().to_pylist()]

    def usable_bytes(self, device: str) -> float | None:
        """Return the bytes of a device that a job can use; None for a trace, or if the memory is unknown."""
        is_known = self.plan.job is not None and "memory_gb" in find_device(device).figures
        return usable_bytes(find_device(device)) if is_known else None

    def pareto(self) -> list[Row]:
        """Return the rows that no other row of the same what-if and device beats in both devices and step time.

        If steps differ in tokens, the time of a token stands for that of a step. Scenarios that do not fit into memory
        are left out. Rows are by what-if, that of `main` first, then by device and by number of devices.
        """
        what_ifs, devices = (_numbered(self.rows[name]) for name in ("what_if", "device"))
        gpus = self.rows["gpus"].to_numpy()
        step = self.rows["step_s"].fill_null(inf).to_numpy()
        if self.work_varies:
            step = 1 / self.rows["tokens_per_s"].fill_null(nan).to_numpy()
        step = np.where(self.rows["fits"].fill_null(True).to_numpy(), step, inf)
        front, best = [], dict[tuple[int, int], float]()
        for i in np.lexsort((step, gpus, devices, what_ifs, ~self._asked())).tolist():
            if step[i] < best.get(key := (what_ifs[i], devices[i]), inf):
                best[key] = step[i]
                front.append(i)
        return self._taken(front)

    @cached_property
    def work_varies(self) -> bool:
        """Whether steps differ in tokens."""
        tokens = pc.min_max(pc.multiply(self.rows["step_s"], self.rows["tokens_per_s"])).as_py()
        return tokens["min"] is not None and bool(tokens["max"] > (1 + _ROUNDING) * tokens["min"])

    def _taken(self, numbers: Sequence[int]) -> list[Row]:
        rows: list[Row] = self.rows.take(pa.array(numbers, pa.int64())).to_pylist()
        for row in rows:
            rate = _or_nan(row["tokens_per_gpu_s"])
            row["tokens_per_joule"] = rate / row["watts"] if row["watts"] and rate > 0 else None
        if self.prices:
            for row in rows:
                price, rate = self.prices.get(row["device"] or "", nan), _or_nan(row["tokens_per_gpu_s"])
                row["tokens_per_dollar"] = tokens_per_dollar(rate, price) if rate * price > 0 else None
        return rows

    def _asked(self, device: str | None = None) -> Bools:
        """Return whether each row is of the main what-if, and of a device if one is given."""
        asked = pc.equal(self.rows["what_if"], self.main)
        if device is not None:
            asked = pc.and_(asked, pc.equal(self.rows["device"].fill_null(""), device))
        return np.asarray(asked, dtype=bool)

    def best(self, device: str | None = None) -> Row | None:
        """Return the row with the smallest objective of the search, or the shortest step; None if none is allowed.

        Parameters
        ----------
        device : str, optional
            Device of the row; by default any. Rows of a what-if do not count, unless the plan has nothing else.
        """
        scores = self._scores(device)
        best = int(np.argmin(scores))
        return self._taken([best])[0] if isfinite(scores[best]) else None

    def order(self, device: str) -> PlanOrder | None:
        """Return how sure the shortest step on a device is; None of a trace, of one scenario or of unlike work."""
        scores = self._scores(device)
        is_time = self.plan.search is None or self.plan.search.objective == "time"
        is_known = is_time and self.plan.job is not None and not self.work_varies
        return plan_order(scores[np.isfinite(scores)].tolist()) if is_known else None

    def _scores(self, device: str | None) -> Floats:
        search = self.plan.search or Search(must_fit=True)
        return np.where(self._asked(device), search.scores(self.rows), inf)

    def cheapest(self) -> Row | None:
        """Return the row with the most tokens per $ that fits; None without prices or tokens."""
        return self._most(self._costs())

    def cost_front(self) -> list[Row]:
        """Return the rows of all devices that no other one beats in both tokens per $ and tokens/s, most per $ first.

        They are of the main what-if, and fit into memory. Without prices there is none.
        """
        per_dollar = self._rates(self._costs())
        rates = np.where(per_dollar > 0, self.rows["tokens_per_s"].fill_null(0.0).to_numpy(), 0.0)
        front = list[int]()
        for i in np.lexsort((-rates, -per_dollar)).tolist():
            if rates[i] > (rates[front[-1]] if front else 0.0):
                front.append(i)
        return self._taken(front)

    def least_energy(self) -> Row | None:
        """Return the row with the most tokens per J that fits; None if no power is known."""
        return self._most(self.rows["watts"].fill_null(inf).to_numpy())

    def _costs(self) -> Floats:
        """Return the price of each row's device, infinite without one."""
        return np.array([self.prices.get(device or "", inf) for device in self.rows["device"].to_pylist()])

    def _most(self, costs: Floats) -> Row | None:
        """Return the row with the most tokens/s of a GPU over its cost."""
        scores = self._rates(costs)
        most = int(np.argmax(scores))
        return self._taken([most])[0] if scores[most] > 0 else None

    def _rates(self, costs: Floats) -> Floats:
        """Return the tokens/s of a GPU of each row over its cost; 0 of those that do not fit or are not asked for."""
        rates = self.rows["tokens_per_gpu_s"].fill_null(0.0).to_numpy()
        fits = self.rows["fits"].fill_null(True).to_numpy(zero_copy_only=False)
        return np.where(self._asked() & fits, rates / costs, 0.0)

    def nearest(self, device: str | None = None, most: int = 5) -> list[Row]:
        """Return rows that do not fit, smallest share of the usable memory first, with `usable_bytes`.

        Parameters
        ----------
        device : str, optional
            Device of the rows; by default any.
        most : int
            Most rows.
        """
        limits = {device: self.usable_bytes(device) for device in self.devices}
        usable = np.array([limits[device or ""] or nan for device in self.rows["device"].to_pylist()])
        share = self.rows["memory_bytes"].fill_null(0).to_numpy() / usable
        share[~self._asked(device)] = 0
        near = [i for i in np.argsort(share, kind="stable").tolist() if share[i] > 1][:most]
        rows = zip(self._taken(near), usable[near].tolist(), share[near].tolist(), strict=True)
        return [{**row, "usable_bytes": limit, "memory_share": part} for row, limit, part in rows]

    def plot(self) -> Any:
        """Return step time against devices with the Pareto fronts, as a HoloViews object."""
        from seqpoint.plots import pareto_front

        return pareto_front(self.table(), self.pareto(), self.main)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint sweep --json` prints."""
        counts = {"scenarios": len(self.plan), "tried": len(self), "failed": self.failed}
        errors = [{"error": text, "count": count} for text, count in self.errors()]
        devices = [
            {
                "device": name,
                "usable_bytes": self.usable_bytes(name),
                "best": self.best(name),
                "order": order and order._asdict(),
            }
            for name in self.devices
            for order in [self.order(name)]
        ]
        found = {
            "errors": errors,
            "best": self.best(),
            "cheapest": self.cheapest(),
            "least_energy": self.least_energy(),
            "cost_front": self.cost_front(),
            "devices": devices,
            "pareto": self.pareto(),
        }
        return {**counts, **found, "nearest": self.nearest(), "rows": self.rows.to_pylist()}

    def summary(self) -> list[str]:
        """Return how many scenarios have a time and fit, why the others do not, and the best of each device."""
        no_room = int((self.rows["fits"].fill_null(True).to_numpy(zero_copy_only=False) == 0).sum())
        timed = len(self) - self.failed
        searched = "" if len(self) == len(self.plan) else f" of {len(self):,} that the search tried"
        of = f"{counted(len(self.plan), 'scenario')}: {timed:,}{searched}"
        sentences = [f"{of} {'has' if timed == 1 else 'have'} a step time"]
        if no_room:
            sentences.append(f"{counted(no_room, 'scenario')} {'does' if no_room == 1 else 'do'} not fit into memory")
        for text, count in self.errors():
            sentences.append(f"{counted(count, 'scenario')} {'has' if count == 1 else 'have'} no step time: {text}")
        sentences += [self._of_device(device) for device in self.devices[:TOP]]
        least = (
            ("$", "{tokens_per_dollar:,.0f}", self.cheapest()),
            ("J", "{tokens_per_joule:,.3g}", self.least_energy()),
        )
        for unit, rate, row in least:
            if row:
                plan = f"{row['gpus']:,} {row['device']}{self._values(row)}, {duration(1e9 * row['step_s'])} a step"
                sentences.append(f"most tokens per {unit}: {rate.format(**row)} on {plan}")
        if GPUS in self.plan.keys:
            sentences.append(
                "gpus of the grid keeps the global batch (strong scaling); `seqpoint scaling --gpus` adds replicas, "
                "each with its batch (weak scaling)"
            )
        return sentences

    def _of_device(self, device: str) -> str:
        """Return the best row of a device and its usable memory, in a sentence."""
        usable, best = self.usable_bytes(device), self.best(device)
        limit = "" if usable is None else f"usable memory of {device}: {usable / 1e9:.1f} GB; "
        if best is None:
            reason = "no scenario has a step time that the plan allows"
            for row in self.nearest(device, 1):
                reason = f"no scenario fits: the smallest needs {row['memory_bytes'] / 1e9:.1f} GB"
            return f"{limit}{reason}" if limit else f"{device}: {reason}"
        is_time = self.plan.search is None or self.plan.search.objective == "time"
        order = self.order(device)
        least = "shortest step" if is_time else "fewest GPU seconds"
        return (
            f"{limit}{least} on {device or 'the device'}: {duration(1e9 * best['step_s'])} on "
            f"{counted(best['gpus'], 'GPU')}{self._values(best)}" + f"; {order}" * bool(order)
        )

    def _values(self, row: Row) -> str:
        """Return the values of the grid of a row, in brackets."""
        keys = [key for key in self.plan.keys if key not in COLUMNS and row[key] is not None]
        values = ", ".join(f"{key.replace('_', ' ')} {row[key]}" for key in keys)
        return f" ({values})" * bool(values)

    def tables(self) -> list[Table]:
        """Return a Pareto front for each of the first what-ifs as text; if nothing fits, what is nearest to it."""
        rows = {what_if: list(group) for what_if, group in groupby(self.pareto(), lambda row: row["what_if"])}
        title = f"Pareto front of each device: fewest GPUs, {'most tokens/s' if self.work_varies else 'shortest step'}"
        tables = [self._table(title, rows.pop(self.main))] if self.main in rows else []
        if not tables and (near := self.nearest()):
            tables = [self._table("Nearest to fit: no scenario fits into memory", near)]
        if len(cheap := self.cost_front()) > 1:
            tables.append(self._table("Pareto front of all devices: most tokens per $, most tokens/s", cheap))
        return tables + [self._table(f"Pareto front under {name}", rows[name]) for name in list(rows)[:_FRONTS]]

    def _table(self, title: str, rows: Sequence[Row]) -> Table:
        """Return rows as text, without the columns that none of them has."""
        columns = {f"{key.replace('_', ' ')}~": "{" + key + "}" for key in self.plan.keys if key not in COLUMNS}
        columns |= {"device~": "{device}", "GPUs": "{gpus:,d}"}
        columns |= {"step time": "{step_ns:time}", "low": "{low_ns:time}", "high": "{high_ns:time}"}
        if any(row["tokens_per_gpu_s"] is not None for row in rows):
            columns["tokens/s per GPU"] = "{tokens_per_gpu_s:,.0f}"
        if any(row.get("tokens_per_dollar") is not None for row in rows):
            columns["tokens per $"] = "{tokens_per_dollar:,.0f}"
        if any(row["tokens_per_joule"] is not None for row in rows):
            columns["tokens per J"] = "{tokens_per_joule:,.3g}"
        if any(row["memory_bytes"] is not None for row in rows):
            columns["memory GB"] = "{memory_gb:.1f}"
        if any(row["fit"] == FITS[1] for row in rows):
            columns["fit~"] = "{fit}"
        if "usable_bytes" in rows[0]:
            columns |= {"usable GB": "{usable_gb:.1f}", "memory %": "{memory_share:.0%}"}
        return table_of(title, columns, [_in_units(row) for row in rows])


def _in_units(row: Row) -> Row:
    """Return a row with times in ns and memory in GB."""
    times = {name.replace("_s", "_ns"): 1e9 * _or_nan(row[name]) for name in ("step_s", "low_s", "high_s")}
    return row | times | {name.replace("_bytes", "_gb"): _or_nan(row.get(name)) / 1e9 for name in _OF_MEMORY}


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _numbered(column: pa.ChunkedArray) -> Any:
    """Return the number of each text, in the order of their first rows."""
    return column.fill_null("").combine_chunks().dictionary_encode().indices.to_numpy()
