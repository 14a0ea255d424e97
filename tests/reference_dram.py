"""A DRAM of plain Python that looks at every cycle, with the rules of `replay.memory.controller`.

A queued request is (address, row, bank, whether it writes). It is slow: for a few hundred requests.
"""

from collections import deque
from collections.abc import Sequence

from replay.memory.dram import Dram


class Bank:
    """State of a bank, with its queue and the earliest cycles of its commands."""

    def __init__(self) -> None:
        self.row, self.hits, self.queue = -1, 0, []
        self.activate = self.column = self.precharge = 0

    def wish(self, position, t, may):
        """Return the command that the request at a position would issue now, or "" for none."""
        _, row, _, is_write = self.queue[position]
        if self.row < 0:
            return "activate" if t >= max(self.activate, may["activate"]) else ""
        if self.row == row:
            return "column" if t >= max(self.column, may["write" if is_write else "read"]) else ""
        waiting = any(entry[1] == self.row for entry in self.queue)
        if position == 0 and t >= self.precharge and (not waiting or self.hits >= 4):
            return "precharge"
        return ""


class Channel:
    """A channel that issues commands cycle by cycle."""

    def __init__(self, dram: Dram) -> None:
        self.dram, self.n = dram, {item: dram.cycles(getattr(dram.timing, item)) for item in vars(dram.timing)}
        self.banks = [Bank() for _ in range(dram.bank_groups * dram.banks)]
        self.last: list[tuple[int, str, int]] = []  # (cycle, kind, group) of earlier commands
        self.reads, self.writes, self.turn, self.draining, self.due = [], [], 0, 0, 0
        self.pending_reads: dict[int, list[int]] = {}
        self.pending_writes: set[int] = set()
        self.counts = dict.fromkeys(("read_hits", "write_hits", "activates", "precharges", "refreshes", "latency"), 0)
        self.end = 0

    def earliest(self, group):
        """Return the earliest cycles of commands to a bank group, by the earlier commands of the channel."""
        n, burst = self.n, int(self.dram.burst_cycles)
        may = {"activate": 0, "read": 0, "write": 0}
        for t, kind, other in self.last[-64:]:
            same = "l" if other == group else "s"
            if kind == "activate":
                gaps = {"activate": n[f"rrd_{same}_ns"]}
            elif kind == "read":
                gaps = {"read": max(burst, n[f"ccd_{same}_ns"])}
                gaps["write"] = n["cl_ns"] + burst - n["cwl_ns"] + n["rtw_ns"]
            else:
                gaps = {"write": max(burst, n[f"ccd_{same}_ns"])}
                gaps["read"] = n["cwl_ns"] + burst + n[f"wtr_{same}_ns"]
            for name, gap in gaps.items():
                may[name] = max(may[name], t + gap)
        activates = [t for t, kind, _ in self.last if kind == "activate"]
        if len(activates) >= 4:
            may["activate"] = max(may["activate"], activates[-4] + n["faw_ns"])
        return may

    def issue(self, b, position, command, t):
        n, bank, group = self.n, self.banks[b], b // self.dram.banks
        left = []
        if command == "precharge":
            self.close(bank, t)
        elif command == "activate":
            bank.row, bank.hits = bank.queue[position][1], 0
            bank.activate = t + n["ras_ns"] + n["rp_ns"]
            bank.column, bank.precharge = t + n["rcd_ns"], t + n["ras_ns"]
            self.last.append((t, "activate", group))
            self.counts["activates"] += 1
        else:
            address, _, _, is_write = bank.queue.pop(position)
            kind = "write" if is_write else "read"
            self.counts[f"{kind}_hits"] += bank.hits > 0
            bank.hits += 1
            data = t + n["cwl_ns" if is_write else "cl_ns"] + int(self.dram.burst_cycles)
            bank.precharge = max(bank.precharge, data + n["wr_ns"] if is_write else t + n["rtp_ns"])
            self.end = max(self.end, data)
            if is_write:
                self.pending_writes.remove(address)
            else:
                added = self.pending_reads.pop(address)
                self.counts["latency"] += sum(data - entry for entry in added)
                left = [data + 1] * len(added)
            if self.dram.page == "closed":
                self.close(bank, bank.precharge)
            self.last.append((t, kind, group))
        return left

    def close(self, bank, t):
        bank.row, bank.hits, bank.activate = -1, 0, max(bank.activate, t + self.n["rp_ns"])
        self.counts["precharges"] += 1

    def refresh(self, t):
        for bank in self.banks:
            if bank.row >= 0 and bank.precharge <= t:
                return self.close(bank, t)
        if all(bank.row < 0 and bank.activate <= t for bank in self.banks):
            for bank in self.banks:
                bank.activate = t + self.n["rfc_ns"]
            self.due -= 1
            self.counts["refreshes"] += 1
        return None

    def choose(self, t):
        for step in range(1, len(self.banks) + 1):
            b = (self.turn + step) % len(self.banks)
            may = self.earliest(b // self.dram.banks)
            for position in range(len(self.banks[b].queue)):
                if command := self.banks[b].wish(position, t, may):
                    self.turn = b
                    return b, position, command
        return None

    def tick(self, t, final):
        """Do the commands of a cycle; return the cycles in which requests leave the window."""
        left = []
        if t > 0 and self.n["refi_ns"] and t % self.n["refi_ns"] == 0:
            self.due += 1
        if self.due:
            self.refresh(t)
        elif chosen := self.choose(t):
            left += self.issue(*chosen, t)
            second = self.choose(t) if self.dram.command_buses == 2 else None
            if second and (second[2] == "column") != (chosen[2] == "column"):
                left += self.issue(*second, t)
        self.schedule(final)
        return left

    def schedule(self, final):
        idle = not any(bank.queue for bank in self.banks)
        full = len(self.writes) >= self.dram.queue
        if not self.draining and (full or (len(self.writes) > 8 and idle) or (final and not self.reads)):
            self.draining = len(self.writes)
        for source in [self.writes, self.reads] if self.draining else [self.reads]:
            for entry in source:
                if len(self.banks[entry[2]].queue) < self.dram.commands:
                    if entry[3]:
                        self.draining -= 1
                        if entry[0] in self.pending_reads:
                            self.draining = 0
                            break
                    source.remove(entry)
                    self.banks[entry[2]].queue.append(entry)
                    return
            if self.draining:
                return


def simulate(dram: Dram, requests: Sequence[tuple[int, int, int, int, int]], window: int, entering: int = 8):
    """Serve requests (channel, address, row, bank, is_write); return the cycles and the counts of all channels."""
    channels = [Channel(dram) for _ in range(dram.channels)]
    left: dict[int, int] = {}
    waiting, coming, inside, t = [], deque(requests), 0, 0
    while True:
        inside -= left.pop(t, 0)
        while coming and inside < window:
            waiting.append(coming.popleft())
            inside += 1
        entered = 0
        for request in list(waiting):
            c, address, row, bank, is_write = request
            channel = channels[c]
            queue = channel.writes if is_write else channel.reads
            if entered == entering or len(queue) >= dram.queue:
                continue
            entered += 1
            waiting.remove(request)
            entry = (address, row, bank, is_write)
            if address in channel.pending_writes:
                left[t + 2] = left.get(t + 2, 0) + 1
                channel.counts["latency"] += 1 - is_write
            elif is_write:
                channel.pending_writes.add(address)
                queue.append(entry)
                left[t + 2] = left.get(t + 2, 0) + 1
            elif address in channel.pending_reads:
                channel.pending_reads[address].append(t)
            else:
                channel.pending_reads[address] = [t]
                queue.append(entry)
        idle = all(not (x.reads or x.writes or any(b.queue for b in x.banks)) for x in channels)
        if not coming and inside == 0 and idle:
            break
        for channel in channels:
            for cycle in channel.tick(t, final=not coming and inside < window):
                left[cycle] = left.get(cycle, 0) + 1
        t += 1
    counts = {name: sum(channel.counts[name] for channel in channels) for name in channels[0].counts}
    return max(channel.end for channel in channels), counts
