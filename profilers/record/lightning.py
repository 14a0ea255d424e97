"""Hooks by which Lightning drives a log or a profiler; Lightning itself is imported only to make its callback."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from profilers.errors import DependencyError
from profilers.record.log import IterationLog

__all__ = ["LightningHooks", "Steps", "lightning_callback"]


class Steps(Protocol):
    """What counts iterations: an `IterationLog` or a `PointProfiler`."""

    def iteration(self, *, sequence_length: int, batch: int | None = None) -> AbstractContextManager[Any]:
        """Return the context of one iteration."""


class LightningHooks:
    """Lightning's hooks of training, each with Lightning's arguments.

    For a loop or trainer that calls hooks of this shape; for Lightning's own ``Trainer`` use
    `lightning_callback`. A batch that begins and does not end (skipped, or it raised) is not logged, but counted.

    Parameters
    ----------
    steps : IterationLog or PointProfiler
        Open; the hooks do not close it.
    length_of : callable
        Returns the sequence length of a batch, tokens.
    batch_of : callable, optional
        Returns how many sequences a batch has.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, IterationLog(f"{folder}/log.csv") as log:
    ...     hooks = LightningHooks(log, length_of=len)
    ...     hooks.on_train_batch_start(None, None, [5, 2, 9], 0)
    ...     hooks.on_train_batch_end(None, None, None, [5, 2, 9], 0)
    ...     hooks.on_train_epoch_end(None, None)
    ...     print((Path(folder) / "log.csv").read_text())
    iteration,sequence_length,duration_ns
    0,3,...
    """

    def __init__(
        self, steps: Steps, length_of: Callable[[Any], int], batch_of: Callable[[Any], int] | None = None
    ) -> None:
        self._steps = steps
        self._length_of = length_of
        self._batch_of = batch_of
        self._open: AbstractContextManager[Any] | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin an iteration."""
        self._abandon()
        size = None if self._batch_of is None else self._batch_of(batch)
        opened = self._steps.iteration(sequence_length=self._length_of(batch), batch=size)
        opened.__enter__()
        self._open = opened

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End it."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Write what is logged so far."""
        self._abandon()
        if isinstance(self._steps, IterationLog):
            self._steps.flush()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Give up an iteration that is open."""
        self._abandon()

    def _abandon(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            reason = GeneratorExit()
            opened.__exit__(GeneratorExit, reason, None)


def lightning_callback(
    steps: Steps, length_of: Callable[[Any], int], batch_of: Callable[[Any], int] | None = None
) -> Any:
    """Return a ``Callback`` for ``Trainer(callbacks=[...])`` of ``lightning`` or ``pytorch_lightning``.

    ::

        with IterationLog("log.csv") as log:
            callback = lightning_callback(log, length_of=lambda batch: batch["input_ids"].shape[1])
            Trainer(max_epochs=1, callbacks=[callback]).fit(model, loader)

    Lightning asks every callback for every hook, so that it takes only subclasses of its own class, which is made
    here. The iteration is what Lightning does between its hooks: without the loading of data.

    Parameters
    ----------
    steps, length_of, batch_of
        As for `LightningHooks`.

    Raises
    ------
    DependencyError
        Lightning is not installed.
    """
    hooks = LightningHooks(steps, length_of, batch_of)
    names = [name for name in vars(LightningHooks) if name.startswith("on_")]
    return type("SeqPointCallback", (_callback_class(),), {name: getattr(hooks, name) for name in names})()


def _callback_class() -> Any:
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(package).Callback
        except ImportError:
            continue
    raise DependencyError("lightning_callback needs Lightning; run: pip install lightning")
