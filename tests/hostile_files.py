"""Hostile steps: wrong names and sizes in the manifest, and files that are none."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forging import (
    INFO,
    MANIFEST,
    READS,
    Cases,
    Forge,
    ImpossibleError,
    data_file,
    forge_array,
    forge_manifest,
    forge_skeleton,
    node,
    ref,
)

CASES = Cases()

# Names.

CASES.add_each(
    READS,
    "name",
    [
        "/etc/passwd",
        "../../outside",
        "model/../../outside",
        "model/w/..",
        "..",
        ".",
        "",
        "model//w",
        "model/",
        "model/zarr.json",
        "model/w\0",
        "model\\w",
        "a/b/c",
        "x" * 300,
        7,
        None,
        ["model", "w"],
        b"model/w",
    ],
    lambda name: lambda step: forge_array(step, "model/w", node=name),
)


# Sizes.

CASES.add_each(
    READS,
    "size",
    [
        {"shape": [1 << 61]},
        {"shape": [(1 << 64) - 1]},
        {"shape": [-1]},
        {"shape": [1 << 40], "chunk": [1 << 40]},
        {"shape": [1 << 40], "chunk": [1]},
        {"shape": [0]},
        {"shape": [1] * 65, "chunk": [1] * 65},
        {"shape": [20_000.0]},
        {"shape": [True], "chunk": [True]},
        {"shape": {"0": 1}},
        {"shape": None},
        {"chunk": [0]},
        {"chunk": [-5]},
        {"chunk": [1 << 62]},
        {"chunk": [1, 1]},
        {"offset": -1},
        {"offset": 1 << 63},
        {"offset": 1.5},
        {"dtype": "object"},
        {"dtype": "O"},
        {"dtype": "float64x"},
        {"dtype": ["float64"]},
        {"dtype": None},
        {"sums": []},
        {"sums": [1, 2]},
        {"sums": [-1]},
        {"sums": [1 << 32]},
        {"sums": [0.5]},
        {"sums": "sums"},
        {"inline": b"1234567"},
        {"inline": 5},
        {"alias": [0, 0, 0]},
        {"alias": [1 << 40, 0, 0]},
        {"alias": [-1, 0, 0]},
        {"alias": [1, 1 << 40, 0]},
        {"alias": "alias"},
        {"alias": [0]},
    ],
    lambda fields: lambda step: forge_array(step, "model/w", **fields),
)


def alias_loop(step: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for i, record in enumerate(content["arrays"][:3]):
            record[6], record[7] = [(i + 1) % 3, 0, 0], []

    forge_manifest(step, change)


def two_arrays_in_one_place(step: Path) -> None:
    forge_array(step, "model/b", node="model/w")


CASES.add_each(
    READS,
    "head",
    [
        {"format": 2},
        {"format": 1 << 63},
        {"format": 0},
        {"format": -1},
        {"format": float("nan")},
        {"format": "1"},
        {"format": None},
        {"rank": -1},
        {"world_size": float("nan")},
        {"nbytes": 1 << 62},
        {"nbytes": None},
        {"arrays": None},
        {"arrays": {}},
        {"arrays": [None]},
        {"arrays": [[]]},
        {"skeleton": None},
        {"skeleton": b""},
        {"skeleton": b"\xa1\xff"},
        {"skeleton": b"\xc1"},
        {"skeleton": {}},
    ],
    lambda head: lambda step: forge_manifest(step, lambda content: content.update(head)),
)


# Files that are none.


def replaced(name: str, make: Callable[[Path], object]) -> Forge:
    """Put something else where a file or directory of the step is; "chunk" is its data."""

    def forge(step: Path) -> None:
        path = data_file(step) if name == "chunk" else step / name
        if not path.exists():
            raise ImpossibleError(f"there is no {name} in this layout")
        outside = step.parent.parent / "outside"
        path.rename(outside)
        make(path)

    return forge


def link_out(path: Path) -> None:
    path.symlink_to(next(p for p in path.parents if (p / "outside").exists()) / "outside")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(path.parent, os.O_PATH)
        s.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: it never ends
    except PermissionError:
        raise ImpossibleError("only root can make device nodes") from None


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a_link": link_out,
    "a_fifo": os.mkfifo,
    "a_device": make_device,
    "a_socket": make_socket,
    "a_directory": lambda path: path.mkdir(),
    "a_sparse_file": make_sparse,
    "an_empty_file": lambda path: path.touch(),
}
for what, make in INSTEAD.items():
    for where, path, refused in (
        ("chunk", "chunk", READS),
        ("manifest", str(MANIFEST), READS),
        ("record", "zarr.json", INFO),
    ):
        if (what, where) != ("a_sparse_file", "chunk"):  # it would be wrong, no more
            CASES.add(refused, **{f"{what}_for_the_{where}": replaced(path, make)})
for path in ("model/w", "model", ".datastates"):
    CASES.add(READS, **{f"a_link_for_{path.replace('/', '_')}": replaced(path, link_out)})
CASES.add(
    READS | INFO,
    a_link_for_the_step=replaced(".", link_out),
)


def a_sparse_terabyte_of_pieces(step: Path) -> None:
    """Each piece of four gigabytes is there, and wrong."""
    make_sparse(data_file(step))
    rows = 512 << 10
    count = 1 << 10
    forge_array(step, "model/w", shape=[count * rows], chunk=[rows], sums=[1] * count)
    forge_skeleton(
        step,
        {"model": {"w": node("numpy", {"dtype": ["descr", "<f8"], "array": ref(0), "order": "C"})}},
    )


def a_sparse_terabyte_in_one_chunk(step: Path) -> None:
    make_sparse(data_file(step))
    forge_array(step, "model/w", shape=[1 << 30], chunk=[1 << 30], sums=[1])


CASES.add(
    READS,
    alias_loop=alias_loop,
    two_arrays_in_one_place=two_arrays_in_one_place,
    a_sparse_terabyte_of_pieces=a_sparse_terabyte_of_pieces,
    a_sparse_terabyte_in_one_chunk=a_sparse_terabyte_in_one_chunk,
)
