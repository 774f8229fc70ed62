"""Who saves while training goes on: each in its default settings, used as its documentation says.

"Used safely" is part of that: whoever copies after the call returned is waited for before the
optimizer changes anything (its lock, its staging), and whoever takes one save at a time is waited
for before the next. Both are stalls. Peers that are not installed beside datastates name their
environment; this module imports nothing of theirs before they are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from contenders import Dcp, Safetensors, TorchSave
from stall_contender import CannotRunError, InTraining, Nobody, OneAtATime
from states import State, tensors


class TorchSaveInTraining(InTraining, TorchSave):
    name = "torch.save"
    background = False
    place = TorchSave.place


class SafetensorsInTraining(InTraining, Safetensors):
    name = "safetensors"
    packages = ("safetensors",)
    background = False
    place = Safetensors.place


class DcpInTraining(InTraining, Dcp):
    name = "DCP save"
    background = False
    syncs = "its files, no directory"


class DcpThread(OneAtATime, Dcp):
    name = "DCP async_save"
    syncs = "its files, no directory"

    def begin(self, state: State, number: int) -> Callable[[], object]:
        import torch.distributed.checkpoint as dcp

        return dcp.async_save(state, checkpoint_id=self.place(number), no_dist=True).result


class DcpProcess(OneAtATime, Dcp):
    """Needs a process group, of one rank here, and keeps a process of its own."""

    name = "DCP async_save, process"
    syncs = "its files, no directory"

    def __init__(self, root: Path) -> None:
        from torch import distributed

        super().__init__(root)
        os.environ["MASTER_ADDR"] = "127.0.0.1"  # the host's own name need not resolve
        store = distributed.FileStore(str(root.with_name(f"{root.name}.store")), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def begin(self, state: State, number: int) -> Callable[[], object]:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        kind = AsyncCheckpointerType.PROCESS
        place = self.place(number)
        return dcp.async_save(state, checkpoint_id=place, async_checkpointer_type=kind).result

    def close(self) -> None:
        torch.distributed.destroy_process_group()


class Torchsnapshot(OneAtATime):
    name = "torchsnapshot"
    environment = "torchsnapshot"
    packages = ("torchsnapshot",)

    def begin(self, state: State, number: int) -> Callable[[], object]:
        from torchsnapshot import Snapshot, StateDict

        app_state = {"state": StateDict(**state)}
        return Snapshot.async_take(path=str(self.place(number)), app_state=app_state).wait

    def load(self, state: State, number: int) -> object:
        from torchsnapshot import Snapshot, StateDict

        holder = StateDict(**{part: dict(found) for part, found in state.items()})
        Snapshot(path=str(self.place(number))).restore(app_state={"state": holder})
        _copy_where_needed(state, holder)
        return holder


class TorchCheckpointing(InTraining):
    """Stages on a thread after `save` has returned: its lock is the fence."""

    name = "torch_checkpointing"
    environment = "torch_checkpointing"
    packages = ("torch_checkpointing",)
    remark = "direct I/O is its default, and fails with EINVAL on ext4: switched off"

    def __init__(self, root: Path) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        super().__init__(root)
        config = CheckpointManager.Config.with_async_save()
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = config.build()

    def fence(self) -> AbstractContextManager[Any]:
        return self._manager.lock()

    def save(self, state: State, number: int) -> Callable[[], None]:
        future = self._manager.save(str(self.place(number)), state)
        return lambda: (future.result(), None)[1]

    def load(self, state: State, number: int) -> object:
        return self._manager.load(str(self.place(number)), into=state, strict=True)

    def close(self) -> None:
        self._manager.close()


class Orbax(InTraining):
    """Takes numpy arrays that share the tensors' memory, and copies them before it returns."""

    name = "Orbax"
    environment = "orbax"
    packages = ("orbax-checkpoint", "jax", "tensorstore")
    syncs = "its files, not the rename"

    def __init__(self, root: Path) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import orbax.checkpoint

        super().__init__(root)
        self._checkpointer = orbax.checkpoint.StandardCheckpointer()

    def save(self, state: State, number: int) -> Callable[[], None]:
        self._checkpointer.save(self.place(number), _arrays(state))
        return self._checkpointer.wait_until_finished

    def load(self, state: State, number: int) -> object:
        found = self._checkpointer.restore(self.place(number), _arrays(state))
        _copy_arrays(state, found)
        return found

    def close(self) -> None:
        self._checkpointer.close()


