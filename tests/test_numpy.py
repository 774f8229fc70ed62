"""Numpy arrays, scalars and dtypes come back as they were, or are refused by name."""

import warnings

import ml_dtypes
import numpy as np
import pytest
from support import assert_same

import datastates as ds

NATIVE = (
    *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
    *("q", "Q"),  # long long is a type of its own, and equal to long here
)
BEYOND_ZARR = ("g", "G", "M8[ns]", "M8[D]", "M8", "m8[s]", "m8", "S7", "U5", "V12")
STRUCTURED = {
    "packed": [("a", "i4"), ("b", "f8")],
    "nested": [("p", [("x", "f4"), ("y", ">f4")]), ("n", "u1")],
    "with arrays": [("m", "f4", (2, 3)), ("name", "U4")],
    "titled": [(("a title", "a"), "i4"), ("b", "i2")],
}


def random_bytes(dtype, shape, seed=0):
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    if dtype.kind == "b":
        raw &= 1
    if dtype.kind == "U":  # code points, rather than anything
        raw = np.frombuffer((raw.view("u4") % 0xD000).tobytes(), np.uint8).copy()
    return raw.view(dtype).reshape(shape)


def structured(name, shape):
    dtype = np.dtype(STRUCTURED[name])
    raw = np.random.default_rng(0).integers(0, 128, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    if "U4" in str(dtype):
        raw[:] = 0
    return raw.view(dtype).reshape(shape)


def round_trip(ckpt, array):
    """Save; restore anew, into a target like it, and into one with other strides."""
    ckpt.save({"x": array})
    assert_same({"x": array}, ckpt.restore())
    target = np.zeros_like(array)
    assert ckpt.restore(into={"x": target})["x"] is target
    assert target.tobytes() == array.tobytes()
    base = np.zeros((*array.shape, 2), array.dtype)
    ckpt.restore(into={"x": base[..., 0]})
    assert base[..., 0].tobytes() == array.tobytes()
    assert not np.ascontiguousarray(base[..., 1]).view(np.uint8).any()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4), (3, 0)])
@pytest.mark.parametrize("kind", (*NATIVE, *BEYOND_ZARR))
def test_every_dtype_comes_back(memory_ckpt, kind, shape):
    round_trip(memory_ckpt, random_bytes(kind, shape))


def test_every_dtype_comes_back_from_disk(disk_ckpt):
    state = {kind: random_bytes(kind, (3, 5)) for kind in (*NATIVE, *BEYOND_ZARR)}
    state |= {f"scalar {kind}": random_bytes(kind, ()) for kind in (*NATIVE, *BEYOND_ZARR)}
    disk_ckpt.save(state)
    assert_same(state, disk_ckpt.restore())


@pytest.mark.parametrize(
    "kind", [k for k in (*NATIVE, "g", "M8[s]", "U3") if k not in "bool qQi1u1"]
)
def test_byte_order_comes_back(memory_ckpt, kind):
    swapped = random_bytes(kind, (4, 5)).astype(np.dtype(kind).newbyteorder(">"))
    round_trip(memory_ckpt, swapped)
    restored = memory_ckpt.restore()["x"]
    assert restored.dtype.byteorder == ">"
    assert not restored.dtype.isnative


def test_one_big_endian_array_under_two_names_is_filled_once(memory_ckpt):
    """Swapping in place, once for each name, would give the wrong order back."""
    array = np.arange(5, dtype=">i4")
    target = np.zeros(5, ">i4")
    memory_ckpt.save({"a": array, "b": array.copy()})
    memory_ckpt.restore(into={"a": target, "b": target}, strict=False)
    assert_same(array, target)


@pytest.mark.parametrize("name", STRUCTURED)
def test_records_come_back(ckpt, name):
    round_trip(ckpt, structured(name, (3, 2)))
    round_trip(ckpt, structured(name, ()))


