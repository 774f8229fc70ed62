"""Who takes part: each saves and loads as its documentation tells its users to.

Loading means: tensors that exist already hold the values afterwards. Who can only load into fresh
memory is followed by what `load_state_dict` does, a `copy_` into each tensor; that is in the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import rawdisk
import torch
from states import State, is_exact, make_state, state_nbytes, tensors


def _nothing() -> None:
    pass


def _copy_into(state: State, loaded: State) -> None:
    with torch.no_grad():
        for part, found in state.items():
            for name, tensor in found.items():
                tensor.copy_(loaded[part][name])


class Contender(ABC):
    """One way to save and load. `root` is its own directory, and survives it."""

    name: ClassVar[str]
    reads: ClassVar[str]
    """Whose files it loads; its own by default."""
    saves: ClassVar[bool] = True
    loads: ClassVar[bool] = True
    copies: ClassVar[bool] = True
    """Whether the bytes are in memory of the caller's own after loading."""
    durable: ClassVar[bool] = False
    """Whether a save is durable by itself; the others' files are synced for them, timed."""

    def __init_subclass__(cls) -> None:
        if "reads" not in cls.__dict__:
            cls.reads = cls.name

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root

    def state(self, kind: str, size: int, *, empty: bool) -> Any:
        return make_state(kind, size, empty=empty)

    def is_exact(self, state: Any) -> bool:
        return is_exact(state)

    @abstractmethod
    def place(self, number: int) -> Path:
        """Return the file or directory that a save makes."""

    @abstractmethod
    def save(self, state: Any, number: int) -> Callable[[], None]:
        """Begin to save; return what waits for the end. Numbers ascend."""

    @abstractmethod
    def load(self, state: Any, number: int) -> object:
        """Load into `state`; what is returned is kept alive until the clock has stopped."""

    def close(self) -> None:  # noqa: B027 - most have nothing in the background
        """End what runs in the background."""


class Raw(Contender):
    name = "raw"
    durable = True

    def state(self, kind: str, size: int, *, empty: bool) -> memoryview:
        return rawdisk.memory(state_nbytes(kind, size))

    def is_exact(self, state: memoryview) -> bool:
        return True

    def place(self, number: int) -> Path:
        return self.root / f"{number}.bin"

    def save(self, state: memoryview, number: int) -> Callable[[], None]:
        rawdisk.write(self.place(number), state)
        return _nothing

    def load(self, state: memoryview, number: int) -> object:
        return rawdisk.read(self.place(number), state)


class Datastates(Contender):
    name = "datastates"
    durable = True
    layout: ClassVar[str] = "auto"

    def __init__(self, root: Path) -> None:
        import datastates

        super().__init__(root)
        self._checkpointer = datastates.Checkpointer(root, layout=self.layout)

    def place(self, number: int) -> Path:
        return self.root / f"step-{number:010d}"

    def save(self, state: State, number: int) -> Callable[[], None]:
        return self._checkpointer.save_async(state, step=number).result

    def load(self, state: State, number: int) -> object:
        return self._checkpointer.restore(into=state, step=number)

    def close(self) -> None:
        self._checkpointer.close()


class DatastatesPacked(Datastates):
    name = "datastates packed"
    layout = "packed"


class TorchSave(Contender):
    name = "torch.save/load"

    def place(self, number: int) -> Path:
        return self.root / f"{number}.pt"

    def save(self, state: State, number: int) -> Callable[[], None]:
        torch.save(state, self.place(number))
        return _nothing

    def load(self, state: State, number: int) -> object:
        loaded = torch.load(self.place(number))
        _copy_into(state, loaded)
        return loaded


class TorchMmap(TorchSave):
    name = "torch.load mmap"
    reads = "torch.save/load"
    saves = False

    def load(self, state: State, number: int) -> object:
        loaded = torch.load(self.place(number), mmap=True)
        _copy_into(state, loaded)
        return loaded


class TorchMapped(TorchSave):
    """Only maps the file: no byte is read, the existing tensors stay as they are."""

    name = "torch.load mmap without copy"
    reads = "torch.save/load"
    saves = copies = False

    def load(self, state: State, number: int) -> object:
        return torch.load(self.place(number), mmap=True)

    def is_exact(self, state: State) -> bool:
        return True


class Safetensors(Contender):
    name = "safetensors"

    def place(self, number: int) -> Path:
        return self.root / f"{number}.safetensors"

    def save(self, state: State, number: int) -> Callable[[], None]:
        from safetensors.torch import save_file

        save_file(dict(tensors(state)), self.place(number))
        return _nothing

    def load(self, state: State, number: int) -> object:
        from safetensors.torch import load_file

        loaded = load_file(self.place(number))
        with torch.no_grad():
            for name, tensor in tensors(state):
                tensor.copy_(loaded[name])
        return loaded


class Dcp(Contender):
    """torch.distributed.checkpoint, one process, loading in place as it does by design."""

    name = "DCP"

    def place(self, number: int) -> Path:
        return self.root / str(number)

    def save(self, state: State, number: int) -> Callable[[], None]:
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=self.place(number), no_dist=True)
        return _nothing

    def load(self, state: State, number: int) -> object:
        import torch.distributed.checkpoint as dcp

        return dcp.load(state, checkpoint_id=self.place(number), no_dist=True)


class DcpAsync(Dcp):
    name = "DCP async_save"
    loads = False

    def save(self, state: State, number: int) -> Callable[[], None]:
        import torch.distributed.checkpoint as dcp

        return dcp.async_save(state, checkpoint_id=self.place(number), no_dist=True).result


CONTENDERS: dict[str, type[Contender]] = {
    kind.name: kind
    for kind in (
        Raw,
        Datastates,
        DatastatesPacked,
        TorchSave,
        TorchMmap,
        TorchMapped,
        Safetensors,
        Dcp,
        DcpAsync,
    )
}
