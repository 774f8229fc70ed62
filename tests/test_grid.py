"""Arrays are cut into chunks that are one run of bytes each, and read and written through views."""

from itertools import pairwise
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from datastates.grid import PAGE, Grid, align, cut
from datastates.sources import ArraySink, ArraySource, is_c_order, is_dense, is_disjoint, walk

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
itemsizes = st.sampled_from([1, 2, 4, 8, 16])


@given(shapes, itemsizes, st.integers(1, 5_000))
@example((), 8, 1)
@example((3, 0, 2), 4, 8)
@example((1, 1, 7), 1, 2)
def test_the_chunks_are_the_array(shape, itemsize, limit):
    """In order, without gap or overlap, none over the limit but for single elements."""
    grid = cut(shape, itemsize, limit)
    assert grid.is_contiguous()
    assert grid.chunk_nbytes <= max(limit, itemsize)
    at = 0
    for index in range(grid.count):
        piece = grid.piece(index)
        assert piece.start == at
        assert piece.nbytes > 0
        assert piece.nbytes + piece.padding == grid.chunk_nbytes
        assert piece.start % itemsize == piece.nbytes % itemsize == 0
        at += piece.nbytes
    assert at == prod(shape) * itemsize


@given(shapes, itemsizes, st.integers(1, 5_000))
def test_the_chunks_are_where_a_zarr_reader_looks_for_them(shape, itemsize, limit):
    """Padded to full size, in C order of the grid."""
    grid = cut(shape, itemsize, limit)
    values = np.arange(prod(shape)).reshape(shape)
    padded = np.zeros(grid.outer, values.dtype)
    padded[tuple(map(slice, shape))] = values
    for index in range(grid.count):
        where = np.unravel_index(index, grid.counts) if shape else ()
        corner = [i * c for i, c in zip(where, grid.chunk, strict=True)]
        box = tuple(slice(a, a + c) for a, c in zip(corner, grid.chunk, strict=True))
        piece = grid.piece(index)
        first, count = piece.start // itemsize, piece.nbytes // itemsize
        found = padded[box].reshape(-1)
        assert np.array_equal(found[:count], values.reshape(-1)[first : first + count])
        assert not found[count:].any()


@given(st.integers(1, 200_000), itemsizes, st.integers(1_000, 5_000))
def test_little_is_wasted_on_padding(rows, itemsize, limit):
    grid = cut((rows,), itemsize, limit)
    assert grid.count * grid.chunk_nbytes - rows * itemsize < grid.count * itemsize


@given(st.integers(0, 1 << 40))
def test_aligned_is_the_next_page(nbytes):
    assert align(nbytes) % PAGE == 0
    assert 0 <= align(nbytes) - nbytes < PAGE


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [
        ((4, 4), (4,)),
        ((4, 4), (2, 2)),
        ((4, 4), (0, 4)),
        ((4, 4), (5, 4)),
        ((4, 4), (4, 5)),
        ((4, 4), (2, 3)),
        ((2, 3, 4), (2, 1, 4)),
        ((4,), (-1,)),
        ((-4,), (1,)),
        ((), (1,)),
    ],
)
def test_a_grid_whose_chunks_are_no_runs_of_bytes_is_told_apart(shape, chunk):
    assert not Grid(shape, chunk, 4).is_contiguous()


# Views.


@st.composite
def views(draw, dtype="i4"):
    """An array of up to four dimensions through any strides, also negative ones."""
    shape = draw(st.lists(st.integers(0, 6), min_size=0, max_size=4))
    made = np.arange(prod(shape), dtype=dtype).reshape(shape)
    made = made.transpose(draw(st.permutations(range(made.ndim))))
    steps = [slice(None, None, draw(st.sampled_from([1, 2, -1, -2]))) for _ in shape]
    return made[(*steps, ...)]


@st.composite
def ranges(draw, count):
    """Cuts of `[0, count)` into runs, in any order."""
    cuts = sorted(draw(st.sets(st.integers(0, count), max_size=5)) | {0, count})
    return draw(st.permutations(list(pairwise(cuts))))


@given(st.data())
def test_a_source_reads_any_view_in_c_order_piece_by_piece(data):
    view = data.draw(views())
    source, out = ArraySource(view), np.zeros(view.nbytes, np.uint8)
    for first, last in data.draw(ranges(view.size)):
        source.read(first * 4, out[first * 4 : last * 4])
    assert out.tobytes() == view.tobytes()


@given(st.data())
def test_a_sink_fills_any_view_in_c_order_piece_by_piece(data):
    view = data.draw(views())
    values = np.random.default_rng(0).integers(0, 1 << 30, view.shape, dtype="i4")
    sink, raw = ArraySink(view), values.reshape(-1).view(np.uint8)
    assert sink.nbytes == view.nbytes
    for first, last in data.draw(ranges(view.size)):
        sink.write(first * 4, raw[first * 4 : last * 4])
    assert np.array_equal(view, values)


def test_a_sink_leaves_what_is_between_the_elements_alone():
    base = np.full((4, 6), -1)
    ArraySink(base[1:3, ::2]).write(0, np.arange(6).view(np.uint8))
    assert base[1:3, ::2].ravel().tolist() == list(range(6))
    assert (base == -1).sum() == 24 - 6


def test_a_sink_turns_bytes_of_the_other_order_round():
    array = np.zeros((3, 2), ">u4")
    values = np.arange(6, dtype="<u4")
    ArraySink(array, values.dtype).write(0, values.view(np.uint8))
    assert array.ravel().tolist() == list(range(6))


@given(st.data())
def test_tensors_are_walked_as_arrays_are(data):
    """Devices use it."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    tensor = torch.zeros(shape).permute(order)
    values = torch.randn(tensor.numel())
    for first, last in data.draw(ranges(tensor.numel())):
        walk(tensor, first, values[first:last], lambda part, run: part.copy_(run))
    assert torch.equal(tensor.reshape(-1), values)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=4))
def test_strides_say_whether_elements_are_dense_or_share_memory(dims):
    shape, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    index = np.indices(shape).reshape(len(shape), prod(shape))
    places = (index.T @ np.array(strides, int)).tolist()
    distinct = len(set(places)) == len(places)
    assert is_dense(shape, strides) == (sorted(places) == list(range(prod(shape))))
    assert is_c_order(shape, strides) == (places == list(range(prod(shape))))
    if is_disjoint(shape, strides):
        assert distinct
    if is_dense(shape, strides):
        assert is_disjoint(shape, strides)


def test_all_usual_views_are_known_to_be_disjoint():
    base = torch.zeros(3, 4, 5, 6)
    for view in (base, base[::2, :, 1:, ::3], base.permute(3, 0, 2, 1)[:, 1:], base[:, :1]):
        assert is_disjoint(tuple(view.shape), view.stride())
    assert not is_disjoint((3, 4), (0, 1))
    assert not is_disjoint((8, 3), (1, 1))