class Tensorstore(OneAtATime):
    """One zarr3 array for each tensor; returns when the copies that it makes are made."""

    name = "TensorStore zarr3"
    packages = ("tensorstore",)
    syncs = "its files, their directories"

    def _open(self, number: int, name: str, **options: Any) -> Any:
        import tensorstore

        store = {"driver": "file", "path": f"{self.place(number)}/{name}/"}
        return tensorstore.open({"driver": "zarr3", "kvstore": store}, **options)

    def begin(self, state: State, number: int) -> Callable[[], object]:
        arrays = {name: tensor.numpy() for name, tensor in tensors(state)}
        opening = [
            self._open(number, name, create=True, dtype=array.dtype.name, shape=array.shape)
            for name, array in arrays.items()
        ]
        pairs = zip(opening, arrays.values(), strict=True)
        writes = [store.result().write(array) for store, array in pairs]
        for write in writes:
            write.copy.result()
        return lambda: [write.commit.result() for write in writes]

    def load(self, state: State, number: int) -> object:
        opening = [(tensor, self._open(number, name)) for name, tensor in tensors(state)]
        reads = [(tensor, store.result().read()) for tensor, store in opening]
        for tensor, read in reads:
            tensor.copy_(torch.from_numpy(read.result()))
        return reads


class Eager(InTraining):
    """No optimizer under guard: everything is copied before the call returns."""

    name = "datastates, eager"
    packages = ("datastates",)
    durable = True
    syncs = "all"

    def __init__(self, root: Path) -> None:
        import datastates

        super().__init__(root)
        self._checkpointer = datastates.Checkpointer(root, keep_last=2)

    def place(self, number: int) -> Path:
        return self.root / f"step-{number:010d}"

    def save(self, state: State, number: int) -> Callable[[], None]:
        save = self._checkpointer.save_async(state, step=number)
        return lambda: (save.result(), None)[1]

    def load(self, state: State, number: int) -> object:
        return self._checkpointer.restore(into=state, step=number)

    def budget_nbytes(self) -> int | None:
        return self._checkpointer.statistics().arena.budget_nbytes

    def close(self) -> None:
        self._checkpointer.close()


class Lazy(Eager):
    name = "datastates, lazy"

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        if not hasattr(self._checkpointer, "guard"):
            raise CannotRunError("this version of datastates has no guard")
        self._checkpointer.guard(optimizer)


def _copy_where_needed(state: State, loaded: State) -> None:
    for part, found in state.items():
        for name, tensor in found.items():
            if loaded[part][name].data_ptr() != tensor.data_ptr():
                tensor.copy_(loaded[part][name])


def _arrays(state: State) -> dict[str, dict[str, Any]]:
    return {part: {n: t.numpy() for n, t in found.items()} for part, found in state.items()}


def _copy_arrays(state: State, loaded: dict[str, dict[str, Any]]) -> None:
    for part, found in state.items():
        for name, tensor in found.items():
            tensor.copy_(torch.from_numpy(loaded[part][name]))


PEERS: dict[str, type[InTraining]] = {
    kind.name: kind
    for kind in (
        Nobody,
        Lazy,
        Eager,
        TorchSaveInTraining,
        SafetensorsInTraining,
        DcpInTraining,
        DcpThread,
        DcpProcess,
        Torchsnapshot,
        TorchCheckpointing,
        Orbax,
        Tensorstore,
    )
}
