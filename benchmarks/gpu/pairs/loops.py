"""Steps of jobs, as one change makes them: `Setting` says how a step runs, and the functions below build one.

Each function takes sizes, a `Setting` and a device, and returns a step: a callable that trains or serves one batch and
waits for nothing that the job itself does not wait for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu.pairs.networks import Experts, Generator
from benchmarks.gpu.training.prefetching import prefetching
from benchmarks.gpu.training.trainer import Trainer

__all__ = [
    "Images",
    "Setting",
    "Step",
    "apply",
    "attending",
    "experts",
    "loading",
    "neighbours",
    "prefetching",
    "serving",
    "training",
]

#: A step of a job; takes the number of the iteration.
Step = Callable[[int], object]
_SEED = 23
#: Runs before a capture, on a stream of their own, as CUDA graphs need them.
_BEFORE_CAPTURE = 3
_BACKENDS = {
    "math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How a step runs.

    Parameters
    ----------
    dtype : str
        ``"fp32"``, ``"tf32"`` (products of FP32 operands), or ``"bf16"`` and ``"fp16"`` (automatic mixed precision).
    optimizer : str
        ``"for-loop"``, ``"foreach"`` or ``"fused"``: how AdamW goes over the parameters.
    launch : str
        ``"eager"``, ``"graph"`` (the step is one CUDA graph) or ``"compiled"`` (the loss by `torch.compile`).
    attention : str
        ``"math"``, ``"efficient"`` or ``"flash"``: the kernels of attention; empty for PyTorch's choice.
    spin_ns : int, optional
        Time that the host spins in each operator; None leaves operators alone. 0 has the cost of the hook alone.
    """

    dtype: str = "bf16"
    optimizer: str = "fused"
    launch: str = "eager"
    attention: str = ""
    spin_ns: int | None = None


class _Spinning(TorchDispatchMode):
    """Spins in each operator for a time."""

    def __init__(self, spin_ns: int) -> None:
        super().__init__()
        self._spin_ns = spin_ns

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Spin, then run the operator."""
        until_ns = time.perf_counter_ns() + self._spin_ns
        while time.perf_counter_ns() < until_ns:
            pass
        return func(*args, **(kwargs or {}))


@contextmanager
def apply(setting: Setting) -> Iterator[None]:
    """Run what is inside with a setting: TF32, attention and spin are switches of the process or the thread."""
    with ExitStack() as switches:
        switches.enter_context(_tensor_float(setting.dtype == "tf32"))
        if setting.attention:
            switches.enter_context(sdpa_kernel(_BACKENDS[setting.attention]))
        if setting.spin_ns is not None:
            switches.enter_context(_Spinning(setting.spin_ns))
        yield


@contextmanager
def _tensor_float(allowed: bool) -> Iterator[None]:
    """Allow products and convolutions of FP32 operands in TF32, or forbid them."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = allowed
    try:
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.allow_tf32 = was


def training(
    make: Callable[[], nn.Module],
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]],
    setting: Setting,
    device: str,
    batches: Callable[[str], Iterator[tuple[Tensor, ...]]] | None = None,
) -> Step:
    """Return a step that trains a model by AdamW.

    Parameters
    ----------
    make : callable
        Makes the model; its method `loss` takes what `inputs` returns.
    inputs : callable
        From a generator on the host to one batch, which every step trains again.
    setting : Setting
        How the step runs.
    device : str
        Device, as PyTorch writes it.
    batches : callable, optional
        From the device to an endless iterator of batches on it, in place of `inputs`.
    """
    with torch.device(device):
        model = make()
    model.train()
    trainer = Trainer(model, _adamw(model, setting), _mixed(setting.dtype), device)
    loss = torch.compile(model.loss, dynamic=False) if setting.launch == "compiled" else model.loss
    if batches is not None:
        feed = batches(device)
        return lambda _: _trained(trainer, loss, next(feed))
    batch = tuple(each.to(device) for each in inputs(torch.Generator().manual_seed(_SEED)))
    if setting.launch == "graph":
        return _captured(lambda: _trained(trainer, loss, batch))
    return lambda _: _trained(trainer, loss, batch)


