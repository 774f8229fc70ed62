"""Plans kept between saves: the same as one made anew, whatever has changed since."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datastates.containers import CONTAINERS
from datastates.names import Path
from datastates.plan import Plan, make_plan
from datastates.planner import Planner
from datastates.provider import ArrayLeaf
from datastates.registry import Providers, installed
from datastates.tree import flatten

MIB = 1 << 20
ARENA = 64 * MIB
PROVIDERS = Providers([*CONTAINERS, *installed()])

Leaves = list[tuple[Path, ArrayLeaf]]


def leaves_of(state: Any) -> Leaves:
    return flatten(state, PROVIDERS).leaves


def sample() -> dict[str, Any]:
    tied = torch.zeros(300)
    return {
        "large": torch.zeros(10 * MIB),
        "small": torch.zeros(3, 5),
        "tied": [tied, tied, tied[10:20]],
        "step": torch.tensor(1.0),
        "epoch": torch.tensor(7),
    }


# The same structure.


def test_the_plan_of_the_same_structure_is_used_again() -> None:
    planner, state = Planner(), sample()
    first = planner.plan(leaves_of(state), ARENA, {0})
    state["large"].add_(1)
    again = planner.plan(leaves_of(state), ARENA, {0})
    assert again == first == make_plan(leaves_of(state), ARENA, {0})
    assert again.segments is first.segments, "nothing was placed anew"


def test_tensors_that_lie_elsewhere_now_have_the_same_plan() -> None:
    """As after each step of an optimizer that makes new ones."""
    planner = Planner()
    kept = [sample() for _ in range(3)]
    plans = [planner.plan(leaves_of(state), ARENA) for state in kept]
    assert all(plan.segments is plans[0].segments for plan in plans)


def test_values_that_lie_in_the_plan_are_those_of_now() -> None:
    planner, state = Planner(), sample()
    before = planner.plan(leaves_of(state), ARENA)
    state["step"].fill_(2.0)
    after = planner.plan(leaves_of(state), ARENA)
    assert after == make_plan(leaves_of(state), ARENA) != before
    inline = [array.inline for array in after.arrays if array.inline is not None]
    assert torch.tensor(2.0).numpy().tobytes() in inline
    assert torch.tensor(7).numpy().tobytes() in inline


# Another structure.


def with_changed(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.__setitem__(key, value)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another path": lambda state: state.__setitem__("new", state.pop("small")),
    "another order": lambda state: state.__setitem__("large", state.pop("large")),
    "one more": with_changed("more", torch.zeros(2)),
    "one less": lambda state: state.pop("small"),
    "another dtype": with_changed("small", torch.zeros(3, 5, dtype=torch.int32)),
    "another shape": with_changed("small", torch.zeros(5, 3)),
    "another length": with_changed("large", torch.zeros(9 * MIB)),
    "a new tie": lambda state: state.__setitem__("small", state["tied"][0][:15].view(3, 5)),
    "a tie less": lambda state: state["tied"].__setitem__(1, torch.zeros(300)),
    "another part of it": lambda state: state["tied"].__setitem__(2, state["tied"][0][20:30]),
    "a scalar for an array": with_changed("small", torch.tensor(1.0)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_is_made_anew_where_the_structure_is_another(
    change: Callable[[dict[str, Any]], object],
) -> None:
    planner, state = Planner(), sample()
    before = planner.plan(leaves_of(state), ARENA)
    change(state)
    after = planner.plan(leaves_of(state), ARENA)
    assert after == make_plan(leaves_of(state), ARENA)
    assert after.arrays != before.arrays


def test_a_plan_is_made_anew_for_another_arena_and_other_lazy_leaves() -> None:
    planner, leaves = Planner(), leaves_of(sample())
    plans = [
        planner.plan(leaves, arena, lazy)
        for arena, lazy in ((ARENA, ()), (8 * MIB, ()), (8 * MIB, {0}), (ARENA, {0}))
    ]
    assert plans == [
        make_plan(leaves, ARENA),
        make_plan(leaves, 8 * MIB),
        make_plan(leaves, 8 * MIB, {0}),
        make_plan(leaves, ARENA, {0}),
    ]
    assert [any(s.lazy for s in plan.segments) for plan in plans] == [False, False, True, True]


LEAF = st.sampled_from(
    [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.float64),
        torch.tensor(1.0),
        torch.tensor(2.0),
        torch.zeros(0),
        torch.zeros(MIB),
    ]
)
STATES = st.dictionaries(st.sampled_from("abcd"), LEAF, max_size=4)


@given(st.lists(st.tuples(STATES, st.sampled_from([8 * MIB, ARENA]), st.booleans()), max_size=6))
def test_whatever_comes_the_plan_is_as_one_made_anew(
    calls: list[tuple[dict[str, torch.Tensor], int, bool]],
) -> None:
    planner = Planner()
    for state, arena, lazily in calls:
        leaves = leaves_of(state)
        lazy = {i for i, (_, leaf) in enumerate(leaves) if lazily and leaf.watch is not None}
        assert planner.plan(leaves, arena, lazy) == make_plan(leaves, arena, lazy)


def test_a_plan_keeps_no_memory_of_the_state() -> None:
    """Case 37: it is kept between saves."""
    planner = Planner()
    plan = planner.plan(leaves_of(sample()), ARENA)
    assert isinstance(plan, Plan) and replace(plan) == plan
    held = repr(vars(planner))
    assert "Source" not in held and "tensor(" not in held


# Many leaves.


def test_a_hundred_thousand_leaves_are_planned_in_little_time() -> None:
    """A third of them scalars, as the state of an optimizer; bounds for a busy machine."""
    state = {
        n: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(8), "exp_avg_sq": torch.zeros(8)}
        for n in range(33_334)
    }
    leaves, planner, took = leaves_of(state), Planner(), []
    for _ in range(3):
        start = perf_counter()
        planner.plan(leaves, ARENA)
        took.append(perf_counter() - start)
    print("planned 100,002 leaves in", *(f"{seconds:.3f} s" for seconds in took))
    assert took[0] < 10 and min(took[1:]) < 1
