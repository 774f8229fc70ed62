"""The façade: what a trainer calls. It ties the other rooms together and decides nothing itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Literal

from .checks import (
    check_choice,
    check_metadata,
    check_metrics,
    check_parts,
    check_positive,
    check_step,
)
from .containers import CONTAINERS
from .errors import DatastatesError
from .guard import Optimizer
from .locations import open_tier
from .pipeline import Busy
from .provider import Provider
from .recovery import Recovery, RestoreOptions, restore
from .registry import Providers, installed
from .retention import Mode, Retention
from .save import Save, SaveStats
from .saving import SaveOptions, Saver, Statistics
from .signals import Preemption
from .steps import StepInfo, Steps
from .tier import Tier

__all__ = ["Checkpointer", "StepInfo"]


class Checkpointer(Steps):
    """Saves and restores the state of one run.

    1. Make one per run: `ckpt = Checkpointer("runs/gpt", keep_last=3)`. Nothing is created yet.
    2. `ckpt.restore(into=state)` when `ckpt.latest()` is not None.
    3. `ckpt.save_async(state, step=n)` as often as you like; go on training.
    4. `ckpt.close()` at the end, or use it as a context manager: waits for what is under way.

    A save that fails costs that checkpoint and nothing else: it is logged at once, and raised by
    the handle's `result()`, or by `wait()` and `close()` if nobody has looked by then.

    Any method may be called from any thread. One process at a time should save to a location;
    any number may read it meanwhile.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | Tier,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: tuple[str, Mode, int] | None = None,
        layout: str = "auto",
        arena_nbytes: int | None = None,
        busy: Busy = "wait",
        lazy_check: Literal["sampled", "full"] = "sampled",
        stall_timeout_s: float = 600.0,
        read_timeout_s: float = 600.0,
        close_timeout_s: float = 1800.0,
        providers: Sequence[Provider] = (),
    ) -> None:
        """Make a checkpointer; opens and creates nothing.

        Args:
            location: a directory, `memory://name`, or a tier of your own.
            keep_last: keep the newest n steps. With no rule at all, every step is kept.
            keep_every: keep each step that is a multiple of n.
            keep_best: metric, "min" or "max", and how many to keep, e.g. `("loss", "min", 2)`.
            layout: how each step lies at the location: as a "tree" of Zarr arrays, which any Zarr
                reader opens; "packed" into one file, for very many tensors and for network file
                systems; or "auto", which chooses. A restore finds out by itself.
            arena_nbytes: most host memory to stage in. Default: room for two states, but no more
                than a quarter of what is free at the first save. What is not needed is not taken.
                Two states let one be copied while the other is stored; with less than one,
                `save_async` (for what is lazy, the fence) waits until enough is written.
            busy: what becomes of a save that does not fit into the arena beside earlier ones:
                "wait" for room, "skip" it, or let it "supersede" those that nobody has begun to
                store. A save given up so is reported by its handle, a warning, and `statistics`.
            lazy_check: how a tensor that changes before it was copied is found: by counters and
                samples of each MiB, or by a "full" checksum in the call, to hunt for such bugs.
            stall_timeout_s: longest time that `save_async`, and the fence, wait; the save fails
                then.
            read_timeout_s: longest time a restore waits for the next read to end.
            close_timeout_s: longest time `close` waits by default, also at interpreter exit.
            providers: further ones, besides those that are installed.

        Raises:
            UsageError: an argument is wrong; the message says which.
        """
        check_positive(
            stall_timeout_s=stall_timeout_s,
            read_timeout_s=read_timeout_s,
            close_timeout_s=close_timeout_s,
        )
        retention = Retention(keep_last, keep_every, keep_best)
        super().__init__(open_tier(location, layout=layout), retention, read_timeout_s)
        options = SaveOptions(
            arena_nbytes=arena_nbytes,
            kept=keep_last or 1,
            stall_timeout_s=stall_timeout_s,
            exit_timeout_s=close_timeout_s,
            busy=check_choice("busy", busy, ("wait", "skip", "supersede")),
            full_check=check_choice("lazy_check", lazy_check, ("sampled", "full")) == "full",
        )
        self._saver = Saver(self._tier, self._catalog, options)
        self._extra_providers = tuple(providers)
        self._close_timeout_s = close_timeout_s
        self._recovery: Recovery | None = None
        self._preemption = Preemption(self._saver.drain)

    def __repr__(self) -> str:
        if self._saver.elsewhere:
            state = "of another process"
        else:
            in_flight = len(self.statistics().in_flight)
            state = "closed" if self._saver.closed else f"{in_flight} saves in flight"
        return f"<Checkpointer {self._tier!r}: {state}>"

    @cached_property
    def _providers(self) -> Providers:  # made at the first use: it imports torch
        return Providers([*self._extra_providers, *CONTAINERS, *installed()])

    # Saving.

    def save_async(
        self,
        state: object,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
        lazy: Sequence[str | Sequence[Hashable]] | None = None,
    ) -> Save:
        """Save `state` as of now; return as soon as you may go on.

        Whatever you change afterwards is not in the checkpoint. What optimizers under `guard`
        change, and what is `lazy`, is copied after the return, until the fence; all else is
        copied before. Storing goes on in the background.

        Args:
            state: any tree of tensors, modules, optimizers, schedulers (whatever has
                `state_dict`), numpy arrays and Python values.
            step: its number; the one after the newest if not given. A step that exists is saved
                again, and the old one stays valid until the new one is committed.
            metrics: numbers to rank steps by.
            metadata: whatever JSON can hold.
            lazy: parts, such as `["model"]`, that you neither change nor free before `fence()`.
                One that does change fails the save, and is never published.

        Returns:
            the handle; the save may fail later, which never raises here.

        Raises:
            StateError: a value cannot be stored exactly; the error names its path.
            UsageError: an argument is wrong.
            ClosedError: after `close()`.
        """
        save = self._saver.start(
            state,
            None if step is None else check_step(step),
            self._providers,
            check_metrics(metrics),
            check_metadata(metadata),
            (check_parts("lazy", lazy) or ()) if lazy else (),
        )
        self._preemption.saved()
        return save

    def save(self, state: object, **options: Any) -> SaveStats:
        """Save `state` and wait until it is durable; as `save_async(...).result()`."""
        return self.save_async(state, **options).result()

    def guard(self, *optimizers: Optimizer) -> None:
        """Copy what these optimizers change under the next forward and backward, from now on.

        Each of their steps begins with `fence()`. A parameter or an optimizer's state that is
        changed by anything else between `save_async` and the fence, without a `fence()` before,
        fails that save (its error names the tensor; the part of the state that it is in is copied
        at once from then on). To free its storage, as `untyped_storage().resize_(0)` does, needs a
        `fence()` before, too.

        Args:
            optimizers: of `torch.optim`, or alike; held weakly. One more call adds more.

        Raises:
            UsageError: it is no optimizer.
            ClosedError: after `close()`.
        """
        self._saver.guard(optimizers)

    def fence(self) -> None:
        """Wait until everything that the last save captured may be changed.

        Blocks while host memory is copied; for storage only where the arena is too small for the
        state. On CUDA the stream waits, not the caller. Never raises for the storage's fault; a
        save that keeps you longer than `stall_timeout_s` fails.
        """
        self._saver.fence()

    def on_signal(self, *signums: int, grace_s: float = 30.0, take_last: bool = False) -> None:
        """Lose nothing to a signal that announces the end, such as SIGTERM; until `close()`.

        When it comes, the saves under way are finished, for at most `grace_s` seconds, and then
        happens what would have happened without this: your own handler runs, or the process ends
        by the signal. With `take_last` training goes on until your next `save_async`, which is
        finished so; look at `preempted` to make it come soon. If it has not come when the grace
        time is over, the signal is sent again, and ends the process.

        Raises:
            UsageError: not in the main thread, or no signal that can be handled.
        """
        check_positive(grace_s=grace_s)
        for signum in signums:
            self._preemption.install(signum, grace_s, take_last=take_last)

    @property
    def preempted(self) -> bool:
        """True once a signal of `on_signal` has come: a good moment to save."""
        return self._preemption.received

    # Restoring.

    def restore(
        self,
        into: Any = None,
        *,
        step: int | None = None,
        only: Sequence[str | Sequence[Hashable]] | None = None,
        strict: bool = True,
        device: str | None = None,
        trust: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Restore a state; blocks until it is there, verified.

        Args:
            into: the tree to fill. Tensors, arrays, modules, optimizers are filled in place, plain
                values in its dicts are replaced. Without it the state is made anew; what has
                `state_dict` comes back as the dict that it gave.
            step: which one; without it the newest that can be read, with a warning for each newer
                one that is damaged.
            only: parts to restore, such as `["model"]`, `["optim/state"]` or `[("log", 0)]`;
                nothing else is read.
            strict: raise where `into` and the checkpoint differ. Otherwise restore what fits and
                report the rest in `recovery`.
            device: where to put tensors that have no target; the CPU by default.
            trust: allow unpickling of values that were saved as `Pickled`.
            progress: called from reading threads with the bytes of each read, and those of all.

        Returns:
            `into`, filled, or the state. It shares no memory with the checkpoint.

        Raises:
            StepNotFoundError: there is no such step, or none at all.
            MismatchError: strict, and they differ; nothing was changed.
            CorruptError: damaged. `into` may be partly overwritten.
            StorageError: the storage failed, or (StorageTimeoutError) does not answer.
        """
        if into is not None:
            self._saver.fence(ended=True)
        options = RestoreOptions(
            into, check_parts("only", only), strict, device, trust, self._timeout_s, progress
        )
        number = None if step is None else check_step(step)
        state, self._recovery = restore(self._tier, self._catalog, self._providers, number, options)
        return state

    @property
    def recovery(self) -> Recovery | None:
        """What the last `restore` did, or None before."""
        return self._recovery

    # State and end.

    def statistics(self) -> Statistics:
        """Return what is going on; never blocks on storage."""
        return self._saver.statistics()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every save has ended.

        Raises:
            SaveTimeoutError: one has not, after `timeout` seconds; it goes on.
            SaveError: one failed, and nobody has been told; several are an `ExceptionGroup`.
        """
        self._saver.wait(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait until every save has ended, then give everything back. Closing twice is allowed.

        In a forked process it does nothing: the saves are the other's.

        Args:
            timeout: seconds; `close_timeout_s` by default.

        Raises:
            as `wait`. The checkpointer is closed in any case.
        """
        if self._saver.closed or self._saver.elsewhere:
            return
        self._preemption.uninstall()
        self._saver.close(self._close_timeout_s if timeout is None else timeout)
        self._tier.close()  # not where a save has not ended: it still writes there
        self._saver.raise_unseen()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; an error of the body comes out as itself, with the saves' errors as notes."""
        if error is None:
            self.close()
            return
        try:
            self.close()
        except (DatastatesError, ExceptionGroup) as failure:
            error.add_note(f"besides, a checkpoint was lost: {failure}")
