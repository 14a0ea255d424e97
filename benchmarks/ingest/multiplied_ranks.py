"""Multiply the eight Kineto files of a sharded job into a job of many nodes, with a slow card, node and link put in.

    python benchmarks/ingest/multiplied_ranks.py FOLDER OUT --nodes 128

FOLDER holds the files of one node, one a rank, as they were recorded. Each node of the new job is a copy. Its large
collectives stay in the node. The small ones run across nodes, between the ranks with the same place in their node, as
in hybrid sharding. So nodes wait for each other once or twice a step.

Three defects are put in. The kernels of one card take 1.25 times as long; those of all cards of one node 1.15 times;
the transfers of one node's collectives 2 times. Time is then played forward: a collective starts on a rank when the
work before it is done, and ends on all ranks when the last has started it and the transfer is done.
"""

import argparse
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

#: Elements below which a collective runs across nodes.
SMALL = 2000
CARD, NODE, LINK = 1.25, 1.15, 2.0


def read(path: Path) -> dict[str, Any]:
    """Return the content of a packed Kineto file."""
    with gzip.open(path) as stream:
        return dict(json.load(stream))


def is_collective(event: dict[str, Any]) -> bool:
    """Return whether an event is the kernel of a collective whose call was recorded; earlier ones stay as they are."""
    return event.get("cat") == "kernel" and "Process Group Name" in event["args"]


def played(start: np.ndarray, end: np.ndarray, across: np.ndarray, slow: np.ndarray, link: np.ndarray) -> Any:
    """Return the starts and ends of all collectives in the new job, us.

    Parameters
    ----------
    start, end : array, shape (cards, collectives)
        As recorded in one node.
    across : array of bool, shape (collectives,)
        Whether a collective runs across nodes.
    slow : array, shape (nodes, cards)
        Factor of the time between collectives.
    link : array, shape (nodes,)
        Factor of the transfers within a node.
    """
    nodes, cards = slow.shape
    new = np.zeros((2, nodes, cards, start.shape[1]))
    at, reached = np.broadcast_to(start[:, 0], (nodes, cards)).copy(), start[:, 0].copy()
    for k in range(start.shape[1]):
        began = at + (start[:, k] - reached) * slow
        transfer = (end[:, k] - start[:, k].max()).clip(1.0)
        if across[k]:
            ended = np.broadcast_to(began.max(axis=0), began.shape) + transfer
        else:
            ended = began.max(axis=1, keepdims=True) + transfer * link[:, None]
        new[0, :, :, k], new[1, :, :, k] = began, ended
        at, reached = ended, end[:, k]
    return new


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--card", type=int, default=203, help="rank of the slow card")
    parser.add_argument("--node", type=int, default=40, help="the slow node")
    parser.add_argument("--link", type=int, default=77, help="the node with slow links")
    given = parser.parse_args()
    recorded = [read(path) for path in sorted(given.folder.glob("*.json.gz"))]
    cards = len(recorded)
    rows = [sorted(filter(is_collective, each["traceEvents"]), key=lambda e: float(e["ts"])) for each in recorded]
    if len({len(each) for each in rows}) > 1:
        parser.error("the ranks have different numbers of collectives with a group")
    start = np.array([[float(e["ts"]) for e in each] for each in rows])
    end = start + np.array([[float(e["dur"]) for e in each] for each in rows])
    across = np.array([event["args"]["In msg nelems"] < SMALL for event in rows[0]])
    slow, link = np.ones((given.nodes, cards)), np.ones(given.nodes)
    slow[given.node % given.nodes] = NODE
    slow[np.unravel_index(given.card % slow.size, slow.shape)] = CARD
    link[given.link % given.nodes] = LINK
    new = played(start, end, across, slow, link)
    given.out.mkdir(parents=True, exist_ok=True)
    for node in range(given.nodes):
        for card, content in enumerate(recorded):
            rank = node * cards + card
            times = np.stack([start[card], end[card]], axis=1).ravel(), new[:, node, card].T.ravel()
            content = renamed(content, rank, (given.nodes, cards))
            warp(content["traceEvents"], times, slow[node, card], {id(e) for e in content["collectives"]})
            del content["collectives"]
            text = json.dumps(content, separators=(",", ":")).encode()
            target = given.out / f"rank{rank:04d}.json.gz"
            target.write_bytes(gzip.compress(text, compresslevel=1))


def renamed(content: dict[str, Any], rank: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Return a copy of a file as that of another rank, with the groups of the new job."""
    nodes, cards = shape
    node, card = divmod(rank, cards)
    copied = copy.copy(content)
    copied["traceEvents"] = [{**event, "args": dict(event.get("args", {}))} for event in content["traceEvents"]]
    within, between = list(range(node * cards, (node + 1) * cards)), list(range(card, nodes * cards, cards))
    copied["distributedInfo"] = {**content["distributedInfo"], "rank": rank, "world_size": nodes * cards}
    copied["distributedInfo"]["pg_config"] = [
        {"pg_name": f"shard{node}", "pg_desc": "mesh_dp_shard", "pg_size": cards, "ranks": within},
        {"pg_name": f"replicate{card}", "pg_desc": "mesh_dp_replicate", "pg_size": nodes, "ranks": between},
    ]
    for event in copied["traceEvents"]:
        args = event["args"]
        if "Process Group Name" in args:
            is_small = args.get("In msg nelems", 0) < SMALL
            ranks = between if is_small else within
            args["Process Group Name"] = f"replicate{card}" if is_small else f"shard{node}"
            args["Process Group Description"] = "mesh_dp_replicate" if is_small else "mesh_dp_shard"
            args["Group size"] = len(ranks)
            args["Process Group Ranks"] = as_recorded(ranks)
    copied["collectives"] = [event for event in copied["traceEvents"] if is_collective(event)]
    return copied


def as_recorded(ranks: list[int]) -> str:
    """Return a list of ranks as PyTorch writes it: truncated beyond 30."""
    return str(ranks) if len(ranks) <= 30 else f"[{', '.join(map(str, ranks[:29]))}, ..., {ranks[-1]}]"


def warp(events: list[dict[str, Any]], times: Any, slow: float, collectives: set[int]) -> None:
    """Move the events of a rank to their new times."""
    old, new = times
    old = np.maximum.accumulate(old)
    first, last = new[0] - old[0], new[-1] - old[-1]
    for event in events:
        if "ts" not in event:
            continue
        ts = float(event["ts"])
        moved = ts + first if ts < old[0] else ts + last if ts > old[-1] else float(np.interp(ts, old, new))
        event["ts"] = round(moved, 3)
        if "dur" not in event:
            continue
        dur, until = float(event["dur"]), ts + float(event["dur"])
        if id(event) in collectives or event.get("cat") in ("user_annotation", "gpu_user_annotation"):
            end = until + first if until < old[0] else until + last if until > old[-1] else np.interp(until, old, new)
            event["dur"] = round(float(end) - moved, 3)
        elif event.get("cat") == "kernel":
            event["dur"] = round(dur * slow, 3)
    on_device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    free: dict[int, float] = {}
    for event in sorted(on_device, key=lambda e: float(e["ts"])):
        stream = event["args"]["stream"]
        if id(event) not in collectives:
            event["ts"] = round(max(event["ts"], free.get(stream, 0.0)), 3)
        free[stream] = max(event["ts"] + event["dur"], free.get(stream, 0.0))


if __name__ == "__main__":
    main()
