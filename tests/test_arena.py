"""The staging memory: aligned, bounded, fair, and used again."""

import io
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datastates as ds
from datastates import memory
from datastates.arena import MIN_ARENA_NBYTES, Arena, Region
from datastates.device import Bytes, Device
from datastates.errors import SaveTimeoutError
from datastates.grid import PAGE
from datastates.memory import address

MIB = 1 << 20


def acquired_later(arena: Arena, nbytes: int) -> tuple[threading.Thread, list[Region]]:
    """Ask for a piece on another thread; returns when that thread is waiting or has it."""
    found: list[Region] = []
    waiting = threading.Thread(target=lambda: found.append(arena.acquire(nbytes, 30.0)))
    waiting.start()
    waiting.join(0.05)
    return waiting, found


@pytest.mark.parametrize("nbytes", [0, -5, MIN_ARENA_NBYTES - 1])
def test_a_budget_that_is_too_small_is_refused(nbytes: int) -> None:
    with pytest.raises(ds.UsageError, match=str(MIN_ARENA_NBYTES)):
        Arena(nbytes)


def test_nothing_is_taken_before_it_is_needed() -> None:
    assert Arena(1 << 40).statistics().nbytes == 0


def test_not_much_more_is_taken_than_was_in_use_at_one_time() -> None:
    arena = Arena(1 << 30)
    for _ in range(10):
        held = [arena.acquire(MIB, 1.0) for _ in range(10)]
        for region in held:
            arena.release(region)
    assert 10 * MIB <= arena.statistics().nbytes <= 20 * MIB
    big = arena.acquire(200 * MIB, 1.0)
    assert 200 * MIB <= arena.statistics().nbytes <= 264 * MIB
    assert repr(arena).startswith(f"<Arena {200 * MIB} of ")
    arena.release(big)


def test_it_is_never_larger_than_the_budget() -> None:
    arena = Arena(9 * MIB + 5)
    held = [arena.acquire(3 * MIB, 1.0) for _ in range(3)]
    with pytest.raises(SaveTimeoutError):
        arena.acquire(PAGE, 0.0)
    assert arena.statistics().nbytes == arena.budget == 9 * MIB
    assert arena.room_nbytes() == 0
    arena.release(held[0])
    assert arena.room_nbytes() == 3 * MIB


def test_memory_is_used_again() -> None:
    arena = Arena(64 * MIB)
    block = arena.acquire(32 * MIB, 1.0)
    taken = arena.statistics().nbytes
    arena.release(block)
    again = arena.acquire(PAGE, 1.0)
    assert arena.statistics().nbytes == taken
    assert address(again.data) == address(block.data)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * MIB)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_pieces_are_aligned_and_never_overlap(steps: list[tuple[bool, int]]) -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    held: list[Region] = []
    for take, number in steps:
        if take:
            try:
                held.append(arena.acquire(number, 0.0))
            except SaveTimeoutError:
                continue
            assert len(held[-1].data) == number
            assert number == 0 or address(held[-1].data) % PAGE == 0
        elif held:
            arena.release(held.pop(number % len(held)))
    spans = sorted((r.start, r.start + len(r.data)) for r in held if len(r.data))
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    for region in held:
        arena.release(region)
    assert arena.statistics().used_nbytes == 0
    arena.release(arena.acquire(MIN_ARENA_NBYTES, 0.0))  # all of it is one piece again


def test_a_full_arena_lends_as_soon_as_a_piece_comes_back() -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    first, second = arena.acquire(6 * MIB, 1.0), arena.acquire(2 * MIB, 1.0)
    waiting, found = acquired_later(arena, 3 * MIB)
    arena.release(second)
    assert waiting.is_alive(), "there is no room for it yet"
    arena.release(first)
    waiting.join(10)
    assert len(found) == 1


def test_who_waits_too_long_is_told_what_for() -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    arena.acquire(5 * MIB, 1.0)
    with pytest.raises(SaveTimeoutError, match=f"{4 * MIB} bytes.*{5 * MIB} bytes in use"):
        arena.acquire(4 * MIB, 0.01)
    arena.acquire(3 * MIB, 0.0)  # whoever gave up stands in nobody's way


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    small = arena.acquire(MIB, 1.0)
    large, got_large = acquired_later(arena, 8 * MIB)
    late, got_late = acquired_later(arena, MIB)
    assert large.is_alive() and late.is_alive(), "the small one must not pass the large one"
    arena.release(small)
    large.join(10)
    assert got_large and late.is_alive()
    arena.release(got_large[0])
    late.join(10)
    assert got_late


