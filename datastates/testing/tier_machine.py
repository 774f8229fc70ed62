"""A hypothesis state machine: random calls of a tier beside the same calls of the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from datastates.errors import StepNotFoundError
from datastates.plan import Segment
from datastates.registry import TIERS, load
from datastates.tier import Entry, Record, StepWriter, Tier

from .samples import SampleStep, sample_step

__all__ = ["TierMachine"]

_sample = cache(lambda seed: sample_step(seed, 4096))


@dataclass(slots=True, eq=False)
class _Save:
    """One save in both tiers."""

    step: int
    sample: SampleStep
    writers: tuple[StepWriter, StepWriter]
    left: list[Segment]

    def write(self) -> None:
        segment = self.left.pop(0)
        for writer in self.writers:
            writer.write(segment, self.sample.data(segment))


class TierMachine(RuleBasedStateMachine):
    """Saves, resaves, aborts, deletes, sweeps and reads; the two tiers must always agree.

    Args:
        make: returns a new tier object on one place, which is empty at first.
    """

    saves: Bundle[_Save] = Bundle("saves")
    steps = st.integers(0, 3)

    def __init__(self, make: Callable[[], Tier]) -> None:
        super().__init__()
        self._make, self._tier = make, make()
        self._reference: Tier = load(TIERS, "memory")(f"reference-{uuid4()}")
        self._open: list[_Save] = []
        self._twins: dict[Entry, Entry] = {}
        """The tier's entry of each of the reference's; their generations may differ."""
        self._samples: dict[Entry, SampleStep] = {}
        """What the reference's entries hold."""
        self._gone: set[Entry] = set()
        """What was deleted from the tier."""

    # Saving.

    @rule(target=saves, step=steps, seed=st.integers(0, 4))
    def begin(self, step: int, seed: int) -> _Save:
        """Begin a save; several may be under way, of one step too."""
        sample = _sample(seed)
        writers = self._tier.begin(step, sample.plan), self._reference.begin(step, sample.plan)
        self._open.append(_Save(step, sample, writers, list(sample.plan.segments)))
        return self._open[-1]

    @rule(save=saves)
    def write(self, save: _Save) -> None:
        """Write one segment."""
        if save.left:
            save.write()

    @rule(save=consumes(saves), loss=st.none() | st.floats())
    def commit(self, save: _Save, loss: float | None) -> None:
        """Write what is left, seal, and commit."""
        while save.left:
            save.write()
        metrics = {} if loss is None else {"loss": loss}
        record = Record(save.step, save.sample.plan.payload, "now", metrics, {"note": ["ä", None]})
        twin, entry = (self._commit(save, writer, record) for writer in save.writers)
        assert twin.step == entry.step == save.step
        assert twin not in self._twins.values(), "two saves of a step need two generations"
        self._twins[entry], self._samples[entry] = twin, save.sample
        self._open.remove(save)

    def _commit(self, save: _Save, writer: StepWriter, record: Record) -> Entry:
        writer.seal(save.sample.manifest)
        return writer.commit(record)

    @rule(save=consumes(saves), sealed=st.booleans())
    def abort(self, save: _Save, sealed: bool) -> None:
        """Give a save up, after its seal perhaps."""
        for writer in save.writers:
            if sealed and not save.left:
                writer.seal(save.sample.manifest)
            writer.abort()
        self._open.remove(save)

    # The rest.

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a step that is there."""
        if self._twins:
            entry = data.draw(st.sampled_from(sorted(self._twins)))
            self._reference.delete(entry)
            twin = self._twins.pop(entry)
            self._tier.delete(twin)
            self._gone.add(twin)

    @rule()
    def delete_again(self) -> None:
        """Delete what is gone: no error, and it is not found."""
        for entry in self._gone.difference(self._twins.values()):  # a name may be used again
            self._tier.delete(entry)
            for find in (self._tier.info, self._tier.open):
                try:
                    find(entry)
                except StepNotFoundError:
                    continue
                raise AssertionError(f"{entry} was deleted, and is still found")

    @rule()
    def sweep(self) -> None:
        """Sweep while saves are under way: they go on."""
        assert self._tier.sweep() == [], "there is no dead saver here"

    @rule()
    def reopen(self) -> None:
        """Go on with a new object on the same place."""
        self._tier.close()
        self._tier = self._make()

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Read a step, and its record."""
        if self._twins:
            entry = data.draw(st.sampled_from(sorted(self._twins)))
            record = self._reference.info(entry)
            assert repr(self._tier.info(self._twins[entry])) == repr(record)  # NaN is not equal
            self._compare(self._twins[entry], self._samples[entry])

    def _compare(self, entry: Entry, sample: SampleStep) -> None:
        with self._tier.open(entry) as reader:
            assert reader.manifest() == sample.manifest
            for extent in sample.extents():
                out = np.empty(extent.nbytes, np.uint8)
                reader.read(extent, out)
                assert out.tobytes() == sample.data(extent).tobytes()

    @invariant()
    def same_steps(self) -> None:
        """The same steps are there, in the same order."""
        expected = [self._twins[entry] for entry in self._reference.entries()]
        assert list(self._tier.entries()) == expected
        assert self._tier.newest() == max(expected, default=None)

    def teardown(self) -> None:
        """Abort what is left."""
        for save in self._open:
            for writer in save.writers:
                writer.abort()
        self._tier.close()