def test_aligned_records_keep_their_offsets(ckpt):
    dtype = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    array = np.zeros(3, dtype)
    array["b"] = np.pi
    ckpt.save({"x": array})
    restored = ckpt.restore()["x"]
    assert restored.dtype == dtype
    assert restored.dtype.itemsize == 16
    assert np.array_equal(restored, array)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"]
)
def test_ml_dtypes_come_back(ckpt, name):
    array = random_bytes(getattr(ml_dtypes, name), (7, 3))
    ckpt.save({"x": array, "scalar": array[0, 0]})
    assert_same({"x": array, "scalar": array[0, 0]}, ckpt.restore())


def test_memory_order_comes_back(ckpt):
    state = {
        "C": np.random.rand(3, 4, 5),
        "F": np.asfortranarray(np.random.rand(3, 4, 5)),
        "F dates": np.asfortranarray(np.arange(12).reshape(3, 4).astype("M8[s]")),
        "F big-endian": np.asfortranarray(np.arange(12.0).reshape(3, 4).astype(">f8")),
    }
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_a_c_ordered_checkpoint_fills_a_fortran_target(ckpt):
    array = np.random.rand(3, 4)
    target = np.zeros((3, 4), order="F")
    ckpt.save({"x": array})
    ckpt.restore(into={"x": target})
    assert target.flags.f_contiguous
    assert np.array_equal(target, array)


def test_views_are_saved_as_the_values_they_show(ckpt):
    base = np.random.rand(4, 6)
    state = {
        "reversed": base[::-1, ::-2],
        "broadcast": np.broadcast_to(base[0], (3, 6)),
        "strided": base[1::2, ::3],
        "transposed": base[:, 1:3].T,
        "windows": np.lib.stride_tricks.sliding_window_view(base[0], 3),
        "unaligned": np.frombuffer(b"\0" + base.tobytes(), "f8", 24, 1),
        "read-only": np.frombuffer(base.tobytes()),
    }
    ckpt.save(state)
    assert_same(state, ckpt.restore())
    assert all(array.flags.writeable for array in ckpt.restore().values())


def test_a_reversed_target_is_filled_in_place(ckpt):
    base = np.zeros(6)
    ckpt.save({"x": np.arange(3.0)})
    ckpt.restore(into={"x": base[::-2]})
    assert base.tolist() == [0, 2, 0, 1, 0, 0]


def test_shared_memory_is_stored_once_and_shared_again(ckpt):
    base = np.arange(1000.0)
    state = {"a": base, "b": base, "part": base[100:200], "matrix": base.reshape(10, 100)}
    ckpt.save(state)
    assert ckpt.info().nbytes == base.nbytes
    restored = ckpt.restore()
    assert_same(state, restored)
    restored["a"][100] = -1
    assert restored["b"][100] == restored["part"][0] == restored["matrix"][1, 0] == -1


def test_a_large_array_of_records_comes_back_in_chunks(make_ckpt):
    ckpt = make_ckpt("memory", arena_nbytes=8 << 20)
    array = random_bytes([("a", "i4"), ("b", "S3")], (1_000_001,))
    ckpt.save({"x": array})
    assert_same({"x": array}, ckpt.restore())
    target = np.zeros(2_000_002, array.dtype)[::2]
    ckpt.restore(into={"x": target})
    assert target.tobytes() == array.tobytes()


