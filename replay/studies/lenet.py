"""LeNet on images of MNIST's size, forward and backward, as a sequence of kernel launches.

`lenet_plan` returns the buffers and the launches of one training step. The convolutions of the forward pass use the
algorithm that the caller names; all else is the same for each algorithm. The kernels are PTX files of the project.

The network has FP32 data in the order image, channel, row, column: convolution 1 -> 20 of 5 x 5, max-pooling of 2 x 2,
convolution 20 -> 50 of 5 x 5, max-pooling, 800 -> 500, ReLU, 500 -> 10, mean cross-entropy, gradients, SGD.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from replay.detailed import KernelLaunch, LaunchPlan

#: Learning rate of the update.
LEARNING_RATE = 0.01
CLASSES = 10
_FILTER = 5
_HIDDEN = 500
#: Rows and columns of the result that a block of the matrix products computes.
_TILE_ROWS, _TILE_COLUMNS = 32, 64
_TILE_THREADS = 128
#: Elements of a Winograd tile.
_WINOGRAD_ELEMENTS = 36


@dataclass(frozen=True)
class LenetConvolution:
    """A convolution of square images without padding.

    Parameters
    ----------
    name : str
        Name, the first part of the names of its buffers.
    channels, outputs : int
        Channels of the input and of the output.
    size : int
        Rows, and columns, of the input.
    """

    name: str
    channels: int
    size: int
    outputs: int

    @property
    def out_size(self) -> int:
        """Rows, and columns, of the output."""
        return self.size - _FILTER + 1

    @property
    def pixels(self) -> int:
        """Pixels of a channel of the output."""
        return self.out_size**2

    @property
    def taps(self) -> int:
        """Weights of one output."""
        return self.channels * _FILTER**2


@dataclass(frozen=True)
class Linear:
    """A fully connected layer.

    Parameters
    ----------
    name : str
        Name, the first part of the names of its buffers.
    inputs, outputs : int
        Elements of the input and of the output.
    """

    name: str
    inputs: int
    outputs: int


CONVOLUTIONS = (LenetConvolution("conv1", 1, 28, 20), LenetConvolution("conv2", 20, 12, 50))
LINEARS = (Linear("fc1", 800, _HIDDEN), Linear("fc2", _HIDDEN, CLASSES))


@dataclass
class _Recorder:
    """Buffers and launches of a plan in the making."""

    batch: int
    buffers: dict[str, NDArray[np.float32] | NDArray[np.int32]] = field(default_factory=dict)
    calls: list[KernelLaunch] = field(default_factory=list)

    def zeros(self, name: str, *shape: int) -> str:
        """Add a buffer of FP32 zeros and return its name."""
        self.buffers[name] = np.zeros(shape, np.float32)
        return name

    def launch(
        self, file: str, entry: str, grid: tuple[int, ...], threads: int, arguments: tuple[str | int | float, ...]
    ) -> None:
        """Add a launch of an entry of ``ptx/lenet/FILE.ptx``."""
        x, y, z = (*grid, 1, 1)[:3]
        path = dataset_path(f"ptx/lenet/{file}.ptx")
        self.calls.append(KernelLaunch(path, entry, (x, y, z), (threads, 1, 1), arguments))

    def elementwise(self, entry: str, count: int, arguments: tuple[str | int | float, ...]) -> None:
        """Add a launch of an entry of which each thread computes one of `count` elements."""
        self.launch("layers", entry, (ceil(count / 128),), 128, arguments)

    def product(
        self, kind: str, names: tuple[str, str, str], sizes: tuple[int, int, int], batched: tuple[int, int, int, int]
    ) -> None:
        """Add ``c = a b`` of `sizes` rows, columns and depths; `batched` has the number of products and the strides."""
        rows, columns, _ = sizes
        products, *strides = batched
        self.launch("gemm", f"gemm_{kind}", _tiles(rows, columns, products), _TILE_THREADS, (*names, *sizes, *strides))


def _tiles(rows: int, columns: int, products: int) -> tuple[int, int, int]:
    """Return the grid of a tiled matrix product."""
    return ceil(columns / _TILE_COLUMNS), ceil(rows / _TILE_ROWS), products


def _forward_gemm(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    columns = plan.zeros(f"{layer.name}_columns", plan.batch, layer.taps, layer.pixels)
    grid = (ceil(layer.channels * layer.pixels / 128), plan.batch)
    plan.launch("gemm", "im2col", grid, 128, (source, columns, layer.channels, layer.size, layer.size))
    plan.product(
        "nn",
        (f"{layer.name}_weight", columns, f"{layer.name}_output"),
        (layer.outputs, layer.pixels, layer.taps),
        (plan.batch, 0, layer.taps * layer.pixels, layer.outputs * layer.pixels),
    )


def _forward_implicit_gemm(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    names = (source, f"{layer.name}_weight", f"{layer.name}_output")
    sizes = (layer.channels, layer.size, layer.size, layer.outputs)
    grid = _tiles(layer.outputs, layer.pixels, plan.batch)
    plan.launch("implicit_gemm", "implicit_gemm_forward", grid, _TILE_THREADS, (*names, *sizes))


def _forward_fft(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    _fourier(plan, layer, source, 32)


def _forward_fft_tiling(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    _fourier(plan, layer, source, 16)


def _fourier(plan: _Recorder, layer: LenetConvolution, source: str, size: int) -> None:
    """Convolve in the frequency domain with transforms of `size` x `size`."""
    kept = size * (size // 2 + 1)
    a_row = ceil(layer.out_size / (size - _FILTER + 1))
    tiles, threads = a_row**2, size * 8
    rows = plan.batch * tiles
    images = plan.zeros(f"{layer.name}_image_spectra", rows, layer.channels, kept, 2)
    filters = plan.zeros(f"{layer.name}_filter_spectra", layer.outputs, layer.channels, kept, 2)
    products = plan.zeros(f"{layer.name}_output_spectra", rows, layer.outputs, kept, 2)
    weight, output = f"{layer.name}_weight", f"{layer.name}_output"
    forward, inverse = f"forward_fft_{size}", f"inverse_fft_{size}"
    grid = (layer.channels, layer.outputs, 1)
    plan.launch("fft", forward, grid, threads, (weight, filters, _FILTER, _FILTER, 1))
    grid = (layer.channels, plan.batch, tiles)
    plan.launch("fft", forward, grid, threads, (source, images, layer.size, layer.size, a_row))
    blocks = ceil(kept / 192)
    warps = ceil(kept / blocks / 32)
    grid = (blocks, ceil(rows / 4), ceil(layer.outputs / 2))
    arguments = (images, filters, products, rows, layer.channels, layer.outputs, kept)
    plan.launch("fft", "multiply_spectra", grid, 32 * warps, arguments)
    grid = (layer.outputs, plan.batch, tiles)
    plan.launch("fft", inverse, grid, threads, (products, output, layer.out_size, layer.out_size, a_row))


def _winograd_tiles(plan: _Recorder, layer: LenetConvolution) -> int:
    """Return the number of Winograd tiles of all images; each has 2 x 2 outputs."""
    return int(plan.batch * ceil(layer.out_size / 2) ** 2)


def _forward_winograd(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    names = (source, f"{layer.name}_weight", f"{layer.name}_output")
    sizes = (plan.batch, layer.channels, layer.size, layer.size, layer.outputs)
    grid = (ceil(_winograd_tiles(plan, layer) / 16), ceil(layer.outputs / 16))
    plan.launch("winograd", "winograd_fused", grid, 128, (*names, *sizes))


def _forward_winograd_nonfused(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    tiles, count = _winograd_tiles(plan, layer), layer.outputs * layer.channels
    images = plan.zeros(f"{layer.name}_image_tiles", _WINOGRAD_ELEMENTS, layer.channels, tiles)
    filters = plan.zeros(f"{layer.name}_filter_tiles", _WINOGRAD_ELEMENTS, layer.outputs, layer.channels)
    products = plan.zeros(f"{layer.name}_output_tiles", _WINOGRAD_ELEMENTS, layer.outputs, tiles)
    blocks = ceil(tiles / 128)
    arguments: tuple[str | int, ...] = (f"{layer.name}_weight", filters, count)
    plan.launch("winograd", "winograd_transform_filters", (ceil(count / 128),), 128, arguments)
    arguments = (source, images, plan.batch, layer.channels, layer.size, layer.size)
    plan.launch("winograd", "winograd_transform_images", (blocks, layer.channels), 128, arguments)
    plan.product(
        "nn",
        (filters, images, products),
        (layer.outputs, tiles, layer.channels),
        (_WINOGRAD_ELEMENTS, count, layer.channels * tiles, layer.outputs * tiles),
    )
    arguments = (products, f"{layer.name}_output", plan.batch, layer.outputs, layer.size, layer.size)
    plan.launch("winograd", "winograd_transform_back", (blocks, layer.outputs), 128, arguments)


_FORWARD: dict[str, Callable[[_Recorder, LenetConvolution, str], None]] = {
    "gemm": _forward_gemm,
    "implicit_gemm": _forward_implicit_gemm,
    "fft": _forward_fft,
    "fft_tiling": _forward_fft_tiling,
    "winograd": _forward_winograd,
    "winograd_nonfused": _forward_winograd_nonfused,
}
#: Algorithms of the convolutions of the forward pass.
ALGORITHMS: tuple[str, ...] = tuple(_FORWARD)


def lenet_plan(algorithm: str, *, batch: int = 16, seed: int = 0, backward: bool = True) -> LaunchPlan:
    """Return the launches of a training step of LeNet, and the initial values of its buffers.

    Parameters
    ----------
    algorithm : str
        One of `ALGORITHMS`, for the convolutions of the forward pass.
    batch : int
        Images of the step.
    seed : int
        Seed of the images, the labels and the weights.
    backward : bool
        Whether gradients and the update of the weights follow the loss.

    Returns
    -------
    LaunchPlan
        Buffers ``images``, ``labels``, ``LAYER_weight``, ``LAYER_bias``, ``LAYER_output``, ``probabilities`` and
        ``loss``; with `backward` also ``NAME_gradient`` of each weight, bias and output. ``fc2_output`` are the logits.
        The gradient of the images is not computed.

    Raises
    ------
    InvalidInputError
        Unknown algorithm, or a batch below 1.

    Examples
    --------
    >>> lenet_plan("winograd", backward=False).calls[0].entry
    'winograd_fused'
    """
    if algorithm not in _FORWARD:
        raise InvalidInputError(f"unknown algorithm {algorithm!r}; the algorithms are {', '.join(ALGORITHMS)}")
    if batch < 1:
        raise InvalidInputError(f"batch {batch}: needs at least one image")
    plan = _Recorder(batch)
    _initial_values(plan, seed)
    source = "images"
    for layer in CONVOLUTIONS:
        _convolution_forward(plan, layer, source, _FORWARD[algorithm])
        source = f"{layer.name}_pool"
    _classifier_forward(plan, source)
    if backward:
        _classifier_backward(plan, source)
        for layer, source in ((CONVOLUTIONS[1], "conv1_pool"), (CONVOLUTIONS[0], "images")):
            _convolution_backward(plan, layer, source)
        _update(plan)
    return LaunchPlan(f"lenet_{algorithm}", plan.buffers, tuple(plan.calls))


def _initial_values(plan: _Recorder, seed: int) -> None:
    """Add images, labels and weights; weights are uniform within one over the root of a neuron's inputs."""
    random = np.random.default_rng(seed)
    size = CONVOLUTIONS[0].size
    plan.buffers["images"] = random.random((plan.batch, 1, size, size), dtype=np.float32)
    plan.buffers["labels"] = random.integers(0, CLASSES, plan.batch, dtype=np.int32)
    shapes = [(each.name, (each.outputs, each.channels, _FILTER, _FILTER)) for each in CONVOLUTIONS]
    for name, shape in [*shapes, *((each.name, (each.outputs, each.inputs)) for each in LINEARS)]:
        bound = 1 / sqrt(np.prod(shape[1:]))
        plan.buffers[f"{name}_weight"] = random.uniform(-bound, bound, shape).astype(np.float32)
        plan.buffers[f"{name}_bias"] = random.uniform(-bound, bound, shape[0]).astype(np.float32)


