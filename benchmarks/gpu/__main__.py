"""Record one GPU: ``python -m benchmarks.gpu --output DIR``."""

import argparse
import fcntl
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu import environment
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.pack import COMMAND, JOURNAL, can_pack, pack
from benchmarks.gpu.plan import BY_DEFAULT, Plan, parts_of, plan
from benchmarks.gpu.ptx_launches import FOLDER
from benchmarks.gpu.run import (
    DeviceLostError,
    Outcome,
    Progress,
    Session,
    Stop,
    hangs_no_longer_than,
    note_death,
    ordered,
    record,
)
from benchmarks.gpu.sizes import SIZES
from benchmarks.gpu.step import Machine, Step
from profilers.errors import InvalidInputError, SeqPointError

__all__ = ["main"]

DONE, ERROR, TO_BE_CONTINUED, WITH_FAILURES, INTERRUPTED = 0, 1, 3, 4, 130
#: Finding out what a device can takes longer than this only where something hangs.
START_SECONDS = 180.0
EXITS = """exit status: 0 all is recorded; 1 an error, one line says which; 2 usage; 3 time was up, or the device has to
be taken up by a fresh process: the same command goes on; 4 all is recorded but steps that failed, which the same
command tries again; 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    begun = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        if options.pack:
            if options.output is None or not options.output.is_dir():
                raise InvalidInputError("--pack needs --output and the folder of a recording")
            # A journal that is being written must not be mended under the hands of the writer.
            with _locked(options.output):
                return _packed(options.output, options.to)
        with Stop().listening() as stop:
            return _recorded(options, stop, begun)
    except (SeqPointError, OSError, ValueError, DeviceLostError) as error:
        _say(f"error: {error}")
        return TO_BE_CONTINUED if isinstance(error, DeviceLostError) else ERROR
    except KeyboardInterrupt:
        _say("interrupted; the same command goes on")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__, epilog=EXITS)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write into, or to go on in")
    parser.add_argument("--minutes", type=_minutes, default=8.0, help="that this call may take (default 8)")
    parser.add_argument("--take", type=_whole, help="which recording of the plan (default: the last, or 0)")
    parser.add_argument("--parts", type=_parts, default=BY_DEFAULT, help=f"of the plan (default {BY_DEFAULT})")
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="how much (default full)")
    parser.add_argument("--seed", type=_whole, default=0, help="of the order within parts a and a2 (default 0)")
    parser.add_argument(
        "--device",
        default="cuda:0",
        help="as PyTorch writes it; cpu records the CPU in the place of a GPU (default cuda:0)",
    )
    parser.add_argument(
        "--without",
        default="",
        metavar="FEATURES",
        help="not to be tried: triton, pinned, copy_engine, partitions, profiler, ptx",
    )
    parser.add_argument(
        "--ptx", type=Path, default=FOLDER, metavar="DIR", help="with the plans of part g (default datasets/ptx)"
    )
    parser.add_argument("--plan", action="store_true", help="print what would be recorded, and record nothing")
    parser.add_argument("--pack", action="store_true", help="only write the tables of what is recorded")
    parser.add_argument("--to", type=Path, metavar="DIR", help="with --pack: another folder, for all but the journal")
    return parser


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 < (minutes := float(text)) <= 24 * 60:
            return minutes
    raise argparse.ArgumentTypeError(f"{text!r}: more than 0 and at most 1440 minutes")


def _whole(text: str) -> int:
    with suppress(ValueError):
        if 0 <= (number := int(text)) < 2**31:
            return number
    raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 0")


def _parts(text: str) -> str:
    try:
        parts_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _recorded(options: argparse.Namespace, stop: Stop, begun: float) -> int:
    with hangs_no_longer_than(START_SECONDS):
        machine = _machine(options)
        facts = machine.facts()
    planned = plan(facts, options.size, options.seed, parts=options.parts, ptx=options.ptx)
    steps, left_out = _chosen(planned, machine)
    if options.plan:
        print(_summary(steps, left_out, planned))
        return DONE
    if options.output is None:
        raise InvalidInputError("--output is missing; give a folder to write into")
    options.output.mkdir(parents=True, exist_ok=True)
    about = {"device": facts, "plan": {"size": options.size, "seed": options.seed}}
    with _locked(options.output):
        journal = Journal(options.output / JOURNAL, _take(options))
        note_death(options.output, journal, steps)
        session = Session(machine, journal, options.output, stop, Progress(sys.stderr, ordered(steps, journal)))
        return _go(session, steps, {**about, "left_out": _counted(left_out)}, options, begun)


def _go(
    session: Session, steps: Sequence[Step], about: Mapping[str, Any], options: argparse.Namespace, begun: float
) -> int:
    pending = ordered(steps, session.journal)
    take = session.journal.take
    if not pending:
        _say(f"take {take} is complete; --take {take + 1} records the plan again")
        return _packed_or_told(options.output, DONE)
    started = {"minutes": options.minutes, "parts": options.parts, "state_before": session.machine.state()}
    environment.begin(options.output, take, about, started | {"versions": environment.versions()})
    try:
        outcome = record(session, pending, 60 * options.minutes, lambda: time.monotonic() - begun)
        environment.end(options.output, take, session.machine.state())
    except DeviceLostError as error:
        raise DeviceLostError(f"{error}; the same command goes on in a fresh process") from error
    return _told(session, outcome, options.output)


def _told(session: Session, outcome: Outcome, output: Path) -> int:
    """Say what became of the steps; return the exit status."""
    _say(f"take {session.journal.take}: {len(outcome.recorded)} steps recorded, {len(outcome.failed)} failed, "
         f"{len(outcome.left)} left")  # fmt: skip
    if outcome.interrupted:
        _say("interrupted; the same command goes on")
        return INTERRUPTED
    if outcome.left:
        _say(f"{len(outcome.left)} steps remain for lack of time; the same command goes on")
        return TO_BE_CONTINUED
    return _packed_or_told(output, WITH_FAILURES if session.journal.failed else DONE)


def _packed_or_told(output: Path, status: int) -> int:
    if can_pack():
        _packed(output)
    else:
        _say(f"the tables are not written yet: no pyarrow here; where it is, run: {COMMAND}")
    return status


def _packed(output: Path, target: Path | None = None) -> int:
    for path, rows in pack(output, target).items():
        _say(f"{path}: {rows} rows")
    return DONE


def _machine(options: argparse.Namespace) -> Machine:
    device = options.device
    try:
        if device == "cpu":
            from benchmarks.gpu.cpu import CpuMachine

            return CpuMachine()
        from benchmarks.gpu.gpu import GpuMachine

        return GpuMachine(device, frozenset(filter(None, options.without.split(","))))
    except ImportError as error:
        raise InvalidInputError(f"recording {device} needs what is not installed ({error})") from error
    except RuntimeError as error:
        raise InvalidInputError(f"{device}: cannot be used ({error})") from error


def _chosen(planned: Plan, machine: Machine) -> tuple[list[Step], list[tuple[str, str]]]:
    """Return the steps that the machine can, and what is left out, with the missing features."""
    lacking = [(step.key, ", ".join(sorted(step.needs - machine.features))) for step in planned.steps]
    left_out = [*planned.left_out, *((key, missing) for key, missing in lacking if missing)]
    return [step for step, (_, missing) in zip(planned.steps, lacking, strict=True) if not missing], left_out


def _counted(left_out: Sequence[tuple[str, str]]) -> dict[str, int]:
    return dict(sorted(Counter(missing for _, missing in left_out).items()))


def _summary(steps: Sequence[Step], left_out: Sequence[tuple[str, str]], planned: Plan) -> str:
    lines = [f"{'part':4} {'steps':>6} {'seconds':>8}"]
    for part in sorted({step.part for step in steps}):
        mine = [step for step in steps if step.part == part]
        lines.append(f"{part:4} {len(mine):6} {sum(step.seconds for step in mine):8.0f}")
    scenarios = [scenario for group in planned.groups for scenario in group.scenarios]
    lines.append(f"{len(scenarios)} scenarios, {sum(len(s.members) == 2 for s in scenarios)} of them of two works, in "
                 f"{len(planned.groups)} groups")  # fmt: skip
    lines += [f"left out for want of {missing}: {count}" for missing, count in _counted(left_out).items()]
    return "\n".join(lines)


def _take(options: argparse.Namespace) -> int:
    if options.take is not None:
        return int(options.take)
    takes = environment.read_takes(options.output) if options.output else []
    return max((entry["take"] for entry in takes), default=0)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder; the lock goes with the process."""
    # Nothing is written, and if it is a link, what it points at stays as it is.
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(f"{folder}: another process records into it; wait for it to end") from error
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