SCALARS = (
    *(np.bool_(True), np.int8(-3), np.uint64(2**64 - 1), np.float16(1.5), np.float32("nan")),
    *(np.float64(-0.0), np.longdouble(1) / 3, np.complex64(1 - 0j), np.clongdouble(1j) / 3),
    *(np.longlong(5), np.ulonglong(2**64 - 1), np.intc(1), np.str_("Ünï"), np.str_("")),
    *(np.str_("ends\0"), np.bytes_(b"ends\0\0"), np.bytes_(b""), np.datetime64("NaT")),
    *(np.datetime64("2024-02-29T12:00", "m"), np.timedelta64(-5, "D"), np.void(b"\0\1\2")),
    *(np.float32(2).astype(">f4"), np.array((1, 2.5), [("a", "i4"), ("b", "f8")])[()]),
)


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: f"{type(s).__name__} {s!r:.40}")
def test_scalars_come_back_with_their_type(memory_ckpt, scalar):
    """Case 19: what save accepts, restore accepts."""
    memory_ckpt.save({"x": scalar, "in a list": [scalar] * 2})
    assert_same({"x": scalar, "in a list": [scalar] * 2}, memory_ckpt.restore())
    assert_same({"x": scalar}, memory_ckpt.restore(into={"x": 0}, only=["x"]))


def test_scalars_are_keys(memory_ckpt):
    state = {np.int64(3): "a", np.str_("x"): "b", np.float32(0.1): "c"}
    memory_ckpt.save(state)
    assert_same(state, memory_ckpt.restore())


def test_a_scalar_in_the_target_is_a_plain_value(memory_ckpt):
    """It has no memory to fill, so it is replaced as a float would be."""
    memory_ckpt.save({"lr": 0.5, "n": np.int64(7)})
    into = {"lr": np.float64(0.1), "n": 0}
    assert_same({"lr": 0.5, "n": np.int64(7)}, memory_ckpt.restore(into=into))


@pytest.mark.parametrize(
    "kind", [*NATIVE, *BEYOND_ZARR, ">i4", *STRUCTURED.values(), ml_dtypes.bfloat16], ids=str
)
def test_dtypes_come_back(memory_ckpt, kind):
    state = {"dtype": np.dtype(kind)}
    memory_ckpt.save(state)
    assert memory_ckpt.restore() == state
    assert memory_ckpt.restore()["dtype"].char == np.dtype(kind).char


# What cannot be stored is refused by name.


@pytest.mark.filterwarnings("ignore:.*matrix subclass.*:PendingDeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([1, "a", None], object),
        lambda: np.zeros(2, [("a", "i4"), ("o", object)]),
        lambda: np.array(["abc"], np.dtypes.StringDType()),
        lambda: np.ma.masked_array([1, 2], [True, False]),
        lambda: np.rec.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        lambda: np.matrix([[1]]),
        lambda: np.zeros(3, np.dtype("i4", metadata={"unit": "m"})),
        lambda: np.dtype(object),
        lambda: np.empty(3, "V0"),
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused_by_name(memory_ckpt, make):
    value = make()
    with warnings.catch_warnings(), pytest.raises(ds.UnsupportedValueError) as refused:
        memory_ckpt.save_async({"data": {"x": value}})
    assert refused.value.key == "data/x"
    assert memory_ckpt.steps() == []


def test_a_memory_map_is_refused_by_name(memory_ckpt, tmp_path):
    mapped = np.memmap(tmp_path / "file", np.uint8, "w+", shape=3)
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save x: .*memmap"):
        memory_ckpt.save_async({"x": mapped})


# Targets that do not fit.


@pytest.mark.parametrize(
    "target",
    [
        lambda: np.zeros(4),
        lambda: np.zeros((3, 1)),
        lambda: np.zeros(3, "f4"),
        lambda: np.zeros(3, ">f8"),
        lambda: np.broadcast_to(np.zeros(1), 3),
        lambda: np.frombuffer(bytes(24)),
        lambda: 5,
        lambda: [0.0, 0.0, 0.0],
    ],
)
def test_a_target_that_does_not_fit_is_reported_and_left_alone(memory_ckpt, target):
    memory_ckpt.save({"x": np.arange(3.0)})
    into = {"x": target()}
    with pytest.raises(ds.MismatchError, match=r"x \("):
        memory_ckpt.restore(into=into)
    memory_ckpt.restore(into=into, strict=False)
    assert_same({"x": target()}, into)
    assert len(memory_ckpt.recovery.mismatched) == 1
