"""The simulation of saving at scale: its laws, its regimes, and the published rows it is held to.

Nothing here says how fast anything is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
model: Any = import_module("scale_model")
facts: Any = import_module("scale_facts")
study: Any = import_module("scale_study")
sys.path.remove(str(BENCHMARKS))

Policy, Rates, Work = model.Policy, model.Rates, model.Work
SYNC = Policy("synchronous", blocks=True)
EAGER = Policy("eager")
LAZY = Policy("lazy", lazy=True)
PEER = Policy("peer", lazy=True, peer=True, store_every=3)
POLICIES = (SYNC, EAGER, LAZY, PEER)

seconds = st.floats(0.01, 20)
rates = st.floats(0.05, 50)
works = st.builds(
    Work, st.floats(0.1, 20), seconds, st.floats(0, 2), st.integers(1, 12), st.integers(1, 4)
)
all_rates = st.builds(Rates, rates, rates, rates)
policies = st.sampled_from(POLICIES).flatmap(
    lambda p: st.builds(
        replace,
        st.just(p),
        arena_states=st.sampled_from((2.0, 1.0, 0.5, 0.05)),
        call_s=st.floats(0, 0.1),
        tail_s=st.floats(0, 0.5),
    )
)
SLACK = 1e-6


@pytest.fixture(scope="module")
def measured() -> Any:
    return facts.engines(BENCHMARKS / "results")


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies)
def test_stalls_are_never_negative_and_make_up_all_the_time_added(work, rate, policy) -> None:
    found = model.simulate(work, rate, policy)
    stalls = [s.stall_s for s in found.saves]
    assert min(stalls, default=0.0) >= 0
    alone = work.iterations * work.iteration_s
    assert found.trained_s == pytest.approx(alone + sum(stalls), rel=1e-9)
    assert found.end_s >= found.trained_s


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies)
def test_every_byte_of_every_save_goes_where_the_policy_says(work, rate, policy) -> None:
    found = model.simulate(work, rate, policy)
    assert len(found.saves) == work.iterations // work.interval
    stored = len(found.saves) // policy.store_every
    assert sum(s.stored_nbytes for s in found.saves) == pytest.approx(stored * work.nbytes)
    sent = len(found.saves) if policy.peer else 0
    assert sum(s.sent_nbytes for s in found.saves) == pytest.approx(sent * work.nbytes)
    assert found.end_s >= stored * work.nbytes / rate.flush - SLACK
    assert found.end_s >= sent * work.nbytes / rate.send - SLACK
    assert all(s.called_s <= s.copied_s <= s.safe_s for s in found.saves)


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies)
def test_the_arena_never_holds_more_than_its_budget(work, rate, policy) -> None:
    room = max(policy.arena_states, 1 / model.PIECES) * work.nbytes
    assert model.simulate(work, rate, policy).peak_nbytes <= room + SLACK


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies, st.sampled_from(("copy", "flush", "send")), st.floats(1, 10))
def test_no_faster_link_makes_a_run_longer(work, rate, policy, link, factor) -> None:
    faster = replace(rate, **{link: getattr(rate, link) * factor})
    before, after = (model.simulate(work, r, policy) for r in (rate, faster))
    assert after.trained_s <= before.trained_s + SLACK
    assert after.end_s <= before.end_s + SLACK


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies)
def test_more_memory_makes_no_run_longer(work, rate, policy) -> None:
    larger = replace(policy, arena_states=policy.arena_states * 2)
    before, after = (model.simulate(work, rate, p) for p in (policy, larger))
    assert after.trained_s <= before.trained_s + SLACK


@settings(max_examples=60, deadline=None)
@given(works, all_rates, st.sampled_from((2.0, 1.0, 0.5, 0.05)))
def test_a_lazy_save_stalls_no_longer_than_an_eager_one_and_that_than_a_blocking_one(
    work, rate, states
) -> None:
    lazy, eager, blocking = (
        model.simulate(work, rate, replace(p, arena_states=states)).trained_s
        for p in (LAZY, EAGER, SYNC)
    )
    assert lazy <= eager + SLACK
    assert eager <= blocking + SLACK


@settings(max_examples=60, deadline=None)
@given(works, all_rates, policies)
def test_no_more_work_is_lost_than_was_done(work, rate, policy) -> None:
    found = model.simulate(work, rate, policy)
    assert 0 <= found.lost_s() <= found.trained_s


WORK = Work(nbytes=10, window_s=2, update_s=0.5, iterations=100, interval=2)


def test_each_policy_stalls_for_what_it_waits_for() -> None:
    rate = Rates(copy=10, flush=5)
    stalls = {p.name: model.simulate(WORK, rate, p).stall_s for p in (SYNC, EAGER, LAZY)}
    assert stalls == pytest.approx({"synchronous": 1 + 2, "eager": 1, "lazy": 0})


@pytest.mark.parametrize(
    ("rate", "bound"),
    [
        (Rates(copy=10, flush=5), "nothing"),
        (Rates(copy=4, flush=4), "copy"),
        (Rates(copy=10, flush=1.9), "flush"),
    ],
)
def test_lazy_saves_stall_exactly_where_something_bounds_them(rate, bound) -> None:
    assert model.regime(WORK, rate, LAZY) == bound
    stall = model.simulate(WORK, rate, LAZY).stall_s
    assert (stall > 0) == (bound != "nothing")


def test_where_storage_is_the_bound_training_goes_at_its_rate() -> None:
    work = replace(WORK, interval=1)
    found = model.simulate(work, Rates(copy=10, flush=1), LAZY)
    assert found.end_s == pytest.approx(work.iterations * work.nbytes / 1, rel=0.05)


def test_the_shortest_interval_is_the_first_that_storage_bears() -> None:
    rate = Rates(copy=10, flush=1)
    least = model.shortest_interval(WORK, rate, LAZY)
    assert least == 4  # 10 s to write, 2.5 s an iteration
    bounds = [model.regime(replace(WORK, interval=n), rate, LAZY) for n in (least - 1, least)]
    assert bounds == ["flush", "nothing"]


def test_a_peer_that_keeps_up_takes_the_load_off_storage() -> None:
    work, rate = replace(WORK, interval=1), Rates(copy=20, flush=2, send=10)
    alone, with_peer = (model.simulate(work, rate, p) for p in (LAZY, PEER))
    assert model.regime(work, rate, LAZY) == "flush"
    assert model.regime(work, rate, PEER) == "nothing"
    assert with_peer.stall_s == 0 < alone.stall_s
    assert with_peer.lost_s() < alone.lost_s()


def test_a_peer_that_does_not_keep_up_holds_the_arena_and_so_the_fence() -> None:
    work, rate = replace(WORK, interval=1), Rates(copy=20, flush=20, send=1)
    assert model.regime(work, rate, PEER) == "send"
    found = model.simulate(work, rate, PEER)
    assert found.trained_s == pytest.approx(work.iterations * work.nbytes / 1, rel=0.05)


def test_what_goes_to_a_peer_alone_does_not_wait_for_storage() -> None:
    rarely = replace(PEER, store_every=1000, arena_states=2 / model.PIECES)
    found = model.simulate(WORK, Rates(copy=20, flush=1e-3, send=20), rarely)
    assert found.stall_s == 0


def test_the_work_lost_is_the_mean_time_since_the_newest_safe_call() -> None:
    work = replace(WORK, interval=1, iterations=2)
    found = model.simulate(work, Rates(copy=10, flush=5), LAZY)
    safe = 2.5 + 1 / model.PIECES + 2  # the first piece is copied before anything is written
    lost = safe**2 / 2 + (2.5**2 - (safe - 2.5) ** 2) / 2
    assert found.saves[0].safe_s == pytest.approx(safe)
    assert found.lost_s() == pytest.approx(lost / 5)


def test_a_save_that_would_go_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="peer or to storage"):
        Policy("nowhere", store_every=2)


def test_every_figure_has_a_kind_and_a_source() -> None:
    for name, figure in facts.FIGURES.items():
        assert 0 < figure.value < inf, name
        assert figure.kind in ("published", "cited", "measured", "assumed"), name
        assert len(figure.source) > 10, name


def test_storage_is_shared_and_no_writer_gets_more_than_one_target() -> None:
    links = [facts.POLARIS.link(gpus) for gpus in (4, 160, 320)]
    assert links == pytest.approx([650e9 / 160, 650e9 / 160, 650e9 / 320])


def test_published_rows_are_met_within_the_factor_that_is_stated(measured) -> None:
    found = study.checks(measured)
    assert len(found) == 9
    for check in found:
        assert check.agrees, (check.what, check.published, check.simulated)
        assert check.low is not None or check.factor <= 2


def test_a_row_that_differs_is_said_to_differ() -> None:
    check = study.Check("x", "", published=10, simulated=21, factor=2, words="")
    assert not check.agrees
    assert not replace(check, low=11, factor=inf).agrees


def test_the_script_writes_what_it_prints(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "scale.py"), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "scale.json").read_text())
    assert result["simulated"] is True
    assert {"checks", "grid", "limits", "same_writer", "arenas", "not_found"} < set(result)
    runs = {row["run"] for row in result["grid"]}
    assert runs == {run.name for run in facts.RUNS}
    assert all(run in done.stdout for run in runs)
    assert "DIFFERS" not in done.stdout
