"""Write a Kineto trace of any size, in the byte layout of the PyTorch profiler: a transformer in training.

    python benchmarks/ingest/kineto_generator.py OUT.json 500   # 500 MB

The fields, their order, the names' lengths and the shares of the kinds of event are those of real traces with
stacks and shapes; the job and its times are made up.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
)
_ATTENTION = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, "
    "false>(pytorch_flash::Flash_fwd_params)"
)
_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GEMMS = [
    f"nvjet_tst_{m}x{n}_64x4_{c}x1_v_bz_TN{t}" for m in (64, 128, 256) for n in (128, 192) for c in (1, 2) for t in "TN"
]
#: Operator, kernel, shapes, types.
_LAYER = [
    (
        "aten::layer_norm",
        _NORM,
        "[[2, 4096, 4096], [], [4096], [4096]]",
        '["c10::BFloat16", "ScalarList", "float", "float"]',
    ),
    ("aten::linear", "", "[[8192, 4096], [12288, 4096], []]", '["c10::BFloat16", "c10::BFloat16", ""]'),
    (
        "aten::scaled_dot_product_attention",
        _ATTENTION,
        "[[2, 32, 4096, 128], [2, 32, 4096, 128]]",
        '["c10::BFloat16", "c10::BFloat16"]',
    ),
    ("aten::linear", "", "[[8192, 4096], [4096, 4096], []]", '["c10::BFloat16", "c10::BFloat16", ""]'),
    (
        "aten::add_",
        _ELEMENTWISE,
        "[[2, 4096, 4096], [2, 4096, 4096], []]",
        '["c10::BFloat16", "c10::BFloat16", "Scalar"]',
    ),
    ("aten::linear", "", "[[8192, 4096], [16384, 4096], []]", '["c10::BFloat16", "c10::BFloat16", ""]'),
    ("aten::gelu", _ELEMENTWISE, "[[2, 4096, 16384], []]", '["c10::BFloat16", ""]'),
    ("aten::linear", "", "[[8192, 16384], [4096, 16384], []]", '["c10::BFloat16", "c10::BFloat16", ""]'),
]
_FUNCTIONS = [
    f"torch/nn/modules/module.py({n}): {name}" for n, name in ((1747, "_wrapped_call_impl"), (1755, "_call_impl"))
]
_FUNCTIONS += [
    f"model/{m}.py({40 + 7 * i}): {f}"
    for i, m in enumerate(("attention", "mlp", "block"))
    for f in ("forward", "inner")
]
_FUNCTIONS += [
    f"<built-in method {m} of Tensor object at 0x7f5a{i:08x}>" for i in range(60) for m in ("view", "transpose", "to")
]


class _Writer:
    """Writes events with the clocks and counters of one process."""

    def __init__(self, out: TextIO, rank: int, seed: int) -> None:
        self._out = out
        self._dice = random.Random(seed * 1000 + rank)
        self._rank = rank
        self._process = 21470 + rank
        self._host = self._device = 4_458_676_524_000_000
        self._external = self._correlation = self._python = self._index = 1
        self._after = ""
        self.written = 0

    def _event(self, head: str, ns: int, dur: int, args: str) -> None:
        text = (
            f'{self._after}  {{\n    "ph": "X", {head},\n    "ts": {ns // 1000}.{ns % 1000:03d}, '
            f'"dur": {dur // 1000}.{dur % 1000:03d},\n    "args": {{\n      {args}\n    }}\n  }}'
        )
        self._after = ",\n"
        self.written += self._out.write(text)

    def _on_host(self, category: str, name: str, dur: int, args: str) -> None:
        head = f'"cat": "{category}", "name": "{name}", "pid": {self._process}, "tid": {self._process}'
        self._event(head, self._host, dur, args)

    def function(self) -> None:
        """Write a Python function."""
        self._python += 1
        self._index += 1
        self._host += self._dice.randrange(300, 1500)
        name = self._dice.choice(_FUNCTIONS)
        args = f'"Python parent id": {self._python // 2}, "Python id": {self._python}, "Ev Idx": {self._index}'
        self._on_host("python_function", name, self._dice.randrange(2_000, 90_000), args)

    def op(self, name: str, kernel: str, shapes: str, types: str) -> None:
        """Write an operator, its launch and its kernel, and the arrow between them."""
        self._external += 1
        self._index += 1
        self._host += self._dice.randrange(500, 3000)
        args = (
            f'"External id": {self._external},"Record function id": 0, "Concrete Inputs": ["", "", ""], '
            f'"Input type": {types}, "Input Strides": [[16777216, 4096, 1], [4096, 1], []], '
            f'"Input Dims": {shapes}, "Ev Idx": {self._index}'
        )
        self._on_host("cpu_op", name, 18_000, args)
        self._launch(kernel or self._dice.choice(_GEMMS))

    def _launch(self, kernel: str, stream: int = 7, more: str = "") -> None:
        self._correlation += 1
        self._host += 4_000
        c = self._correlation
        self._on_host(
            "cuda_runtime",
            "cudaLaunchKernel",
            5_000,
            f'"External id": {self._external}, "cbid": 211, "correlation": {c}',
        )
        self._arrow("s", self._process, self._process, self._host)
        dur = self._dice.randrange(3_000, 400_000)
        self._device = max(self._device + 900, self._host + 6_000)
        grid = self._dice.choice((132, 264, 1024, 8192))
        args = (
            f'"External id": {self._external}, "queued": 0, "device": {self._rank}, "context": 1,\n      '
            f'"stream": {stream}, "correlation": {c},\n      "registers per thread": 168,\n      '
            f'"shared memory": 213504,\n      "blocks per SM": {grid / 132:.6f},\n      '
            f'"warps per SM": {grid / 33:.6f},\n      '
            f'"grid": [{grid}, 1, 1],\n      "block": [384, 1, 1],\n      "est. achieved occupancy %": 19{more}'
        )
        self._event(
            f'"cat": "kernel", "name": "{kernel}", "pid": {self._rank}, "tid": {stream}', self._device, dur, args
        )
        self._arrow("f", self._rank, stream, self._device)
        self._device += dur
        self._host += 9_000

    def _arrow(self, phase: str, process: int, thread: int, ns: int) -> None:
        bind = ', "bp": "e"' if phase == "f" else ""
        self.written += self._out.write(
            f'{self._after}  {{\n    "ph": "{phase}", "id": {self._correlation}, "pid": {process}, "tid": {thread}, '
            f'"ts": {ns // 1000}.{ns % 1000:03d},\n    "cat": "ac2g", "name": "ac2g"{bind}\n  }}'
        )

    def collective(self) -> None:
        """Write an all-reduce of 64 MB over eight ranks."""
        facts = (
            '"Collective name": "allreduce", "In msg nelems": 33554432, "Out msg nelems": 33554432, "Group size": 8, '
            '"dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
        )
        self._external += 1
        self._on_host("cpu_op", "record_param_comms", 21_000, f'"External id": {self._external}, {facts}')
        self._launch(_REDUCE, 20, f",\n      {facts}")

    def step(self, number: int, layers: int) -> None:
        """Write one step of training."""
        began = self._host
        for layer in range(layers):
            for op in _LAYER:
                for _ in range(2):
                    self.function()
                self.op(*op)
            if layer % 4 == 3:
                self.collective()
        ended, self._host = self._host, began
        self._on_host("user_annotation", f"ProfilerStep#{number}", ended - began, f'"External id": {number}')
        self._host = ended + 1000


def _header(rank: int) -> Iterator[str]:
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n'
    one = '"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017624576,\n      "warpSize": 32, "numSms": 132'
    yield ",\n".join(f'    {{\n      "id": {i}, {one}\n    }}' for i in range(8))
    yield f'\n  ],\n  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 8}},\n'
    yield '  "record_shapes": 1,\n  "with_stack": 1,\n  "traceEvents": [\n'


def generate(path: Path, megabytes: float, rank: int = 0, seed: int = 1) -> int:
    """Write a trace of at least so many MB and return its steps."""
    with path.open("w", buffering=1 << 20, encoding="utf-8") as out:
        for text in _header(rank):
            out.write(text)
        writer = _Writer(out, rank, seed)
        number = 0
        while number < 2 or writer.written < megabytes * 1e6:
            number += 1
            writer.step(number, layers=24)
        out.write(
            '\n  ],\n  "baseTimeNanoseconds": 1747000000000000000,\n  "displayTimeUnit": "ms",\n'
            '  "traceName": "made up"\n}\n'
        )
    return number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{given.out}: {generate(given.out, given.megabytes, given.rank, given.seed)} steps")
