"""A disk that loses what was not synced: what a power cut would leave, at each moment of a save.

The model is the weakest one that POSIX allows. A file has the bytes it had at its last fsync, or
none. A directory has the names it had at its last fsync; or, since a disk may write early, its
present names (`early`), or any mixture of the two (`mixed`, by a fixed seed). Every image that
the disk could be left in is laid out as files and opened.
"""

# ruff: noqa: PTH110, PTH116, PTH208
# The calls of the `os` module are meant here, not what they are good for.

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from savers import ARENA_NBYTES, Report
from seam import Seam
from states import same, state

import datastates as ds
from datastates.tiers.zarr import ZarrTier

Names = dict[str, int]
"""The entries of a directory: name → inode."""

Image = dict[str, bytes | None]
"""Path → content; None is a directory."""

SIZE = 1000
"""Elements of the large array: images are laid out hundreds of times, so it is none."""


class Disk:
    """What is durable below `base`, as far as fsync has promised it."""

    def __init__(self, base: str) -> None:
        self._base, self._held = base, [os.open(base, os.O_PATH)]
        self.files: dict[int, bytes] = {}
        self.directories: dict[int, Names] = {}
        self.kinds: dict[int, bool] = {}
        """Whether each inode is a directory."""
        self.root = self._adopt(base)

    def _adopt(self, path: str) -> int:
        """Take what lies there already as durable; returns the inode."""
        inode = self._meet(path)
        self.synced(path)
        if self.kinds[inode]:
            for name in os.listdir(path):
                self._adopt(f"{path}/{name}")
        return inode

    def _meet(self, path: str) -> int:
        """Note a file or directory, and hold it open so that its inode number stays its own."""
        found = os.stat(path, follow_symlinks=False)
        if found.st_ino not in self.kinds:
            self._held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW))
            self.kinds[found.st_ino] = stat.S_ISDIR(found.st_mode)
        return found.st_ino

    def created(self, path: str) -> None:
        """A name has appeared."""
        self._meet(path)

    def synced(self, path: str) -> None:
        """An fsync of `path` has returned."""
        inode = self._meet(path)
        if self.kinds[inode]:
            self.directories[inode] = self._present(path)
        else:
            self.files[inode] = Path(path).read_bytes()

    def _present(self, path: str) -> Names:
        return {name: self._meet(f"{path}/{name}") for name in sorted(os.listdir(path))}

    def live(self) -> dict[int, Names]:
        """Return the present names of all directories."""
        return {os.stat(path).st_ino: self._present(path) for path, _, _ in os.walk(self._base)}

    def image(self, names: dict[int, Names]) -> Image:
        """Return path → content of a disk whose directories have these names; None: directory."""
        found: Image = {}

        def visit(inode: int, path: str) -> None:
            for name, inner in names.get(inode, {}).items():
                where = f"{path}/{name}"
                found[where] = None if self.kinds[inner] else self.files.get(inner, b"")
                if self.kinds[inner]:
                    visit(inner, where)

        visit(self.root, "")
        return found

    def images(self, chance: random.Random) -> list[Image]:
        """Return what a power cut at this moment may leave."""
        live, strict = self.live(), self.directories
        mixed: dict[int, Names] = {}
        for inode in strict.keys() | live.keys():
            old, new = strict.get(inode, {}), live.get(inode, {})
            picked = {n: (old, new)[chance.randrange(2)].get(n) for n in sorted(old | new)}
            mixed[inode] = {name: i for name, i in picked.items() if i is not None}
        return [self.image(names) for names in (strict, {**strict, **live}, mixed)]


def lay_out(image: Image, root: Path) -> None:
    """Write an image as files."""
    root.mkdir()
    for path, content in image.items():
        if content is None:
            (root / path[1:]).mkdir()
        else:
            (root / path[1:]).write_bytes(content)