def _convolution_forward(
    plan: _Recorder, layer: LenetConvolution, source: str, forward: Callable[[_Recorder, LenetConvolution, str], None]
) -> None:
    """Add a convolution, its bias and the max-pooling of its output."""
    output = plan.zeros(f"{layer.name}_output", plan.batch, layer.outputs, layer.out_size, layer.out_size)
    forward(plan, layer, source)
    count = plan.buffers[output].size
    plan.elementwise("add_bias", count, (output, f"{layer.name}_bias", count, layer.outputs, layer.pixels))
    half = layer.out_size // 2
    pooled = plan.zeros(f"{layer.name}_pool", plan.batch, layer.outputs, half, half)
    argmax = f"{layer.name}_argmax"
    plan.buffers[argmax] = np.zeros(plan.buffers[pooled].shape, np.int32)
    plan.elementwise("max_pool", count // 4, (output, pooled, argmax, count // 4, layer.out_size, layer.out_size))


def _classifier_forward(plan: _Recorder, source: str) -> None:
    """Add the fully connected layers with the ReLU between them, and the loss."""
    for layer in LINEARS:
        output = plan.zeros(f"{layer.name}_output", plan.batch, layer.outputs)
        names = (source, f"{layer.name}_weight", output)
        plan.product("nt", names, (plan.batch, layer.outputs, layer.inputs), (1, 0, 0, 0))
        count = plan.batch * layer.outputs
        plan.elementwise("add_bias", count, (output, f"{layer.name}_bias", count, layer.outputs, 1))
        if layer is LINEARS[0]:
            source = plan.zeros("relu_output", plan.batch, layer.outputs)
            plan.elementwise("relu", count, (output, source, count))
    probabilities, loss = plan.zeros("probabilities", plan.batch, CLASSES), plan.zeros("loss", 1)
    arguments = ("fc2_output", "labels", probabilities, loss, plan.batch, CLASSES)
    plan.launch("layers", "softmax_loss", (1,), 64, arguments)


def _classifier_backward(plan: _Recorder, source: str) -> None:
    """Add the gradients of the loss and of the fully connected layers."""
    gradient = plan.zeros("fc2_output_gradient", plan.batch, CLASSES)
    count = plan.batch * CLASSES
    plan.elementwise("softmax_loss_gradient", count, ("probabilities", "labels", gradient, plan.batch, CLASSES))
    _linear_backward(plan, LINEARS[1], "relu_output")
    gradient = plan.zeros("fc1_output_gradient", plan.batch, _HIDDEN)
    count = plan.batch * _HIDDEN
    plan.elementwise("relu_gradient", count, ("relu_output_gradient", "relu_output", gradient, count))
    _linear_backward(plan, LINEARS[0], source)


def _linear_backward(plan: _Recorder, layer: Linear, source: str) -> None:
    """Add the gradients of weights, bias and input of a fully connected layer."""
    output = f"{layer.name}_output_gradient"
    weight = plan.zeros(f"{layer.name}_weight_gradient", layer.outputs, layer.inputs)
    plan.product("tn", (output, source, weight), (layer.outputs, layer.inputs, plan.batch), (1, 0, 0, 0))
    _bias_backward(plan, layer.name, layer.outputs, 1)
    inputs = plan.zeros(f"{source}_gradient", *plan.buffers[source].shape)
    names = (output, f"{layer.name}_weight", inputs)
    plan.product("nn", names, (plan.batch, layer.inputs, layer.outputs), (1, 0, 0, 0))


def _bias_backward(plan: _Recorder, name: str, channels: int, pixels: int) -> None:
    """Add the gradient of a bias: the sum of the output's gradient over images and pixels."""
    gradient = plan.zeros(f"{name}_bias_gradient", channels)
    arguments = (f"{name}_output_gradient", gradient, plan.batch, channels, pixels)
    plan.launch("layers", "bias_gradient", (channels,), 64, arguments)


def _convolution_backward(plan: _Recorder, layer: LenetConvolution, source: str) -> None:
    """Add the gradients of a max-pooling and of the convolution before it; images get no gradient."""
    output = plan.zeros(f"{layer.name}_output_gradient", *plan.buffers[f"{layer.name}_output"].shape)
    count = plan.buffers[output].size
    arguments = (f"{layer.name}_pool_gradient", f"{layer.name}_argmax", output, count, layer.out_size, layer.out_size)
    plan.elementwise("max_pool_gradient", count, arguments)
    _bias_backward(plan, layer.name, layer.outputs, layer.pixels)
    partial = plan.zeros(f"{layer.name}_partial_gradient", plan.batch, layer.outputs, layer.taps)
    sizes = (layer.channels, layer.size, layer.size, layer.outputs)
    grid = _tiles(layer.outputs, layer.taps, plan.batch)
    entry = "implicit_gemm_weight_gradient"
    plan.launch("implicit_gemm", entry, grid, _TILE_THREADS, (source, output, partial, *sizes))
    weight = f"{layer.name}_weight"
    gradient = plan.zeros(f"{weight}_gradient", *plan.buffers[weight].shape)
    count = layer.outputs * layer.taps
    plan.launch("implicit_gemm", "sum_images", (ceil(count / 128),), 128, (partial, gradient, plan.batch, count))
    if source == "images":
        return
    inputs = plan.zeros(f"{source}_gradient", *plan.buffers[source].shape)
    grid = _tiles(layer.channels, layer.size**2, plan.batch)
    entry = "implicit_gemm_input_gradient"
    plan.launch("implicit_gemm", entry, grid, _TILE_THREADS, (weight, output, inputs, *sizes))


def _update(plan: _Recorder) -> None:
    """Add the update of each weight and bias by SGD."""
    for name in [f"{each.name}_{kind}" for each in (*CONVOLUTIONS, *LINEARS) for kind in ("weight", "bias")]:
        count = plan.buffers[name].size
        plan.elementwise("sgd", count, (name, f"{name}_gradient", LEARNING_RATE, count))
