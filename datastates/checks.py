"""Arguments of the public calls, checked at the border: each error says what to write instead."""

from __future__ import annotations

import json
import numbers
import operator
from collections.abc import Hashable, Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import Any, TypeGuard

from .errors import UsageError
from .names import Path

__all__ = [
    "MAX_METADATA_DEPTH",
    "check_choice",
    "check_metadata",
    "check_metrics",
    "check_parts",
    "check_positive",
    "check_step",
    "nests_deeper",
]

MAX_METADATA_DEPTH = 64
"""Dicts and lists in each other, in the metadata of a step."""

_MAX_METADATA_NBYTES = 1 << 20
_MAX_STEP = 10**18


def check_step(step: object) -> int:
    """Return `step` as an int.

    Raises:
        UsageError: it is not a whole number from 0 (True and 1.0 are none either).
    """
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= _MAX_STEP:
        raise UsageError(f"step must be a whole number from 0, not {step!r}")
    return number


def check_metrics(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Return metrics as plain floats; numpy scalars and one-element tensors are numbers too.

    Raises:
        UsageError: a name is no string, or a value no number.
    """
    found = {}
    for name, value in _as_dict("metrics", metrics).items():
        convertible = isinstance(value, numbers.Real) or hasattr(value, "item")
        if not isinstance(name, str) or not convertible or isinstance(value, str | bytes):
            raise UsageError(f"metrics[{name!r}] must be a number, not {type(value).__name__}")
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise UsageError(f"metrics[{name!r}] is not one number: {error}") from error
    return found


def _as_dict(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        return dict(value or {})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be a dict, not {value!r:.60}") from error


def nests_deeper(value: object, limit: int) -> bool:
    """Tell whether dicts and lists, of JSON, lie in each other more than `limit` deep."""
    level = [value]
    for _ in range(limit):
        items = (v.values() if isinstance(v, dict) else v for v in level if _holds_others(v))
        level = [inner for item in items for inner in item]
    return any(map(_holds_others, level))


def _holds_others(value: object) -> TypeGuard[dict[str, Any] | list[Any]]:
    return isinstance(value, dict | list)


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as JSON would give it back.

    Raises:
        UsageError: JSON cannot hold it exactly, or it is over 1 MiB (put it into the state then).
    """
    given = _as_dict("metadata", metadata)
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata must be plain JSON values: {error}") from error
    if len(text) > _MAX_METADATA_NBYTES:
        raise UsageError(f"metadata has {len(text)} bytes; over 1 MiB belongs into the state")
    kept: dict[str, Any] = json.loads(text)
    if nests_deeper(kept, MAX_METADATA_DEPTH):
        raise UsageError(f"metadata nests over {MAX_METADATA_DEPTH} deep")
    if list(kept) != list(given):
        raise UsageError("metadata must have string keys")
    return kept


def check_parts(
    name: str, parts: Sequence[str | Sequence[Hashable]] | None
) -> tuple[Path, ...] | None:
    """Return the parts of a state as paths: "optim/state" and ("optim", "state") are the same.

    Raises:
        UsageError: it is not a list of strings and tuples.
    """
    if parts is None:
        return None
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise UsageError(f'{name} must be a list of parts such as ["model"], not {parts!r}')
    paths: list[Path] = []
    for part in parts:
        if isinstance(part, str):
            paths.append(tuple(part.split("/")))
        elif isinstance(part, Sequence) and part and all(isinstance(k, Hashable) for k in part):
            paths.append(tuple(part))
        else:
            raise UsageError(f"{name}: {part!r} is neither a string nor a tuple of keys")
    return tuple(paths)


def check_positive(**values: float) -> None:
    """Refuse what is not a positive number, of seconds that one can wait.

    Raises:
        UsageError: naming the argument.
    """
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= TIMEOUT_MAX:
            most = f" up to {TIMEOUT_MAX:.0f}" if number and value > 0 else ""
            raise UsageError(f"{name} must be a positive number{most}, not {value!r}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> Any:
    """Return `value`, one of `choices`.

    Raises:
        UsageError: it is none of them.
    """
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value
