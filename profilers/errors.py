"""The few errors of the toolkit: each message says what, where, and what to do next."""


class SeqPointError(Exception):
    """Base of every error that a user can cause; the command line prints it as one line."""


class NotFoundError(SeqPointError):
    """A file, folder, device or name that was asked for does not exist."""


class UnknownFormatError(SeqPointError):
    """A file exists and no reader knows its format."""


class DependencyError(SeqPointError):
    """A reader or feature needs a package that is not installed."""


class BrokenFileError(SeqPointError):
    """A file has a known format and its content is damaged beyond repair."""


class InvalidInputError(SeqPointError):
    """An argument, or the data given to a model, is outside what it accepts."""


class WorkerError(SeqPointError):
    """A process of several that share the work ended before its task."""
