"""Cost of PyTorch's profiler on the host, for `recording_operator_ns` and its neighbours in datasets/parameters.toml.

    python benchmarks/replay/recording_cost.py             # a loop and a training step, with each setting in turns
    python benchmarks/replay/recording_cost.py --recorded  # steps of datasets/measured without a profiler and traced

The first needs torch, and uses one thread of the CPU. It takes a minute.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from scipy.optimize import nnls

import seqpoint as sp
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from seqpoint.validation.suites import SuiteOptions, find_sources, load_suite

SETTINGS = {
    "off": None,
    "plain": {},
    "shapes": {"record_shapes": True},
    "stack": {"with_stack": True},
    "both": {"record_shapes": True, "with_stack": True},
}
#: Traces of steps that wait for their host.
HOST_BOUND = (
    *("bert_n128_b4_bf16", "bert_n128_b4_fp32", "dlrm_b2048_fp32", "language_mixed", "lenet_b256_fp32"),
    *("translation_base", "translation_mixed"),
)
REPEATS, STEPS = 20, 5


def loops() -> dict[str, Callable[[], object]]:
    """Return a loop over small modules, one over an operator, and a training step of small encoder layers."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(12)])
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(encoder.parameters(), foreach=False)
    small, sequences = torch.randn(4, 8), torch.randn(2, 8, 16)

    def modules() -> None:
        with torch.no_grad():
            for _ in range(20):
                blocks(small)

    def additions() -> None:
        for _ in range(1000):
            torch.add(small, 1.0)

    def training() -> None:
        optimizer.zero_grad()
        encoder(sequences).square().mean().backward()
        optimizer.step()

    return {"modules": modules, "additions": additions, "training": training}


def measured(run: Callable[[], object]) -> tuple[dict[str, float], Counter[str]]:
    """Return the least time of a run by setting, in us, since other programs only add; and its events by category."""
    from torch.profiler import ProfilerActivity, profile

    times: dict[str, list[float]] = {name: [] for name in SETTINGS}
    counts: Counter[str] = Counter()
    run()
    for _ in range(REPEATS):
        for name, setting in SETTINGS.items():
            if setting is None:
                times[name] += [timed(run) for _ in range(STEPS)]
                continue
            with profile(activities=[ProfilerActivity.CPU], **setting) as profiler:
                times[name] += [timed(run) for _ in range(STEPS)]
            if name == "stack" and not counts:
                with tempfile.TemporaryDirectory() as folder:
                    profiler.export_chrome_trace(f"{folder}/trace.json")
                    events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
                counts = Counter(event.get("cat", "") for event in events)
    return {name: 1e6 * min(each) for name, each in times.items()}, counts


def timed(run: Callable[[], object]) -> float:
    """Return how long a run takes, in s."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def print_recorded() -> None:
    """Fit the costs of an operator with its shapes and of a call to the steps of each device, and print the errors."""
    for device in ("h100", "h200"):
        shares, counts = recorded_shares(device)
        (operator_us, call_us), _ = nnls(counts, shares)
        print(f"{device}: {operator_us:.2f} us an operator with shapes, {call_us:.2f} us a call")
        for name, share, predicted in zip(HOST_BOUND, shares, counts @ (operator_us, call_us), strict=True):
            print(f"  {name}: {share:.3f} of the step as measured, {predicted:.3f} as fitted")


def recorded_shares(device: str) -> tuple[Floats, Floats]:
    """Return the share of each step that the recording took, and its operators and calls a us of the step."""
    folder = dataset_path(f"measured/{device}")
    pairs = load_suite("pairs")
    sources, _ = find_sources(pairs, [folder])
    recorded = pairs.score(pairs.read(sources, SuiteOptions()), SuiteOptions()).details["pairs"]
    gains = {gain["case"].rpartition("/")[2]: gain["measured"] for gain in recorded if gain["change"] == "recording"}
    counts = []
    for name in HOST_BOUND:
        trace = sp.open(folder / "traces" / f"{name}.pt.trace.json.gz")
        step_us = float(np.mean(sp.describe(trace).steps[0].step_ns)) / 1e3
        of_steps = [table.num_rows - table["iteration"].null_count for table in (trace.ops, trace.launches)]
        counts.append([count / trace.iterations.num_rows / step_us for count in of_steps])
    return np.array([1 - gains[name] for name in HOST_BOUND]), np.array(counts)


@click.command()
@click.option("--recorded", is_flag=True, help="Take the steps of datasets/measured instead.")
def main(recorded: bool) -> None:
    """Print the cost of PyTorch's profiler on the host."""
    if recorded:
        print_recorded()
        return
    for name, run in loops().items():
        us, counts = measured(run)
        operators, functions = counts["cpu_op"] / STEPS, counts["python_function"] / STEPS
        costs = {
            "an operator": (us["plain"] - us["off"]) / operators,
            "its shapes": (us["shapes"] - us["plain"]) / operators,
            "a function": (us["stack"] - us["plain"]) / functions,
            "a function, with shapes": (us["both"] - us["shapes"]) / functions,
        }
        share = 1 - us["off"] / us["both"]
        print(f"{name}: {', '.join(f'{what} {cost:.2f} us' for what, cost in costs.items())}; {share:.2f} of the time")


if __name__ == "__main__":
    main()