class PowerCut:
    """Tries a power cut after each call of a saver; collects what would be wrong."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.base, self._scratch = request["base"], Path(request["scratch"])
        self._disk, self._chance = Disk(self.base), random.Random(request["seed"])
        self._lock = threading.RLock()
        self._expected: dict[int, list[int]] = {step: [seed] for step, seed in request["has"]}
        self._needed: set[int] = set(self._expected)
        self._saving = -1
        self._seen: set[int] = set()
        self._read: dict[tuple[object, ...], int | str] = {}
        self.wrong: list[str] = []

    def __call__(self, name: str, path: str, real: Callable[[], Any]) -> Any:
        """See `seam.Handler`. One call at a time, so that each moment is one state."""
        with self._lock:
            result = real()
            if name in ("open", "mkdir"):
                self._disk.created(path)
            if name in ("fsync", "fdatasync"):
                self._disk.synced(path)
            if name not in ("write", "pwrite", "ftruncate", "fallocate"):
                self._try(f"after {name} {os.path.relpath(path, self.base)}")
            return result

    def saving(self, step: int, seed: int) -> None:
        """From now on the step may be there with this state, too."""
        with self._lock:
            self._saving = step
            self._expected.setdefault(step, []).append(seed)

    def acknowledged(self, step: int, seed: int) -> None:
        """The caller was told that the step is durable: it must be there from now on."""
        with self._lock:
            self._expected[step], self._needed = [seed], {step}
            self._try(f"after acknowledging {step}")

    def _try(self, when: str) -> None:
        for image in self._disk.images(self._chance):
            key = hash(tuple(sorted(image.items())))
            if key not in self._seen:
                self._seen.add(key)
                lay_out(image, self._scratch)
                self.wrong += [f"{when}: {what}" for what in self._check(image)]
                shutil.rmtree(self._scratch)

    def _check(self, image: Image) -> list[str]:
        reader = ds.Checkpointer(self._scratch / "run")
        steps = reader.steps()
        replaced = self._saving in steps and self._saving not in self._needed
        wrong = [f"step {step} is gone" for step in self._needed - {*steps} if not replaced]
        for step in steps:
            seed = self._state(reader, step, image)
            if seed not in self._expected[step]:
                wrong.append(f"step {step} is there, but: {seed}")
        return wrong

    def _state(self, reader: ds.Checkpointer, step: int, image: Image) -> int | str:
        """Return the seed of the state that a step holds, or what is wrong with it."""
        try:
            info = reader.info(step)
            below = info.path[len(str(self._scratch)) :] + "/"
            key = tuple(item for item in sorted(image.items()) if item[0].startswith(below))
            if key not in self._read:  # most steps are the same in most images
                seed = int(info.metrics["seed"])
                right = same(reader.restore(step=step), state(seed, SIZE))
                self._read[key] = seed if right else "not what was saved"
        except ds.DatastatesError as error:
            return str(error)
        return self._read[key]

    @property
    def images(self) -> int:
        """How many different images were tried."""
        return len(self._seen)


def make_tier(request: dict[str, Any]) -> ZarrTier:
    """Return the tier that a request asks for."""
    options = {name: request[name] for name in ("fsync", "layout") if name in request}
    return ZarrTier(f"{request['base']}/run", **options)


def simulate(request: dict[str, Any], report: Report) -> None:
    """Save `saves` = [step, seed], with a power cut after each call; say what went wrong."""
    cut = PowerCut(request)
    Seam(request["base"], cut).install()
    tier = make_tier(request)
    saver = ds.Checkpointer(tier, keep_last=request["keep_last"], arena_nbytes=ARENA_NBYTES)
    for step, seed in request["saves"]:
        cut.saving(step, seed)
        saver.save_async(state(seed, SIZE), step=step, metrics={"seed": seed}).result()
        cut.acknowledged(step, seed)
    saver.close()
    report.say({"wrong": cut.wrong[:20], "images": cut.images})


class _Order:
    """Remembers all calls, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def __call__(self, name: str, path: str, real: Callable[[], Any]) -> Any:
        """See `seam.Handler`."""
        with self._lock:
            if name == "open" and os.path.exists(path):
                name = "reopen"  # changes no directory
            result = real()
            self.calls.append((name, path))
            return result


def order(request: dict[str, Any], report: Report) -> None:
    """Make the same saves and say all calls in order, with the moments of acknowledgement."""
    seen = _Order()
    Seam(request["base"], seen).install()
    tier = make_tier(request)
    saver = ds.Checkpointer(tier, keep_last=request["keep_last"], arena_nbytes=ARENA_NBYTES)
    for step, seed in request["saves"]:
        saver.save_async(state(seed), step=step, metrics={"seed": seed}).result()
        seen.calls.append(("acknowledged", str(step)))
    saver.close()
    report.say(
        {"calls": [[name, os.path.relpath(path, request["base"])] for name, path in seen.calls]}
    )
