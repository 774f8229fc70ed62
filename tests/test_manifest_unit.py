"""The manifest comes back as it was written, and nothing inconsistent is taken for one."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import datastates as ds
from datastates.alias import Alias
from datastates.manifest import FORMAT, Array, Manifest, decode, encode
from datastates.provider import LeafRef
from datastates.tree import Node, contains_leaf, pack, unpack

ARRAYS = (
    Array("model/w", "float32", (5, 3), (2, 3), offset=4096),
    Array("model/bias", "bfloat16", (), (), inline=b"\1\2"),
    Array("model/tied", "float32", (3, 5), (3, 5), alias=Alias(0, 0)),
    Array("model/row", "float32", (3,), (3,), alias=Alias(0, 12)),
    Array("optim/none", "uint8", (0, 4), (1, 4)),
)
MANIFEST = Manifest(ARRAYS, ((1, 2, 2**32 - 1), (), (), (), ()), {"w": LeafRef(0)}, 1 << 20)


def changed(**fields):
    """The packed manifest with some top-level fields replaced."""
    top = msgpack.unpackb(encode(MANIFEST))
    return msgpack.packb(top | fields)


def changed_array(index, **fields):
    names = ("node", "dtype", "shape", "chunk", "offset", "inline", "alias", "sums")
    arrays = msgpack.unpackb(encode(MANIFEST))["arrays"]
    for name, value in fields.items():
        arrays[index][names.index(name)] = value
    return changed(arrays=arrays)


def test_a_manifest_comes_back_as_it_was():
    assert decode(encode(MANIFEST)) == MANIFEST
    strided = Manifest(
        (ARRAYS[0], Array("b", "float32", (5, 3), (5, 3), alias=Alias(0, 0, strided=True))),
        ((1, 2, 3), ()),
        None,
        4096,
        rank=2,
        world_size=3,
    )
    assert decode(encode(strided)) == strided


def test_arrays_know_their_size():
    w, bias, tied, _, none = ARRAYS
    assert (w.nbytes, w.extents) == (60, 3)
    assert (bias.nbytes, bias.extents) == (2, 0)
    assert (tied.nbytes, tied.extents) == (60, 0)
    assert (none.nbytes, none.extents) == (0, 0)
    assert [(a.node, b.node) for a, b in MANIFEST.aliases()] == [
        ("model/tied", "model/w"),
        ("model/row", "model/w"),
    ]


def test_a_newer_format_is_refused_by_its_number():
    with pytest.raises(ds.NewerFormatError, match=f"written in format {FORMAT + 1}.*upgrade"):
        decode(changed(format=FORMAT + 1))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x93\1\2",
        encode(MANIFEST)[:-1],
        encode(MANIFEST) + b"\0",
        msgpack.packb([]),
        msgpack.packb({"format": "1"}),
        msgpack.packb({"format": True}),
        msgpack.packb({"format": 1}),
        changed(arrays=None),
        changed(arrays=[None]),
        changed(arrays=[[1, 2]]),
        changed(nbytes=-1),
        changed(rank="0"),
        changed(skeleton=5),
        changed(skeleton=b"\xc1"),
        changed_array(0, node="../w"),
        changed_array(0, node="/etc/x"),
        changed_array(0, node=b"w"),
        changed_array(0, dtype="float8_e4m3"),
        changed_array(0, dtype=["float32"]),
        changed_array(0, shape=[5]),
        changed_array(0, shape=[5, -3]),
        changed_array(0, shape=[1 << 40, 1 << 40]),
        changed_array(0, shape=[5.0, 3.0]),
        changed_array(0, shape=[1] * 65),
        changed_array(0, chunk=[0, 3]),
        changed_array(0, chunk=[2, 2]),
        changed_array(0, offset=-4096),
        changed_array(0, offset=None),
        changed_array(0, sums=[1, 2]),
        changed_array(0, sums=[1, 2, 2**32]),
        changed_array(0, sums=[1, 2, "3"]),
        changed_array(0, sums=None),
        changed_array(1, inline=b"\1"),
        changed_array(1, inline="ab"),
        changed_array(2, alias=[9, 0, 0]),
        changed_array(2, alias=[3, 0, 0]),
        changed_array(2, alias=[0, 61, 0]),
        changed_array(2, alias=[0]),
        changed_array(2, alias=0),
    ],
)
def test_what_is_not_consistent_is_no_manifest(packed):
    with pytest.raises(ds.FormatError):
        decode(packed)


# The skeleton.

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary(max_size=9)
    | st.text(st.characters(codec=None, exclude_categories=()), max_size=9)
    | st.integers(0, 99).map(LeafRef),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=5).filter(lambda k: k != "$"), inner, max_size=4)
    | st.builds(Node, st.sampled_from(["tensor", "dict", "tuple"]), inner),
    max_leaves=15,
)  # fmt: skip


@given(plain)
def test_any_skeleton_comes_back(skeleton):
    found = unpack(pack(skeleton))
    assert found == skeleton
    assert repr(found) == repr(skeleton)  # 1 and True and 1.0 are equal, and not the same


@pytest.mark.parametrize(
    "data",
    [
        {"$": "int", "v": 5},
        {"$": "int", "v": "0xzz"},
        {"$": "", "v": -1},
        {"$": "", "v": "0"},
        {"$": "", "v": True},
        {"$": 5, "v": None},
        {"$": "tensor"},
        {"$": "tensor", "v": 1, "w": 2},
    ],
)
def test_a_malformed_node_is_refused(data):
    with pytest.raises(ds.FormatError):
        unpack(msgpack.packb(data))


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_a_document_nested_without_end_is_refused(depth):
    with pytest.raises(ds.FormatError):
        unpack(b"\x91" * depth + b"\xc0")


def test_leaves_are_found_wherever_they_are():
    assert contains_leaf([1, {"a": Node("tuple", [LeafRef(0)])}])
    assert not contains_leaf([1, {"a": Node("tuple", [5])}])
    assert not contains_leaf(Node("packed", LeafRef(0)))
