"""Checkpoint storage for training: asynchronous, crash-safe, exact, and open as Zarr.

import datastates as ds

ckpt = ds.Checkpointer("runs/gpt", keep_last=3)
ckpt.save_async({"model": model, "optim": opt, "rng": ds.RNG(), "step": 100}, step=100)
ckpt.restore(into={"model": model, "optim": opt, "rng": ds.RNG(), "step": 0})
"""

from __future__ import annotations

from . import zarr_dtypes as _zarr_dtypes
from .checkpointer import Checkpointer, StepInfo
from .default import configure, restore, save_async
from .device import Device, Event, Transfer
from .errors import (
    ChangedError,
    ClosedError,
    CorruptError,
    DatastatesError,
    FormatError,
    MismatchError,
    NestingError,
    NewerFormatError,
    NoMemoryError,
    NoSpaceError,
    SaveError,
    SaveSkippedError,
    SaveTimeoutError,
    StateError,
    StepNotFoundError,
    StorageError,
    StorageTimeoutError,
    UnknownClassError,
    UnknownNameError,
    UnsupportedValueError,
    UntrustedError,
    UsageError,
)
from .provider import ArrayLeaf, LeafRef, Loader, Memory, Provider, Saver, Watch
from .recovery import Recovery
from .save import Save, SaveStats, SaveStatus
from .saving import Statistics
from .tier import Damage, DurableTier, Entry, Incomplete, Record, StepReader, StepWriter, Tier
from .values import RNG, Pickled
from .verification import VerifyReport

_zarr_dtypes.register()

__version__ = "0.1.0"

__all__ = [
    "RNG",
    "ArrayLeaf",
    "ChangedError",
    "Checkpointer",
    "ClosedError",
    "CorruptError",
    "Damage",
    "DatastatesError",
    "Device",
    "DurableTier",
    "Entry",
    "Event",
    "FormatError",
    "Incomplete",
    "LeafRef",
    "Loader",
    "Memory",
    "MismatchError",
    "NestingError",
    "NewerFormatError",
    "NoMemoryError",
    "NoSpaceError",
    "Pickled",
    "Provider",
    "Record",
    "Recovery",
    "Save",
    "SaveError",
    "SaveSkippedError",
    "SaveStats",
    "SaveStatus",
    "SaveTimeoutError",
    "Saver",
    "StateError",
    "Statistics",
    "StepInfo",
    "StepNotFoundError",
    "StepReader",
    "StepWriter",
    "StorageError",
    "StorageTimeoutError",
    "Tier",
    "Transfer",
    "UnknownClassError",
    "UnknownNameError",
    "UnsupportedValueError",
    "UntrustedError",
    "UsageError",
    "VerifyReport",
    "Watch",
    "configure",
    "restore",
    "save_async",
]