def test_it_grows_while_pieces_are_lent_out() -> None:
    """The first, small save is still being written when a large tensor needs one large piece."""
    arena = Arena(64 * MIB)
    lent = arena.acquire(MIB, 1.0)
    lent.data[:] = 7
    large = arena.acquire(32 * MIB, 0.0)
    large.data[:] = 8
    assert (lent.data == 7).all(), "what is lent out stays where it is"


def test_where_there_is_no_memory_it_may_be_asked_for_again() -> None:
    arena = Arena(1 << 50)
    for _ in range(2):
        with pytest.raises((OSError, OverflowError)):
            arena.acquire(MIB, 1.0)
    assert arena.statistics().nbytes == arena.statistics().used_nbytes == 0


class Registry(Device):
    """A device that keeps count of the memory it was told of."""

    def __init__(self) -> None:
        self.pinned: set[tuple[int, int]] = set()

    def pin(self, memory: Bytes) -> None:
        self.pinned.add((address(memory), len(memory)))

    def unpin(self, memory: Bytes) -> None:
        self.pinned.remove((address(memory), len(memory)))

    mark = copy = hold = None  # type: ignore[assignment]


def test_memory_is_pinned_as_it_comes_and_unpinned_at_the_end() -> None:
    """Case 26: a page that stays registered cannot be registered again."""
    arena, device = Arena(64 * MIB), Registry()
    arena.acquire(4 * MIB, 1.0)
    for _ in range(2):
        arena.pin_for(device)
    arena.acquire(20 * MIB, 1.0)
    assert sum(size for _, size in device.pinned) == arena.statistics().nbytes
    arena.close()
    assert not device.pinned


def test_the_memory_is_given_back_at_the_end() -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    arena.acquire(MIB, 1.0)
    arena.close()
    assert arena.statistics().nbytes == 0


def test_a_forked_process_does_not_get_the_memory(start: Any) -> None:
    """Data loaders fork; the arena's pages would be copied for them at the next save."""
    script = start(
        """
        import os
        from datastates.arena import Arena
        data = Arena(8 << 20).acquire(4 << 20, 1.0).data
        data[:] = 5
        print(int(data.max()), flush=True)
        if not os.fork():
            print(int(data.max()), flush=True)
            os._exit(0)
        os.wait()
        """
    )
    assert [script.line(), script.line()] == ["5", "0"]
    script.end()


def test_fresh_memory_is_zero_and_writable() -> None:
    arena = Arena(MIN_ARENA_NBYTES)
    data = arena.acquire(MIN_ARENA_NBYTES, 1.0).data
    assert not data.any()
    data[:] = np.arange(len(data), dtype=np.uint8)


@pytest.mark.parametrize("works", [True, False])
def test_memory_is_faulted_in_without_changing_it(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one call for all pages, or page by page where an older kernel has no such call."""
    if not works:
        monkeypatch.setattr(memory, "_MADV_POPULATE_WRITE", 9999)
    data = memory.allocate(5 * MIB)
    data[::1000] = 3
    memory.populate(data)
    assert (data[::1000] == 3).all() and data.sum() == 3 * len(data[::1000])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"meminfo": "MemTotal: 9 kB\nMemAvailable: 1000 kB\n"}, 1_024_000),
        ({"meminfo": "MemAvailable: 1000 kB\n", "max": "max\n", "current": "5\n"}, 1_024_000),
        ({"meminfo": "MemAvailable: 1000 kB\n", "max": "900\n", "current": "300\n"}, 600),
        ({"meminfo": "MemAvailable: 1000 kB\n", "max": "900\n", "current": "1000\n"}, 0),
        ({"meminfo": "MemAvailable: 1000 kB\n", "max": "9000000\n", "current": "3\n"}, 1_024_000),
        ({"meminfo": "MemTotal: 9 kB\n"}, None),
        ({}, None),
    ],
)
def test_free_memory_is_what_the_system_and_the_container_leave(
    files: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_(path: str, **options: Any) -> io.StringIO:
        name = path.rpartition("/")[2].removeprefix("memory.")
        if name not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[name])

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", open_)
        found = memory.available_nbytes()
    assert found == expected or (expected is None and found > 0)


def test_a_limit_below_the_budget_can_be_raised_and_takes_nothing_back() -> None:
    arena = Arena(64 * MIB)
    arena.limit(MIB)
    held = [arena.acquire(4 * MIB, 0.0) for _ in range(2)]
    with pytest.raises(SaveTimeoutError):
        arena.acquire(PAGE, 0.0)
    arena.limit(12 * MIB)
    held.append(arena.acquire(4 * MIB, 0.0))
    arena.limit(MIB)
    assert arena.statistics().nbytes == 12 * MIB and arena.room_nbytes() == 0
    arena.limit(1 << 40)
    assert arena.room_nbytes() == 52 * MIB
