"""Recompile the CUDA C sources of a folder to PTX beside them, with NVRTC; no GPU is needed.

    pip install nvidia-cuda-nvrtc-cu12 cuda-bindings
    python benchmarks/detailed/compile_cuda.py datasets/ptx/lenet

Each `NAME.cu` gives `NAME.ptx` for compute capability 7.0. The first line of the PTX names its source and the version
of NVRTC. Give files instead of a folder to compile only these.
"""

import re
import sys
from pathlib import Path

from cuda.bindings import nvrtc

ARCHITECTURE = "compute_70"


def compile_source(source: Path) -> str:
    """Return the PTX of a CUDA C source, under a line that names the source and the compiler.

    Parameters
    ----------
    source : Path
        CUDA C file; headers are looked up in its folder.

    Raises
    ------
    SystemExit
        The source does not compile; the message is the compiler's log.
    """
    options = [f"--gpu-architecture={ARCHITECTURE}".encode(), b"--std=c++17", f"-I{source.parent}".encode()]
    program = _result(nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], []))
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytearray(_result(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, log)
    message = log.rstrip(b"\0\n").decode()
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise SystemExit(f"{source}: {message}")
    if warnings := [line for line in message.splitlines() if "deprecated" not in line]:
        print("\n".join(warnings), file=sys.stderr)
    text = bytearray(_result(nvrtc.nvrtcGetPTXSize(program)))
    nvrtc.nvrtcGetPTX(program, text)
    major, minor = _result(nvrtc.nvrtcVersion())
    header = f"// Compiled from {source.name} by NVRTC {major}.{minor} for {ARCHITECTURE}.\n"
    return header + text.rstrip(b"\0").decode().strip() + "\n"


def _result(answer: tuple) -> object:
    """Return what a call of NVRTC gives, or stop at its error."""
    error, *values = answer
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise SystemExit(f"NVRTC: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def main(names: list[str]) -> None:
    """Compile the named files and the `.cu` files of the named folders."""
    paths = [Path(name) for name in names]
    sources = [file for path in paths for file in (sorted(path.glob("*.cu")) if path.is_dir() else [path])]
    if not sources:
        raise SystemExit(__doc__)
    for source in sources:
        ptx = compile_source(source)
        target = source.with_suffix(".ptx")
        target.write_text(ptx)
        entries = re.findall(r"\.entry (\w+)", ptx)
        print(f"{target.name}: {len(ptx) / 1000:.0f} kB, {', '.join(entries)}")


if __name__ == "__main__":
    main(sys.argv[1:])
