"""A model of saving beside training, as discrete events. Pure: numbers in, numbers out.

All GPUs do the same at the same time, so one of them is simulated, with its share of what is
shared. A save is cut into pieces; each piece is copied from the device into the arena, sent from
there to a peer, to storage, or to both, and its room is free again when all of that is done. Each
of the three links serves one piece after the other:

    device ──copy──▶ arena (bounded) ──flush──▶ storage ─tail─▶ durable
                                     └──send──▶ peer memory

What the model leaves out, on purpose: interference (a copy that slows a kernel down, a flush that
slows a collective down), ranks that differ, storage that is shared with other jobs, failures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, inf

PIECES = 64
"""Pieces of a save. More change the results by less than 1/64 of a copy."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU trains and saves."""

    nbytes: float
    """Its part of the checkpoint."""
    window_s: float
    """Forward and backward of an iteration: nothing that is saved changes."""
    update_s: float
    """The optimizer's step."""
    iterations: int
    interval: int
    """Iterations from one save to the next."""

    @property
    def iteration_s(self) -> float:
        return self.window_s + self.update_s

    @property
    def period_s(self) -> float:
        """Seconds of training from one save to the next."""
        return self.interval * self.iteration_s


@dataclass(frozen=True, slots=True)
class Rates:
    """What one GPU gets, in bytes per second."""

    copy: float
    flush: float
    send: float = inf


@dataclass(frozen=True, slots=True)
class Policy:
    """How a save is made."""

    name: str
    blocks: bool = False
    """The call returns when the save is durable."""
    lazy: bool = False
    """The call returns at once; the fence before the update waits for the copy."""
    peer: bool = False
    """Each save goes to a peer's memory too."""
    store_every: int = 1
    """Which saves go to storage: each n-th."""
    call_s: float = 0.0
    """What each call costs in any case: planning, small values."""
    tail_s: float = 0.0
    """From the last byte written until the step is committed."""
    arena_states: float = 2.0
    """Room in the arena, in states."""

    def __post_init__(self) -> None:
        if self.store_every > 1 and not self.peer:
            raise ValueError("a save must go to a peer or to storage")


@dataclass(frozen=True, slots=True)
class SaveTrace:
    """One save; times in seconds since the start."""

    called_s: float
    stall_s: float
    """In the call and at the fence."""
    copied_s: float
    safe_s: float
    """Complete away from this node: at the peer, or in storage."""
    stored_nbytes: float
    sent_nbytes: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run with its saves."""

    saves: tuple[SaveTrace, ...]
    trained_s: float
    """When the last iteration had ended."""
    end_s: float
    """When everything was durable too."""
    peak_nbytes: float
    """Most memory in use in the arena."""

    @property
    def stall_s(self) -> float:
        """Mean of a save."""
        return sum(s.stall_s for s in self.saves) / len(self.saves) if self.saves else 0.0

    def lost_s(self) -> float:
        """Return the mean time that a node's death costs: back to the newest safe save."""
        points = [(0.0, 0.0), *((s.safe_s, s.called_s) for s in self.saves)]
        ends = [min(safe, self.trained_s) for safe, _ in points[1:]] + [self.trained_s]
        total = 0.0
        for (start, called), end in zip(points, ends, strict=True):
            if end > start:
                total += ((end - called) ** 2 - (start - called) ** 2) / 2
        return total / self.trained_s


