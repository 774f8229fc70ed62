"""Paths become names that any file system takes, and come back from them."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from datastates.names import decode_name, encode_path, is_safe_node, readable

strings = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
keys = strings | st.integers(-(10**9), 10**9)
paths = st.lists(keys, min_size=1, max_size=5).map(tuple)
SAFE = re.compile(r"[A-Za-z0-9._%~=-]+(/[A-Za-z0-9._%~=-]+)?", re.ASCII)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "state"),
        (("model",), "model"),
        (("model", "h.0.attn.weight"), "model/h.0.attn.weight"),
        (("optim", "state", 0, "exp_avg"), "optim/state~0~exp_avg"),
        (("a", "0"), "a/%30"),
        (("a", -1), "a/-1"),
        (("a", "-1"), "a/%2D1"),
        (("",), "%_"),
        (("a", "", ""), "a/%_~%_"),
        ((".datastates", ".."), "%2Edatastates/%2E."),
        (("__x", "zarr.json"), "%5F_x/%7Aarr.json"),
        (("a/b", "c~d", "%41"), "a%2Fb/c%7Ed~%2541"),
        (("ü", "\ud800"), "%C3%BC/%ED%A0%80"),
        (("a", None), "a/%=None"),
        (("a", (1, "x")), "a/%=%281%2C%20%27x%27%29"),
        (("a", True), "a/%=True"),
    ],
)
def test_a_path_has_a_readable_name(path, name):
    assert encode_path(path) == name
    assert is_safe_node(name)


@given(paths)
@example(("zarr.json", "zarr.json"))
@example(("c", "c.0"))
@example(("..", "."))
def test_a_name_comes_back_as_its_path(path):
    name = encode_path(path)
    assert SAFE.fullmatch(name)
    assert is_safe_node(name)
    if "~~" not in name:
        assert decode_name(name) == path
        assert list(map(type, decode_name(name))) == list(map(type, path))


@given(paths, paths)
def test_two_paths_never_have_one_name(one, other):
    if one != other or list(map(type, one)) != list(map(type, other)):
        assert encode_path(one) != encode_path(other)


@given(st.lists(st.text(max_size=500) | st.integers(), min_size=1, max_size=8).map(tuple))
def test_long_paths_have_short_names_of_their_own(path):
    name = encode_path(path)
    assert all(len(part) <= 255 for part in name.split("/"))
    assert is_safe_node(name)
    assert encode_path((*path, "more")) != name


def test_long_keys_that_differ_at_their_end_have_names_that_differ():
    one, other = encode_path(("a", "k" * 400 + "x")), encode_path(("a", "k" * 400 + "y"))
    assert one != other
    assert one.startswith("a/kkkk")
    assert "~~" in one


def test_an_integer_of_thousands_of_digits_has_a_name():
    """Python refuses to write it down."""
    assert is_safe_node(encode_path(("a", 10**5000)))
    assert readable(("a", 10**5000, (10**5000,))) == "a/(int)/(tuple)"


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "a/", "/a", "a/b/c", "..", "a/..", ".", "a/.", "zarr.json", "a/zarr.json"),
        *("a\\b", "a b", "ü", "a\n", "a\0", "a:b", "~/x\x00", "x" * 256, None, 5, b"a"),
    ],
)
def test_a_name_that_is_not_ours_is_not_safe(name):
    assert not is_safe_node(name)


@given(st.text(max_size=20))
def test_a_safe_name_stays_below_its_directory(name):
    if is_safe_node(name):
        assert not name.startswith("/")
        assert not {"", ".", ".."} & set(name.split("/"))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "(the state itself)"),
        (("optim", "state", 0, "m"), "optim/state/0/m"),
        (("a", None, (1,)), "a/None/(1,)"),
        (tuple(range(100)), "0/1/2/3/4/5/'…'/96/97/98/99".replace("'", "")),
    ],
)
def test_a_path_in_a_message_is_short_and_plain(path, text):
    assert readable(path) == text
    assert len(readable(("x" * 10_000,) * 3)) < 300
