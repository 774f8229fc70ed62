"""Random states come back exactly, from memory and disk; and what other readers see is the same."""

import datetime as dt
import itertools
import math
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import torch
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import assert_same, tensor_bits

import datastates as ds
from datastates.plan import make_plan
from datastates.registry import Providers, installed
from datastates.tree import flatten

RELAXED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Random states.

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=8),
    st.binary(max_size=8),
    st.fractions().map(Fraction),
    st.decimals(),
    st.datetimes(timezones=st.none() | st.just(dt.UTC)),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([..., torch.bfloat16, torch.Size([1, 2]), range(3), slice(1, None)]),
)
keys = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=4),
        st.text(max_size=6),
        st.sampled_from(["", ".", "..", "a/b", "zarr.json", "__x", "$", "~", "%41", "0", "-1"]),
    ),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)  # fmt: skip

TORCH = (
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint16, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


@st.composite
def tensors(draw):
    """Any dtype, up to four dimensions, any bits, seen through any strides."""
    dtype = draw(st.sampled_from(TORCH))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    made = torch.zeros(shape, dtype=dtype)
    if made.numel():
        seed = draw(st.integers(0, 2**16))
        raw = np.random.default_rng(seed).integers(
            0, 2 if dtype is torch.bool else 256, made.nbytes
        )
        made.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw.astype(np.uint8)))
    made = made.permute(draw(st.permutations(range(made.ndim))))
    for d in range(made.ndim):
        start, step = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        made = made[(slice(None),) * d + (slice(start, None, step),)]
        if made.shape[d] == 1 and draw(st.booleans()):
            made = made.expand(*made.shape[:d], 3, *made.shape[d + 1 :])
    if draw(st.booleans()) and made.dtype.is_complex:
        made = made.conj()
    return torch.nn.Parameter(made, requires_grad=False) if draw(st.booleans()) else made


