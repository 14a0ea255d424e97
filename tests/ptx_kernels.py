"""The kernels of `../shared/data/ptx`: their inputs, and what they must compute, by NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np

PTX = Path(__file__).parents[2] / "shared" / "data" / "ptx"
TYPES = {"f32": np.float32, "u32": np.uint32, "s32": np.int32, "u16": np.uint16, "f16": np.float16, "s64": np.int64}


def facts() -> dict[str, dict[str, Any]]:
    """Return the launches by kernel."""
    kernels: dict[str, dict[str, Any]] = json.loads((PTX / "kernels.json").read_text())["kernels"]
    return kernels


def expression(name: str, count: int) -> np.ndarray:
    """Return the inputs that the file describes by an expression."""
    i = np.arange(count)
    return {
        "d_iN": lambda: np.maximum(i - 1, 0),
        "d_jW": lambda: np.maximum(i - 1, 0),
        "d_iS": lambda: np.minimum(i + 1, count - 1),
        "d_jE": lambda: np.minimum(i + 1, count - 1),
        "d_I": lambda: np.exp(np.random.default_rng(6).integers(0, 256, size=count) / 255.0),
        "d_Data": lambda: np.random.default_rng(17).integers(0, 256, size=4 * count, dtype=np.uint8).view(np.uint32),
    }[name]()


def array(parameter: dict[str, Any]) -> np.ndarray:
    """Return the initial content of a buffer."""
    kind, count, fill = TYPES[parameter["type"][:-1]], parameter["n"], parameter.get("fill") or {"kind": "zeros"}
    random = np.random.default_rng(fill.get("seed", 0))
    if fill["kind"] == "uniform":
        spread = np.float32(fill["high"] - fill["low"])
        return (random.random(count, dtype=np.float32) * spread + np.float32(fill["low"])).astype(kind)
    if fill["kind"] == "randint":
        return random.integers(fill["low"], fill["high"], size=count).astype(kind)
    if fill["kind"] == "expr":
        return np.asarray(expression(parameter["name"], count)).astype(kind)
    if fill["kind"] == "file":
        return np.fromfile(PTX / fill["file"], kind, count)
    return np.zeros(count, kind)


def backprop_layerforward(given: dict[str, Any]) -> dict[str, np.ndarray]:
    whole = given["input_hidden_cuda"].reshape(65537, 17).copy()
    sums = (whole[1:, 1:] * given["input_cuda"][1:, None]).reshape(4096, 16, 16)
    for step in (1, 2, 4, 8):
        sums[:, :: 2 * step] += sums[:, step :: 2 * step]
    whole[1:, 1:] = sums.reshape(65536, 16)
    return {"input_hidden_cuda": whole.ravel(), "hidden_partial_sum": sums[:, 0].ravel()}


def backprop_adjust_weights(given: dict[str, Any]) -> dict[str, np.ndarray]:
    w, old = (given[name].reshape(65537, 17).copy() for name in ("w", "oldw"))
    delta = given["delta"][1:].astype(float)
    change = 0.3 * delta * given["ly"][1:, None].astype(float) + 0.3 * old[1:, 1:]
    first = 0.3 * delta + 0.3 * old[0, 1:]
    w[1:, 1:], old[1:, 1:] = (w[1:, 1:] + change).astype(np.float32), change.astype(np.float32)
    w[0, 1:], old[0, 1:] = (w[0, 1:] + first).astype(np.float32), first.astype(np.float32)
    return {"w": w.ravel(), "oldw": old.ravel()}


def srad_v1_srad(given: dict[str, Any]) -> dict[str, np.ndarray]:
    image = given["d_I"].reshape(458, 502)
    north, south = image[:, given["d_iN"]] - image, image[:, given["d_iS"]] - image
    west, east = image[given["d_jW"]] - image, image[given["d_jE"]] - image
    g2 = (north**2 + south**2 + west**2 + east**2) / image**2
    laplace = (north + south + west + east) / image
    q = (0.5 * g2 - (1 / 16) * laplace**2) / (1 + 0.25 * laplace) ** 2
    q0 = np.float32(given["d_q0sqr"])
    c = np.clip(1 / (1 + (q - q0) / (q0 * (1 + q0))), 0, 1)
    named = {"d_dN": north, "d_dS": south, "d_dW": west, "d_dE": east, "d_c": c}
    return {name: value.ravel() for name, value in named.items()}


def sgemm(given: dict[str, Any]) -> dict[str, np.ndarray]:
    a, b = given["A"].reshape(992, 1024).astype(float), given["B"].reshape(992, 1056).astype(float)
    return {"C": (b.T @ a).ravel().astype(np.float32)}


def walsh_radix4(given: dict[str, Any]) -> dict[str, np.ndarray]:
    a, b, c, d = given["d_Output"].reshape(4, 2097152)
    return {"d_Output": np.concatenate([a + c + (b + d), a + c - (b + d), a - c + (b - d), a - c - (b - d)])}


def walsh_in_block(given: dict[str, Any]) -> dict[str, np.ndarray]:
    runs = given["d_Output"].reshape(-1, 2048).copy()
    for step in (512, 128, 32, 8, 2):
        parts = runs.reshape(-1, 4, step)
        a, b, c, d = (parts[:, k].copy() for k in range(4))
        results = (a + c + (b + d), a + c - (b + d), a - c + (b - d), a - c - (b - d))
        for k, value in enumerate(results):
            parts[:, k] = value
    pairs = runs.reshape(-1, 2)
    return {"d_Output": np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()}


def histogram64(given: dict[str, Any]) -> dict[str, np.ndarray]:
    bins = (given["d_Data"].view(np.uint8) >> 2).reshape(-1, 64 * 16)
    block = np.arange(len(bins)) % 4370
    flat = (block[:, None] * 64 + bins).ravel()
    return {"d_PartialHistograms": np.bincount(flat, minlength=4370 * 64).astype(np.uint32)}


def sobol(given: dict[str, Any]) -> dict[str, np.ndarray]:
    i = np.arange(100000)
    gray, result = i ^ (i >> 1), np.zeros((100, 100000), np.uint32)
    for bit in range(17):
        result ^= np.where(gray >> bit & 1, given["d_directions"].reshape(100, 32)[:, bit, None], np.uint32(0))
    return {"d_output": (result.astype(np.float32) * np.float32(2.3283064e-10)).ravel()}


def cosines(image: np.ndarray) -> np.ndarray:
    k, x = np.arange(8)[:, None], np.arange(8)
    basis = np.cos((2 * x + 1) * k * np.pi / 16) * np.where(k == 0, np.sqrt(1 / 8), 0.5)
    blocks = image.astype(float).reshape(64, 8, 64, 8).transpose(0, 2, 1, 3)
    result = basis @ blocks @ basis.T
    return result.transpose(0, 2, 1, 3).ravel().astype(np.float32)


def sums_of_differences(given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the sums of 4 by 4 pixels for each of 33 x 33 shifts; the seven positions behind them hold anything."""
    frame, around = given["frame"].astype(np.int32), np.pad(given["ref"].astype(np.int32), 16, "edge")
    down, across = frame.shape[0] // 16, frame.shape[1] // 16
    sums = np.zeros((down, across, 4, 4, 1096), np.uint16)
    for shift in range(1089):
        y, x = divmod(shift, 33)
        apart = np.abs(around[y : y + 16 * down, x : x + 16 * across] - frame)
        sums[..., shift] = apart.reshape(down, 4, 4, across, 4, 4).sum(axis=(2, 5)).transpose(0, 2, 1, 3)
    return {"blk_sad": sums.ravel()}


#: What each kernel without textures or `wmma` must compute from its buffers and numbers.
EXPECTED = {
    "backprop_layerforward": backprop_layerforward,
    "backprop_adjust_weights": backprop_adjust_weights,
    "srad_v1_srad": srad_v1_srad,
    "parboil_sgemm_mysgemmNT": sgemm,
    "fwtBatch2Kernel": walsh_radix4,
    "fwtBatch1Kernel": walsh_in_block,
    "histogram64": histogram64,
    "sobolGPU": sobol,
    "dct8x8_kernel2": lambda given: {"dst": cosines(given["src"])},
}
