"""Let an iterator work ahead in a thread of its own, so that reading and converting overlap."""

from collections.abc import Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

__all__ = ["ahead"]

Item = TypeVar("Item")
_WAIT_S = 0.1


def ahead(items: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """Yield what `items` yields, while a thread prepares the next ones.

    Parameters
    ----------
    items : iterator
        Used by that thread alone; what it raises is raised here.
    depth : int
        Items that may wait.

    Examples
    --------
    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    queue: Queue[tuple[Item | None, BaseException | None]] = Queue(depth)
    stop = Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not stop.is_set():
            try:
                return queue.put((item, error), timeout=_WAIT_S)
            except Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if stop.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised again by the consumer
            put(None, error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