arrays = hnp.arrays(
    st.one_of(
        hnp.integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?"),
        hnp.complex_number_dtypes(),
        hnp.datetime64_dtypes(),
        hnp.unicode_string_dtypes(min_len=1),
        hnp.byte_string_dtypes(min_len=1),
        hnp.array_dtypes(allow_subarrays=False),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = plain | tensors() | arrays | hnp.from_dtype(np.dtype("f4")).map(np.float32)


def containers(inner):
    few = {"max_size": 4}
    return st.one_of(
        st.lists(inner, **few),
        st.lists(inner, **few).map(tuple),
        st.dictionaries(st.text(max_size=6), inner, **few),
        st.dictionaries(keys, inner, **few),
        st.dictionaries(keys, inner, **few).map(OrderedDict),
        st.dictionaries(keys, inner, **few).map(lambda d: defaultdict(list, d)),
        st.dictionaries(keys, st.integers(), **few).map(Counter),
        st.lists(inner, **few).map(lambda items: deque(items, maxlen=9)),
        st.sets(keys, **few),
    )


states = st.recursive(leaves, containers, max_leaves=12)


def has_no_empty_dtype(value):
    """Numpy has types without a byte, such as records without fields; they are refused."""
    try:
        flatten(value, PROVIDERS)
    except ds.UnsupportedValueError as error:
        return "empty numpy dtype" not in str(error)
    return True


PROVIDERS = Providers([*ds.checkpointer.CONTAINERS, *installed()])
numbers = itertools.count()


@RELAXED
@given(state=states)
def test_any_state_comes_back_from_memory(state):
    assume(has_no_empty_dtype(state))
    with ds.Checkpointer(f"memory://{next(numbers)}", arena_nbytes=8 << 20) as ckpt:
        ckpt.save(state)
        assert_same(state, ckpt.restore())
        ckpt.delete(0)


@settings(RELAXED, max_examples=25)
@given(state=states)
def test_any_state_comes_back_from_disk(state, disk_ckpt):
    assume(has_no_empty_dtype(state))
    disk_ckpt.save(state)
    assert_same(state, disk_ckpt.restore())
    assert disk_ckpt.verify().ok


@RELAXED
@given(saved=st.lists(tensors(), min_size=1, max_size=4), data=st.data())
def test_any_tensor_fills_any_memory_of_its_shape(saved, data):
    """Whatever strides either side has."""
    targets = []
    for tensor in saved:
        order = data.draw(st.permutations(range(tensor.ndim)))
        sides = [tensor.shape[d] * data.draw(st.integers(1, 2)) for d in order]
        base = torch.zeros(sides, dtype=tensor.dtype)
        back = [order.index(d) for d in range(tensor.ndim)]
        view = base.permute(back)
        index = tuple(
            slice(None, None, whole // n if n else 1)
            for whole, n in zip(view.shape, tensor.shape, strict=True)
        )
        targets.append(view[index])
    assert [t.shape for t in targets] == [t.shape for t in saved]
    with ds.Checkpointer(f"memory://{next(numbers)}", arena_nbytes=8 << 20) as ckpt:
        ckpt.save(list(saved))
        ckpt.restore(into=targets)
        ckpt.delete(0)
    assert [tensor_bits(t) for t in targets] == [tensor_bits(t) for t in saved]


@RELAXED
@given(data=st.data())
def test_any_views_of_one_memory_stay_views_of_one_memory(data):
    """Whatever is written into one of them later shows in the others, as before."""
    base = torch.arange(24.0)

    def view():
        shape = data.draw(st.sampled_from([(24,), (4, 6), (2, 3, 4), (6, 4)]))
        found = base.view(shape).permute(data.draw(st.permutations(range(len(shape)))))
        start, step = data.draw(st.integers(0, 1)), data.draw(st.integers(1, 2))
        return found[start::step]

    state = {"base": base} | {str(i): view() for i in range(data.draw(st.integers(1, 4)))}
    order = data.draw(st.permutations(list(state)))
    state = {name: state[name] for name in order}
    with ds.Checkpointer(f"memory://{next(numbers)}", arena_nbytes=8 << 20) as ckpt:
        ckpt.save(state)
        assert ckpt.info().nbytes == base.nbytes
        restored = ckpt.restore()
        ckpt.delete(0)
    assert_same(dict(state), restored)
    for source in (state, restored):
        source["base"].mul_(-1)
    assert_same(dict(state), restored)


# What other readers see.

NAN32 = np.frombuffer(b"\x01\x00\xe0\x7f", "f4")  # with a payload
SIGNALLING = np.frombuffer(b"\x01\x00\xa0\x7f", "f4")
SPECIAL = {
    "float16": [-0.0, 6e-8, math.inf, -math.inf, math.nan],
    "float32": [-0.0, 1e-45, math.inf, 0.1, math.nan, NAN32[0]],
    "float64": [-0.0, 5e-324, -math.inf, 0.1, 1 / 3],
    "complex64": [complex(-0.0, math.inf), complex(math.nan, 1e-45)],
    "complex128": [complex(0.1, -0.0), complex(math.nan, math.nan)],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [0, 2**64 - 1, 2**53 + 1],
    "bool": [True, False],
    "int8": [-128],
}


def every_dtype():
    rng = np.random.default_rng(0)
    names = [str(t).removeprefix("torch.") for t in TORCH] + [
        "int8",
        "int32",
        "uint32",
        "complex128",
    ]
    made = {}
    for name in names:
        dtype = getattr(torch, name)
        size = torch.empty(0, dtype=dtype).element_size()
        raw = rng.integers(0, 2 if name == "bool" else 256, 60 * size).astype(np.uint8)
        flat = torch.from_numpy(raw).view(dtype)
        made[name] = {"matrix": flat.view(5, 12), "scalar": flat[0], "empty": flat[:0].view(0, 3)}
    return made


def scalars():
    made = {
        name: {i: np.array(value, name) for i, value in enumerate(values)}
        for name, values in SPECIAL.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            dtype = np.dtype(getattr(ml_dtypes, name))
            patterns = np.arange(0, 1 << 8 * dtype.itemsize, 251, f"u{dtype.itemsize}").view(dtype)
            made[name] = dict(enumerate(patterns[:, ...].reshape(-1, 1)))
            made[name] = {i: value.reshape(()) for i, value in made[name].items()}
    return made


READABLE = {
    "every dtype": every_dtype,
    "scalars of every bit pattern": scalars,
    "a model": lambda: {
        "model": torch.nn.TransformerEncoderLayer(8, 2, 16).state_dict(),
        "h.0.attn.weight": torch.randn(3, 4).t(),
    },
    "odd names": lambda: {
        key: {other: torch.full((2,), float(i)) for i, other in enumerate(keys)}
        for keys in [
            ("a/b", "..", ".x", "", "zarr.json", "__y", "~", 0, "0", None, (1, 2), "k" * 300)
        ]
        for key in keys
    },
    "numpy": lambda: {
        "big-endian": np.arange(6, dtype=">i4").reshape(2, 3),
        "fortran": np.asfortranarray(np.random.rand(3, 4)),
        "dates": np.arange(5).astype("M8[s]"),
        "records": np.zeros(3, [("a", "i4"), ("b", "f8")]),
        "strings": np.array(["a", "bcd"]),
    },
    "long plain values": lambda: {
        "list": list(range(10_000)),
        "text": "ü" * 50_000,
        "bytes": bytes(100_000),
    },
    "many chunks": lambda: {
        "rows": torch.randn(1_500, 1_111),
        "odd": torch.randint(0, 255, (5, 1_300_003), dtype=torch.uint8),
        "half": torch.randn(3_000_001).to(torch.bfloat16),
    },
}


def expected_arrays(state, arena_nbytes):
    """Each array that is to be on disk: its data type, shape and bytes, straight from the state."""
    flat = flatten(state, PROVIDERS)
    for array, (_, leaf) in zip(
        make_plan(flat.leaves, arena_nbytes).arrays, flat.leaves, strict=True
    ):
        if array.alias is None:
            out = np.empty(array.nbytes, np.uint8)
            leaf.source.read(0, out)
            yield array.node, array.dtype, array.shape, out.tobytes()


@pytest.fixture(params=READABLE)
def written(request, make_ckpt):
    """A state on disk: its directory, and the arrays that must be in it."""
    ckpt = make_ckpt(arena_nbytes=8 << 20)
    state = READABLE[request.param]()
    ckpt.save(state)
    found = list(expected_arrays(state, 8 << 20))
    assert found
    return ckpt.info().path, found


def test_zarr_python_reads_the_same_bits(written):
    path, arrays = written
    group = zarr.open_group(path, mode="r")
    for node, dtype, shape, data in arrays:
        array = group[node]
        assert (array.dtype.name, array.shape) == (dtype, shape), node
        assert np.asarray(array[...]).tobytes() == data, node
    listed = {name for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)}
    ours = {name for name in listed if name.startswith(".datastates")}
    assert listed - ours == {node for node, *_ in arrays}


def test_tensorstore_reads_the_same_bits(written):
    path, arrays = written
    for node, dtype, shape, data in arrays:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/{node}/"}}
        array = ts.open(spec, read=True).result()
        assert (array.dtype.name, array.shape) == (dtype, shape), node
        assert array.read().result().tobytes() == data, node


def test_a_scalar_that_is_a_signalling_nan_is_exact_for_us_and_tensorstore(disk_ckpt):
    """zarr-python 3.1 makes it a quiet one on its way through a Python float."""
    scalar = SIGNALLING.reshape(())
    disk_ckpt.save({"x": scalar})
    assert_same({"x": scalar}, disk_ckpt.restore())
    path = f"{disk_ckpt.info().path}/x/"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    assert ts.open(spec, read=True).result().read().result().tobytes() == scalar.tobytes()


def test_names_that_share_memory_are_listed_as_aliases(disk_ckpt):
    t = torch.arange(10.0)
    disk_ckpt.save({"model": {"emb.weight": t, "head.weight": t, "part": t[:3]}})
    group = zarr.open_group(disk_ckpt.info().path, mode="r")
    aliases = group.attrs["datastates"]["aliases"]
    assert aliases == {"model/head.weight": "model/emb.weight", "model/part": "model/emb.weight"}
    assert np.array_equal(group["model/emb.weight"][...], t.numpy())
    assert list(group["model"]) == ["emb.weight"]