def _trained(trainer: Trainer, loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> None:
    trainer.step(lambda: loss(*batch))


def _mixed(dtype: str) -> str:
    """Return the type of automatic mixed precision; products in TF32 have operands in FP32."""
    return "fp32" if dtype == "tf32" else dtype


def _adamw(model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
    ways = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    how: dict[str, Any] = {**ways[setting.optimizer]}
    if setting.launch == "graph":
        how["capturable"] = True
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **how)


def _captured(step: Callable[[], object]) -> Step:
    """Return the replay of a CUDA graph of a step."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_BEFORE_CAPTURE):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda _: graph.replay()


def serving(
    make: Callable[[], Generator], batch: int, length: int, setting: Setting, device: str, *, decode: bool
) -> Step:
    """Return a step that reads prompts of `length` tokens, or that decodes one token behind `length` tokens."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[setting.dtype]
    with torch.device(device):
        model = make().to(dtype).eval()
    generator = torch.Generator().manual_seed(_SEED)
    vocabulary = model.tokens.num_embeddings
    tokens = torch.randint(vocabulary, (batch, 1 if decode else length), generator=generator).to(device)
    cache = model.cache(batch, length) if decode else []

    @torch.no_grad()
    def step(_: int = 0) -> object:
        return model.decode(tokens, cache) if decode else model.prefill(tokens)

    return _captured(step) if setting.launch == "graph" else step


def attending(shape: tuple[int, int, int, int], device: str) -> Step:
    """Return a step of attention alone, forward and backward; `shape` is (batch, heads, length, width)."""
    generator = torch.Generator().manual_seed(_SEED)
    inputs = [torch.randn(shape, generator=generator).to(device, torch.bfloat16).requires_grad_() for _ in range(3)]
    gradient = torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    def step(_: int = 0) -> object:
        return torch.autograd.grad(scaled_dot_product_attention(*inputs, is_causal=True), inputs, gradient)

    return step


def experts(sizes: tuple[int, int, int], tokens: int, streams: int, setting: Setting, device: str) -> Step:
    """Return a step that runs a layer of experts forward; `sizes` are hidden, inner and the number of experts."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[setting.dtype]
    with torch.device(device):
        model = Experts(*sizes, streams).to(dtype).eval()
    batch = torch.randn((tokens, sizes[0]), generator=torch.Generator().manual_seed(_SEED)).to(device, dtype)

    @torch.no_grad()
    def step(_: int = 0) -> object:
        return model(batch)

    return step


def neighbours(side: int, products: int, passes: int, priority: int, device: str) -> Step:
    """Return a step of products beside elementwise passes on a stream of another priority; less is sooner."""
    on_gpu = torch.device(device).type == "cuda"
    generator = torch.Generator().manual_seed(_SEED)
    operand, weight = (torch.randn((side, side), generator=generator).bfloat16().to(device) for _ in range(2))
    values = torch.randn((4 * side, side), generator=generator).to(device)
    main, beside = (torch.cuda.Stream(device, each) if on_gpu else None for each in (-1, priority))

    def step(_: int = 0) -> object:
        for stream in (main, beside) if on_gpu else ():
            stream.wait_stream(torch.cuda.current_stream(device))
        with _on(beside):
            for _ in range(passes):
                torch.add(values, 1.0, out=values)
        with _on(main):
            for _ in range(products):
                product = operand @ weight
        for stream in (main, beside) if on_gpu else ():
            torch.cuda.current_stream(device).wait_stream(stream)
        return product

    return step


def _on(stream: Any) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images that the host crops, mirrors and normalises when they are asked for.

    Parameters
    ----------
    count, side : int
        Number of images, and rows and columns of each. The stored ones are a seventh larger each way.
    """

    def __init__(self, count: int, side: int) -> None:
        self._count, self._side = count, side
        generator = torch.Generator().manual_seed(_SEED)
        stored = side + side // 7
        self._images = torch.randint(256, (16, 3, stored, stored), dtype=torch.uint8, generator=generator)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Return an image (3, side, side) and its class."""
        image, shift = self._images[number % len(self._images)], number % (self._side // 7)
        crop = image[:, shift : shift + self._side, shift : shift + self._side].float()
        crop = (crop.flip(-1) if number % 2 else crop).sub_(127.5).div_(127.5)
        return crop, torch.tensor(number % 10)


def loading(images: Images, batch: int, workers: int, how: str, device: str) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches on a device, from a loader in the process (0 workers) or from workers, without an end.

    Parameters
    ----------
    images : Images
        What is loaded.
    batch, workers : int
        Images of a batch, and processes that prepare them.
    how : str
        ``"pageable"`` or ``"pinned"``; the copy of the latter does not block.
    device : str
        Device, as PyTorch writes it.
    """
    pinned = how == "pinned" and torch.device(device).type == "cuda"
    # Workers that ended with each epoch would start anew within a turn.
    kept = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(images, batch, pin_memory=pinned, drop_last=True, **kept)
    while True:
        for loaded in loader:
            yield tuple(each.to(device, non_blocking=pinned) for each in loaded)
