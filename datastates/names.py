"""Paths in a state tree ⇄ Zarr node names, by a reversible escape.

A path is a tuple of keys and stays data everywhere else; only here does it become a string. The
first key names the part and becomes a group, the others are joined below it:

    ("model", "h.0.attn.weight")                  model/h.0.attn.weight
    ("optim", "state", 0, "exp_avg")              optim/state~0~exp_avg

Letters, digits and `._-` stay; everything else is percent-encoded UTF-8, so a name is at home on
any file system, in a URL and in an object store. Integers are written bare; a string that looks
like one has its first digit escaped, so ("a", 0) and ("a", "0") differ. Other keys are written
`%=` and their escaped repr. A leading `.` (ours) or `__` (reserved by Zarr) and the name
`zarr.json` are escaped too. Names over 200 bytes keep their head and end in `~~` and a digest:
these, and repr keys, are not read back from the name; the manifest has the tree.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable
from urllib.parse import quote, unquote

__all__ = ["Path", "decode_name", "encode_path", "is_safe_node", "readable"]

Path = tuple[Hashable, ...]
"""Keys from the root of a state tree to a value."""

_JOIN = "~"
_EMPTY = "%_"
_REPR = "%="
_INT = re.compile(r"-?[0-9]+", re.ASCII)
_COMPONENT = re.compile(r"[A-Za-z0-9._%~=-]{1,255}", re.ASCII)
_MAX = 200
_MAX_INT_BITS = 512


def _escape_first(text: str) -> str:
    return f"%{ord(text[0]):02X}{text[1:]}"


def _encode_str(key: str) -> str:
    text = quote(key, safe="", errors="surrogatepass").replace("~", "%7E")
    if not text:
        return _EMPTY
    if _INT.fullmatch(text) or text[0] == "." or text.startswith("__") or text == "zarr.json":
        return _escape_first(text)
    return text


def _text(key: Hashable) -> str:
    try:
        return repr(key)
    except ValueError:  # Python refuses to write down integers of thousands of digits
        return f"({type(key).__name__})"


def _encode_key(key: Hashable) -> str:
    if type(key) is str:
        return _encode_str(key)
    if type(key) is int and key.bit_length() < _MAX_INT_BITS:
        return str(key)
    return _REPR + quote(_text(key), safe="", errors="surrogatepass").replace("~", "%7E")


def _decode_key(text: str) -> Hashable:
    if text == _EMPTY:
        return ""
    if text.startswith(_REPR):
        return unquote(text[len(_REPR) :], errors="surrogatepass")
    if _INT.fullmatch(text):
        return int(text)
    return unquote(text, errors="surrogatepass")


def _shorten(text: str) -> str:
    if len(text) <= _MAX:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: _MAX - 20]}{_JOIN * 2}{digest}"


def encode_path(path: Path) -> str:
    """Return the node name of `path`, relative to the step: `part` or `part/rest`."""
    if not path:
        return "state"
    part, rest = _encode_key(path[0]), [_encode_key(key) for key in path[1:]]
    if not rest:
        return _shorten(part)
    return f"{_shorten(part)}/{_shorten(_JOIN.join(rest))}"


def decode_name(node: str) -> Path:
    """Return the path that `encode_path` made `node` from, where the name alone tells it."""
    part, _, rest = node.partition("/")
    keys = [part, *rest.split(_JOIN)] if rest else [part]
    return tuple(_decode_key(key) for key in keys)


def is_safe_node(node: object) -> bool:
    """Tell whether `node` is a name that `encode_path` (or this library) could have made.

    A manifest is input: whatever it names is joined to a directory only after this check.
    """
    if not isinstance(node, str):
        return False
    parts = node.split("/")
    return len(parts) <= 2 and all(
        _COMPONENT.fullmatch(p) and p.strip(".") and p != "zarr.json" for p in parts
    )


def readable(path: Path) -> str:
    """Return `path` for messages, e.g. `optim/state/0/exp_avg`."""
    if not path:
        return "(the state itself)"
    keys = path if len(path) <= 12 else (*path[:6], "…", *path[-4:])
    text = "/".join(k if isinstance(k, str) else _text(k) for k in keys)
    return text if len(text) <= 300 else f"{text[:200]}…{text[-60:]}"
