"""What every tier has to keep, as tests: subclass `TierTests`, say how yours is made, run pytest.

    class TestMyTier(TierTests):
        def make(self, place: Path) -> Tier:
            return MyTier(str(place))

Checks never trust the object that did the work: they look through a second one on the same place,
and, where you give them the means (`spoil`, `left`), at the place itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from datastates.errors import StepNotFoundError
from datastates.manifest import Manifest
from datastates.plan import Plan
from datastates.tier import Entry, Record, Tier

from .samples import SampleStep, sample_step
from .tier_base import assert_holds, sealed
from .tier_machine import TierMachine
from .tier_reading import ReadingTests

__all__ = ["TierTests"]


class TierTests(ReadingTests):
    """The suite; its methods say what is asked of a tier."""

    # What is there.

    def test_an_empty_place_has_no_steps(self, tier: Tier) -> None:
        """Looking at a place that does not exist is no error, and finds nothing."""
        assert list(tier.entries()) == []
        assert tier.newest() is None
        assert list(tier.incomplete()) == []
        assert tier.sweep() == []

    def test_looking_makes_nothing(self, tier: Tier, place: Path) -> None:
        """Whoever only reads leaves no trace."""
        tier.entries(), tier.newest(), tier.sweep(), tier.free_nbytes()
        assert self.left(place) == []

    def test_a_committed_step_comes_back_byte_for_byte(self, tier: Tier, eyes: Tier) -> None:
        """All kinds of extents: several chunks, one long one, small ones that share a page."""
        step = sample_step()
        entry = step.put(tier, 7)
        assert entry == Entry(7)
        assert list(eyes.entries()) == [entry]
        assert eyes.newest() == entry
        assert_holds(eyes, entry, step)

    def test_a_step_without_arrays_is_a_step(self, tier: Tier, eyes: Tier) -> None:
        """A state may be plain values only."""
        plan = Plan((), (), (), 0, 0)
        entry = SampleStep(plan, Manifest((), (), [1, "a"], 0), np.empty(0, np.uint8)).put(tier, 0)
        with eyes.open(entry) as reader:
            assert reader.manifest().skeleton == [1, "a"]

    def test_the_record_comes_back(self, tier: Tier, eyes: Tier) -> None:
        """Metrics of any float, metadata of any JSON."""
        step = sample_step()
        metrics = {"loss": 1e-300, "up": np.inf, "down": -np.inf, "zero": -0.0, "ä b": 5.0}
        metadata = {"commit": "…", "deep": {"list": [1, 2.5, None, True, {"": ""}]}}
        record = Record(3, 12345, "2026-01-01T00:00:00+00:00", metrics, metadata)
        writer = sealed(tier, 3, step)
        entry = writer.commit(record)
        assert eyes.info(entry) == record

    def test_a_metric_that_is_not_a_number_comes_back(self, tier: Tier, eyes: Tier) -> None:
        """NaN is a value like any other."""
        record = Record(3, 0, "now", {"loss": np.nan})
        entry = sealed(tier, 3, sample_step()).commit(record)
        assert np.isnan(eyes.info(entry).metrics["loss"])

    def test_steps_are_listed_ascending(self, tier: Tier, eyes: Tier) -> None:
        """Whatever the order in which they were saved, and however large their numbers are."""
        numbers = [10**18, 5, 0, 11, 9, 10**10, 10**9]
        for number in numbers:
            sample_step().put(tier, number)
        assert list(eyes.entries()) == [Entry(number) for number in sorted(numbers)]
        assert eyes.newest() == Entry(10**18)

    def test_what_is_not_there_is_not_found(self, tier: Tier) -> None:
        """`info` and `open` name the step."""
        sample_step().put(tier, 1)
        for look in (tier.info, tier.open):
            with pytest.raises(StepNotFoundError) as caught:
                look(Entry(2))
            assert caught.value.step == 2
            with pytest.raises(StepNotFoundError):
                look(Entry(1, 1))

    def test_it_describes_itself(self, tier: Tier) -> None:
        """For messages: `repr`, `where`, `location`, `free_nbytes`."""
        entry = sample_step().put(tier, 12)
        assert tier.location in repr(tier)
        assert "12" in tier.where(entry)
        free = tier.free_nbytes()
        assert free is None or free >= 0

    # On the way in.

    def test_a_step_is_invisible_until_it_is_committed(self, tier: Tier, eyes: Tier) -> None:
        """Not after begin, not half-written, not sealed."""
        step = sample_step()
        writer = tier.begin(5, step.plan)
        assert list(eyes.entries()) == []
        for segment in step.plan.segments:
            writer.write(segment, step.data(segment))
            assert list(eyes.entries()) == []
        writer.seal(step.manifest)
        assert list(eyes.entries()) == []
        for look in (eyes.info, eyes.open):
            with pytest.raises(StepNotFoundError):
                look(Entry(5))
        writer.commit(step.record(5))
        assert list(eyes.entries()) == [Entry(5)]

    @pytest.mark.parametrize("stage", ["begun", "half-written", "written", "sealed"])
    def test_an_aborted_step_leaves_nothing(
        self, tier: Tier, eyes: Tier, place: Path, stage: str
    ) -> None:
        """Whenever it is given up, and the next save of that step is as good as any."""
        step = sample_step()
        kept = sample_step(1).put(tier, 4)
        before = self.left_if_told(place)
        if stage == "sealed":
            writer = sealed(tier, 5, step)
        else:
            writer = tier.begin(5, step.plan)
            stop = {"begun": 0, "half-written": 1, "written": len(step.plan.segments)}[stage]
            for segment in step.plan.segments[:stop]:
                writer.write(segment, step.data(segment))
        writer.abort()
        assert list(eyes.entries()) == [kept]
        assert self.left_if_told(place) == before
        assert_holds(eyes, step.put(tier, 5), step)

    def test_segments_come_in_any_order_from_several_threads(self, tier: Tier, eyes: Tier) -> None:
        """As the pipeline writes them."""
        step = sample_step(limit_nbytes=16 << 10)
        writer = tier.begin(1, step.plan)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda s: writer.write(s, step.data(s)), reversed(step.plan.segments)))
        writer.seal(step.manifest)
        assert_holds(eyes, writer.commit(step.record(1)), step)

    def test_written_memory_may_be_used_again_at_once(self, tier: Tier, eyes: Tier) -> None:
        """The arena gives each piece to the next save."""
        step, scratch = sample_step(), sample_step()
        writer = tier.begin(1, step.plan)
        for segment in step.plan.segments:
            writer.write(segment, scratch.data(segment))
            scratch.data(segment)[:] = 0x55
        writer.seal(step.manifest)
        assert_holds(eyes, writer.commit(step.record(1)), step)

    def test_writers_of_several_steps_do_not_meet(self, tier: Tier, eyes: Tier) -> None:
        """Two steps on their way at once, in one tier object or in two."""
        one, two = sample_step(1), sample_step(2)
        writers = [(tier.begin(1, one.plan), one, 1), (eyes.begin(2, two.plan), two, 2)]
        for index in range(max(len(one.plan.segments), len(two.plan.segments))):
            for writer, step, _ in writers:
                for segment in step.plan.segments[index : index + 1]:
                    writer.write(segment, step.data(segment))
        for writer, step, number in writers:
            writer.seal(step.manifest)
            assert_holds(eyes, writer.commit(step.record(number)), step)
        assert list(eyes.entries()) == [Entry(1), Entry(2)]

    # Saving a step again.

    def test_the_old_save_stays_until_the_new_one_is_committed(
        self, tier: Tier, eyes: Tier
    ) -> None:
        """Then both are listed, and the new one counts."""
        old, new = sample_step(1), sample_step(2)
        first = old.put(tier, 5)
        writer = sealed(tier, 5, new)
        assert list(eyes.entries()) == [first]
        assert_holds(eyes, first, old)
        second = writer.commit(new.record(5))
        assert second.step == 5
        assert second.generation > first.generation
        assert list(eyes.entries()) == [first, second]
        assert eyes.newest() == second
        assert_holds(eyes, second, new)
        tier.delete(second)
        assert list(eyes.entries()) == [first]
        assert_holds(eyes, first, old)

    def test_of_two_saves_at_once_the_later_begun_wins(self, tier: Tier, eyes: Tier) -> None:
        """Whichever commits first, even if a third one was given up in between."""
        steps = [sample_step(seed) for seed in range(3)]
        given_up = tier.begin(5, steps[0].plan)
        early = sealed(tier, 5, steps[1])
        given_up.abort()
        late = sealed(eyes, 5, steps[2])
        entries = [late.commit(steps[2].record(5)), early.commit(steps[1].record(5))]
        assert eyes.newest() == entries[0]
        assert_holds(eyes, entries[0], steps[2])
        assert_holds(eyes, entries[1], steps[1])

    # Removing.

    def test_a_deleted_step_is_gone(self, tier: Tier, eyes: Tier, place: Path) -> None:
        """With all that was left of it; deleting it again is no error."""
        kept = sample_step(1).put(tier, 1)
        before = self.left_if_told(place)
        gone = sample_step(2).put(tier, 2)
        for remove in (tier, tier, eyes):
            remove.delete(gone)
            assert list(eyes.entries()) == [kept]
            for look in (tier.info, tier.open):
                with pytest.raises(StepNotFoundError):
                    look(gone)
        assert self.left_if_told(place) == before
        assert_holds(eyes, kept, sample_step(1))

    def test_a_step_deleted_while_it_is_read_is_never_wrong(self, tier: Tier, eyes: Tier) -> None:
        """The reader gets the right bytes, or hears that the step is gone."""
        step = sample_step()
        entry = step.put(tier, 1)
        with eyes.open(entry) as reader:
            tier.delete(entry)
            for extent in step.extents():
                out = np.empty(extent.nbytes, np.uint8)
                try:
                    reader.read(extent, out)
                except StepNotFoundError:
                    continue
                assert out.tobytes() == step.data(extent).tobytes()

    def test_a_live_saver_is_never_swept(self, tier: Tier, eyes: Tier) -> None:
        """It is listed as incomplete, by whoever can tell, and goes on to its commit."""
        step = sample_step()
        writer = tier.begin(5, step.plan)
        for segment in step.plan.segments:
            assert eyes.sweep() == tier.sweep() == []
            assert all(half.alive and half.reason for half in eyes.incomplete())
            writer.write(segment, step.data(segment))
        writer.seal(step.manifest)
        assert eyes.sweep() == []
        assert_holds(eyes, writer.commit(step.record(5)), step)
        assert eyes.sweep() == []
        assert list(eyes.incomplete()) == []

    def test_it_behaves_as_the_reference(self, tmp_path: Path) -> None:
        """Random calls, side by side with the tier `memory`."""
        number = count()

        def machine() -> TierMachine:
            return TierMachine(partial(self.make, tmp_path / f"machine{next(number)}"))

        settings_ = settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(machine, settings=settings_)  # type: ignore[arg-type] # takes any maker
