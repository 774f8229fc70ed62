"""Which layout a step gets where the user leaves it to us."""

from __future__ import annotations

import os
from pathlib import Path

from datastates.plan import Plan

from .zarr_metadata import PACKED, TREE

LAYOUTS = (TREE, PACKED)

MAX_FILES = 1000
"""Files of a step up to which a tree is written."""

_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
_NETWORK |= {"nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"}
_MOUNTS = "/proc/self/mountinfo"


def choose(root: Path, plan: Plan) -> str:
    """Return the layout for a step below an existing directory.

    A tree is open to every Zarr reader, but costs a directory and up to two files for each array.
    Parallel and network file systems make a hundred of those a second.
    """
    files = 4 + sum(1 + bool(a.extents) for a in plan.arrays if a.alias is None)
    return PACKED if files > MAX_FILES or is_network(root) else TREE


def is_network(path: Path) -> bool:
    """Tell whether a path lies on a network file system; no where the system does not say."""
    kind = file_system(path)
    return kind in _NETWORK or kind == "fuse" or kind.startswith("fuse.")


def file_system(path: Path) -> str:
    """Return the type of the file system that `path` is on, as mounted; "" if it is not told."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                head, _, tail = line.partition(" - ")
                if head.split(" ", 3)[2] == number:
                    return tail.split(" ", 1)[0]
    except (OSError, LookupError):
        pass
    return ""