class Links:
    """The three links and the arena of one GPU."""

    def __init__(self, nbytes: float, rates: Rates, policy: Policy) -> None:
        self._nbytes, self._rates, self._policy = nbytes, rates, policy
        self._room = max(1, int(policy.arena_states * PIECES))
        self._held: list[float] = []
        self._copy_free = self._flush_free = self._send_free = 0.0
        self.peak = 0

    def save(self, now: float, store: bool) -> tuple[float, float, float]:
        """Return when this save is copied, durable and at the peer (infinite if it goes not)."""
        copied, flushed, sent = now, now, now
        for _ in range(PIECES):
            copied = self._copy(now)
            flushed = self._flush(copied) if store else copied
            sent = self._send(copied) if self._policy.peer else copied
            heappush(self._held, max(flushed, sent))
            self.peak = max(self.peak, len(self._held))
        if store:
            self._flush_free = flushed = flushed + self._policy.tail_s
        return copied, flushed if store else inf, sent if self._policy.peer else inf

    @property
    def drained_s(self) -> float:
        """When all three have nothing left to do."""
        return max(self._copy_free, self._flush_free, self._send_free)

    def _copy(self, now: float) -> float:
        start = max(self._copy_free, now)
        while self._held and self._held[0] <= start:
            heappop(self._held)
        if len(self._held) >= self._room:
            start = heappop(self._held)
        self._copy_free = start + self._nbytes / PIECES / self._rates.copy
        return self._copy_free

    def _flush(self, ready: float) -> float:
        self._flush_free = max(self._flush_free, ready) + self._nbytes / PIECES / self._rates.flush
        return self._flush_free

    def _send(self, ready: float) -> float:
        self._send_free = max(self._send_free, ready) + self._nbytes / PIECES / self._rates.send
        return self._send_free


def simulate(work: Work, rates: Rates, policy: Policy) -> Outcome:
    """Train and save: forward and backward, the fence, the update; then the call, if it is due.

    A call after the last iteration is fenced too, by the end of the run.
    """
    if policy.blocks:  # one piece after the other is copied and written
        policy = replace(policy, arena_states=1 / PIECES)
    links = Links(work.nbytes, rates, policy)
    saves: list[SaveTrace] = []
    now = fence = 0.0
    for iteration in range(1, work.iterations + 1):
        now += work.window_s
        now = _fence(saves, now, fence)
        now += work.update_s
        if iteration % work.interval == 0:
            save, now = _call(links, work.nbytes, policy, now, len(saves))
            saves.append(save)
            fence = save.copied_s
    peak = links.peak * work.nbytes / PIECES
    return Outcome(tuple(saves), now, max(now, links.drained_s), peak)


def _fence(saves: list[SaveTrace], now: float, copied_s: float) -> float:
    if copied_s <= now:
        return now
    saves[-1] = replace(saves[-1], stall_s=saves[-1].stall_s + copied_s - now)
    return copied_s


def _call(
    links: Links, nbytes: float, policy: Policy, now: float, nth: int
) -> tuple[SaveTrace, float]:
    store = (nth + 1) % policy.store_every == 0
    begun = now + policy.call_s
    copied, durable, sent = links.save(begun, store)
    returned = durable if policy.blocks else begun if policy.lazy else copied
    sizes = (nbytes if store else 0.0, nbytes if policy.peer else 0.0)
    return SaveTrace(now, returned - now, copied, min(durable, sent), *sizes), returned


def regime(work: Work, rates: Rates, policy: Policy) -> str:
    """Return what bounds lazy saving: `flush`, `send`, `copy`, or `nothing` (all is hidden)."""
    if work.nbytes / rates.flush + policy.tail_s > work.period_s * policy.store_every:
        return "flush"
    if policy.peer and work.nbytes / rates.send > work.period_s:
        return "send"
    return "copy" if work.nbytes / rates.copy > work.window_s else "nothing"


def shortest_interval(work: Work, rates: Rates, policy: Policy) -> int:
    """Return the least number of iterations between saves at which storage keeps up."""
    busy_s = work.nbytes / rates.flush + policy.tail_s
    return max(1, ceil(busy_s / (work.iteration_s * policy.store_every) - 1e-9))


def throughput(nbytes: float, stall_s: float) -> float:
    """Return checkpoint throughput as the papers define it: bytes by the time training waits."""
    return nbytes / stall_s if stall_s else inf
