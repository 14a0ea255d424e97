"""What the members of a scenario fight for, told from what they compute and move rather than from labels."""

from replay.contention.ceilings import Ceilings
from replay.contention.recording import ContentionRecording, RecordedScenario, RecordedWork

__all__ = ["MECHANISMS", "mechanism_of"]

#: In the order in which tables show them.
MECHANISMS = ("SM", "L2", "HBM", "copy engine", "host link")


def mechanism_of(recording: ContentionRecording, scenario: RecordedScenario, ceilings: Ceilings) -> str:
    """Return one of `MECHANISMS`.

    - ``"host link"``: two members or more cross the link to the host in one direction, whatever carries them.
    - ``"copy engine"``: a member is carried by an engine; what it takes from the others is memory bandwidth.
    - ``"L2"``: all others are bound by memory, and one of them goes over a buffer again that fits the cache.
    - ``"HBM"``: all are bound by memory, or they ask for more than all of its bandwidth together.
    - ``"SM"``: at least one is bound by arithmetic, and memory would do for all.

    Parameters
    ----------
    recording : ContentionRecording
    scenario : RecordedScenario
    ceilings : Ceilings
        Of the recording.
    """
    works = [recording.works[member.work] for member in scenario.members]
    ways = [work.direction for work in works if work.host_bytes]
    if any(ways.count(way) > 1 for way in ways):
        return "host link"
    if any(work.kind == "copy_engine" for work in works):
        return "copy engine"
    inside = [work for work in works if not work.host_bytes]
    if len(inside) > 1 and all(ceilings.bound_by_memory(work) for work in inside):
        cache = recording.device.l2_bytes or 0
        return "L2" if any(work.working_set_bytes <= cache for work in inside) else "HBM"
    asked = sum(_share_of_memory(recording, work, ceilings) for work in works)
    return "HBM" if asked > 1 else "SM"


def _share_of_memory(recording: ContentionRecording, work: RecordedWork, ceilings: Ceilings) -> float:
    """Return what of the measured bandwidth a work uses alone; none where its buffer fits the cache."""
    if not ceilings.memory_bytes_per_s or work.working_set_bytes <= (recording.device.l2_bytes or 0):
        return 0.0
    rate = work.bytes_moved / (recording.alone_ns(work.name) / 1e9)
    return rate / ceilings.memory_bytes_per_s
