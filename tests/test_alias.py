"""Names that share memory are found by the bytes they occupy, and by nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datastates.alias import Alias, find_aliases
from datastates.provider import ArrayLeaf, Memory
from datastates.providers.torch_memory import memory_of


def leaf(tensor, space=None):
    """A leaf as the tensor provider makes it, without a source."""
    memory = memory_of(tensor)
    if space is not None:
        memory = Memory(space, memory.start, memory.stop, memory.strides, memory.dense)
    return ArrayLeaf(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), None, memory)


def aliases(*tensors):
    return find_aliases([leaf(t) for t in tensors])


BASE = torch.arange(24.0)


@pytest.mark.parametrize(
    ("view", "offset"),
    [
        (BASE, 0),
        (BASE.view(4, 6), 0),
        (BASE[3:7], 12),
        (BASE[5], 20),
        (BASE[::2], 0),
        (BASE.view(4, 6).t(), 0),
        (BASE.view(4, 6)[1:, 2:4], 32),
        (BASE[:3].expand(5, 3), 0),
        (BASE.unfold(0, 4, 1), 0),
        (BASE.view(2, 3, 4).permute(2, 0, 1), 0),
    ],
)
@pytest.mark.parametrize("base_first", [True, False])
def test_a_view_within_a_whole_array_has_nothing_of_its_own(view, offset, base_first):
    """Whichever of them comes first in the state."""
    if base_first:
        assert aliases(BASE, view) == {1: Alias(0, offset)}
    elif view.numel() == 24 and view.is_contiguous():
        assert aliases(view, BASE) == {1: Alias(0, 0)}
    else:
        assert aliases(view, BASE) == {0: Alias(1, offset)}


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.empty(0), torch.empty(0), torch.empty(3, 0)),
        (BASE[:12], BASE[12:]),
        (BASE[:7], BASE[5:]),
        (BASE[::2], BASE[1::2]),
        (BASE.clone(), BASE.clone()),
        (BASE, BASE.view(torch.int32)),
        (BASE, BASE.view(torch.uint8)[1:9]),
    ],
)
def test_what_is_apart_or_of_another_type_is_no_alias(tensors):
    """Case 7."""
    assert aliases(*tensors) == {}


def test_the_same_strided_view_is_an_alias_of_itself():
    view = BASE.view(4, 6).t()[::2]
    assert aliases(view, view) == {1: Alias(0, 0, strided=True)}
    assert aliases(view, view[:2]) == {}


def test_one_address_in_two_spaces_is_two_places():
    assert find_aliases([leaf(BASE, "cuda:0"), leaf(BASE, "cuda:1")]) == {}
    assert find_aliases([leaf(BASE, "cuda:0"), leaf(BASE, "cuda:0")]) == {1: Alias(0, 0)}


def test_memory_that_starts_within_an_element_is_no_view():
    """Numpy makes such arrays from buffers."""
    places = [Memory("cpu", 4096, 4176, (1,), True), Memory("cpu", 4100, 4108, (1,), True)]
    found = [
        ArrayLeaf("float64", (shape,), None, m) for shape, m in zip((10, 1), places, strict=True)
    ]
    assert find_aliases(found) == {}


def test_a_leaf_without_memory_is_no_alias():
    alone = ArrayLeaf("float32", (3,), None, None)
    assert find_aliases([alone, alone]) == {}


def test_chains_of_views_all_point_at_the_whole():
    found = aliases(BASE[2:4], BASE[1:8], BASE, BASE[0:20], BASE[3:4])
    assert set(found) == {0, 1, 3, 4}
    assert {alias.base for alias in found.values()} == {2}


def test_thousands_of_leaves_are_looked_at_in_one_pass():
    memory = torch.zeros(200_000)
    parts = [memory[i * 10 : i * 10 + 10] for i in range(20_000)]
    assert aliases(*parts) == {}
    assert len(aliases(memory, *parts)) == 20_000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 3)), max_size=8))
def test_every_alias_has_the_bytes_of_its_view(cuts):
    """Bytes read through an alias are those of the view, however the views lie."""
    memory = torch.arange(64, dtype=torch.int16)
    views = [memory[start : start + size * step : step] for start, size, step in cuts]
    found = aliases(*views)
    for index, alias in found.items():
        base = views[alias.base]
        assert alias.base not in found
        first, step = alias.offset // 2, views[index].stride(0)
        if alias.strided:
            assert torch.equal(base, views[index])
        else:
            assert base.is_contiguous()
            assert np.array_equal(base.numpy()[first::step][: len(views[index])], views[index])
