"""One recording of `torch.profiler`: prepared some iterations ahead, started, and written to a file or dropped."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from profilers.errors import DependencyError, InvalidInputError

__all__ = ["Window", "load_torch", "settings"]

#: Keyword arguments of ``torch.profiler.profile``.
Settings = dict[str, Any]


def load_torch() -> Any:
    """Return the module ``torch``.

    Raises
    ------
    DependencyError
        It is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise DependencyError("profile_at needs PyTorch; run: pip install 'seqpoint[torch]'") from error


def _default_activities(torch: Any) -> set[Any]:
    """Return the host, and the GPU where there is one."""
    kinds = torch.profiler.ProfilerActivity
    gpu = {kinds.CUDA} if torch.cuda.is_available() else set()
    return {kinds.CPU} | gpu


def settings(torch: Any, activities: Iterable[Any] | None, record_shapes: bool) -> Settings:
    """Return what each recording is made with."""
    chosen = _default_activities(torch) if activities is None else list(activities)
    if not chosen:
        raise InvalidInputError("activities is empty; leave it out, or name at least ProfilerActivity.CPU")
    return {"activities": chosen, "record_shapes": record_shapes}


class Window:
    """A recording that is being prepared or made.

    A profiler of its own for each recording, without a schedule: torch's schedules are periodic, and its steps
    are numbered from 0.

    Parameters
    ----------
    torch : module
    made_with : dict
        Keyword arguments of ``torch.profiler.profile``.

    Raises
    ------
    InvalidInputError
        Another profiler runs.
    """

    def __init__(self, torch: Any, made_with: Settings) -> None:
        if torch.autograd._profiler_enabled():  # torch itself would end that one without a word
            raise InvalidInputError("another torch profiler is recording; end it before profile_at")
        self._profile = torch.profiler.profile(**made_with)
        self.recording = False
        self._profile.prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        if not self.recording:
            self._profile.start_trace()
            self.recording = True

    def drop(self) -> None:
        """End it without a file."""
        self.start()  # torch ends only what was started
        self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """End it, waiting for the GPU, and put its trace at `path`, whole.

        Raises
        ------
        InvalidInputError
            The folder cannot be written.
        """
        self._profile.stop_trace()
        hidden = path.with_name(f".{path.name}")  # the reader passes over hidden files; torch packs what ends in .gz
        try:
            self._profile.export_chrome_trace(str(hidden))
            hidden.replace(path)
        except OSError as error:
            raise InvalidInputError(f"{path}: cannot be written ({error.strerror})") from error
        finally:
            hidden.unlink(missing_ok=True)
