"""Every error of the library, by what the caller does about it.

DatastatesError
├── UsageError (ValueError)              fix the call
│   └── UnknownNameError (LookupError)   fix the name of a tier or provider
├── StateError                           fix the state that was handed in
│   ├── UnsupportedValueError (TypeError)
│   ├── NestingError (ValueError)
│   └── ChangedError (RuntimeError)      fence() before you change what is lazy
├── MismatchError (ValueError)           the target and the checkpoint differ
├── UntrustedError (PermissionError)     only with ``trust=True``
├── UnknownClassError (LookupError)      import the class first
├── NoMemoryError (MemoryError)          restore less of it, or into memory that is there
├── StepNotFoundError (LookupError)      no such step, or none at all
├── ClosedError (RuntimeError)           the checkpointer was closed
├── SaveError                            this checkpoint was lost, training was not
│   ├── SaveTimeoutError (TimeoutError)
│   └── SaveSkippedError                 given up, as `busy` asks
└── StorageError                         the storage's fault
    ├── StorageTimeoutError (TimeoutError)
    ├── NoSpaceError (OSError)
    ├── NewerFormatError                 upgrade: a later version wrote this
    └── CorruptError                     the bytes are not those that were saved
        └── FormatError                  what lies there is not a checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ChangedError",
    "ClosedError",
    "CorruptError",
    "DatastatesError",
    "FormatError",
    "MismatchError",
    "NestingError",
    "NewerFormatError",
    "NoMemoryError",
    "NoSpaceError",
    "SaveError",
    "SaveSkippedError",
    "SaveTimeoutError",
    "StateError",
    "StepNotFoundError",
    "StorageError",
    "StorageTimeoutError",
    "UnknownClassError",
    "UnknownNameError",
    "UnsupportedValueError",
    "UntrustedError",
    "UsageError",
]


class DatastatesError(Exception):
    """Root of all errors that this library raises on purpose."""


class UsageError(DatastatesError, ValueError):
    """The call itself is wrong; nothing was done."""


class UnknownNameError(UsageError, LookupError):
    """No tier or provider of that name is installed."""


class StateError(DatastatesError):
    """A value in the state cannot be saved; raised before anything is written."""

    key: str
    """Where the value sits in the state, as a readable path."""

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class UnsupportedValueError(StateError, TypeError):
    """A value that no provider can store exactly."""


class NestingError(StateError, ValueError):
    """A container that contains itself, or nests too deep."""


class ChangedError(StateError, RuntimeError):
    """A tensor that was to be copied later changed before it was; the cause of a failed save."""


class MismatchError(DatastatesError, ValueError):
    """The target of a strict restore and the checkpoint have different keys, shapes or dtypes."""

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)


class UntrustedError(DatastatesError, PermissionError):
    """The checkpoint holds a pickle, and the reader did not say that it trusts the files."""


class UnknownClassError(DatastatesError, LookupError):
    """A value's class is not loaded here; the reader never imports on a checkpoint's word."""


class NoMemoryError(DatastatesError, MemoryError):
    """There is no memory for a value that is to be restored; its path is named."""


class StepNotFoundError(DatastatesError, LookupError):
    """The step asked for, or any step at all, is not there."""

    def __init__(self, message: str, *, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class ClosedError(DatastatesError, RuntimeError):
    """The checkpointer was closed before this call."""


class SaveError(DatastatesError):
    """One save failed: its step does not exist, earlier ones do, and training may go on."""

    def __init__(self, message: str, *, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class SaveTimeoutError(SaveError, TimeoutError):
    """A save did not get as far as was asked for within the time given; it may still go on."""


class SaveSkippedError(SaveError):
    """A save was given up for the trainer's sake, or for a newer one, as `busy` asks."""


class StorageError(DatastatesError):
    """The storage refused or failed; ``__cause__`` has the system's own words."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The storage did not answer by the deadline."""


class NoSpaceError(StorageError, OSError):
    """There is no room for the step."""


class NewerFormatError(StorageError):
    """A later version wrote this; it is not damaged, so no older step is taken in its place."""


class CorruptError(StorageError):
    """Stored bytes are missing, short, or fail their checksum."""

    def __init__(self, message: str, *, key: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.step = step


class FormatError(CorruptError):
    """What lies there does not follow the format."""
