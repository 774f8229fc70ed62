"""zarr-python and TensorStore must agree on every bit of the types beyond Zarr's core."""

import json
import subprocess
import sys
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
import zarr
from packaging.requirements import Requirement
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.dtype import data_type_registry

from datastates import zarr_dtypes
from datastates.dtypes import CORE, EXTENSION
from datastates.zarr_dtypes import BFloat16, register

CLASSES = {
    "bfloat16": zarr_dtypes.BFloat16,
    "float8_e4m3fn": zarr_dtypes.Float8E4M3FN,
    "float8_e4m3fnuz": zarr_dtypes.Float8E4M3FNUZ,
    "float8_e5m2": zarr_dtypes.Float8E5M2,
    "float8_e5m2fnuz": zarr_dtypes.Float8E5M2FNUZ,
    "float8_e8m0fnu": zarr_dtypes.Float8E8M0FNU,
}
LAYOUTS = {
    "plain": {},
    "crc32c": {"compressors": [Crc32cCodec()]},
    "sharded": {"shards": (32, 16), "compressors": [Crc32cCodec()]},
    "big-endian": {"serializer": BytesCodec(endian="big")},
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C = {"name": "crc32c"}
SHARDED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [8, 16],
        "codecs": [BYTES, CRC32C],
        "index_codecs": [BYTES, CRC32C],
        "index_location": "end",
    },
}


@pytest.fixture(autouse=True, scope="module")
def _registered():
    register()


@pytest.fixture(params=CLASSES)
def name(request):
    return request.param


def bits(array):
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def every_pattern(name):
    """All values of a type, in sixteen columns."""
    dtype = EXTENSION[name]
    patterns = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    return patterns.view(dtype).reshape(-1, 16)


def create(path, name, **layout):
    return zarr.create_array(
        path,
        shape=every_pattern(name).shape,
        chunks=(8, 16),
        dtype=EXTENSION[name],
        config={"write_empty_chunks": True},
        **({"compressors": None} | layout),
    )


def tensorstore(path, **spec):
    kvstore = {"driver": "file", "path": str(path)}
    return ts.open({"driver": "zarr3", "kvstore": kvstore} | spec).result()


def zarr_json(path):
    return json.loads((path / "zarr.json").read_text())


def python(code, *flags):
    """Run `code` in a fresh interpreter and return what it prints."""
    command = [sys.executable, *flags, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Elements


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensorstore_reads_every_bit_pattern_that_zarr_writes(tmp_path, name, layout):
    array = create(tmp_path, name, **LAYOUTS[layout])
    array[:] = every_pattern(name)

    read = tensorstore(tmp_path).read().result()

    assert read.dtype == EXTENSION[name]
    np.testing.assert_array_equal(bits(read), bits(every_pattern(name)))


@pytest.mark.parametrize(
    "codecs",
    [[BYTES], [BYTES, CRC32C], [SHARDED], [{"name": "bytes", "configuration": {"endian": "big"}}]],
    ids=["plain", "crc32c", "sharded", "big-endian"],
)
def test_zarr_reads_every_bit_pattern_that_tensorstore_writes(tmp_path, name, codecs):
    values = every_pattern(name)
    grid = {"name": "regular", "configuration": {"chunk_shape": [16, 16]}}
    wanted = {"data_type": name, "shape": values.shape, "chunk_grid": grid, "codecs": codecs}
    tensorstore(tmp_path, metadata=wanted, create=True).write(values).result()

    array = zarr.open_array(tmp_path, mode="r")

    assert array.dtype == EXTENSION[name]
    np.testing.assert_array_equal(bits(array[:].astype(EXTENSION[name])), bits(values))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zarr_reads_back_every_bit_pattern(tmp_path, name, layout):
    create(tmp_path, name, **LAYOUTS[layout])[:] = every_pattern(name)

    read = zarr.open_array(tmp_path, mode="r")[:].astype(EXTENSION[name])

    np.testing.assert_array_equal(bits(read), bits(every_pattern(name)))


@pytest.mark.parametrize("layout", ["plain", "sharded"])
@pytest.mark.parametrize(
    "where",
    [np.s_[3], np.s_[5:13, 2:9], np.s_[..., -1], np.s_[1:15:3, ::5], np.s_[7, 7]],
    ids=str,
)
def test_a_slice_is_what_numpy_slices(tmp_path, name, layout, where):
    array = create(tmp_path, name, **LAYOUTS[layout])
    array[:] = every_pattern(name)

    np.testing.assert_array_equal(bits(array[where]), bits(every_pattern(name)[where]))


def test_a_slice_can_be_written(tmp_path, name):
    array, expected = create(tmp_path, name), every_pattern(name).copy()
    array[:] = expected

    for target in (array, expected):
        target[2:9, 3:5] = every_pattern(name)[4:11, 7:9]

    np.testing.assert_array_equal(bits(array[:]), bits(expected))


# Metadata


def test_the_metadata_has_the_plain_name(tmp_path, name):
    create(tmp_path, name)

    assert zarr_json(tmp_path)["data_type"] == name


def test_only_bfloat16_has_a_byte_order(tmp_path, name):
    create(tmp_path, name)

    little = BYTES if name == "bfloat16" else {"name": "bytes"}
    assert zarr_json(tmp_path)["codecs"] == [little]


def test_an_array_can_be_created_by_name(tmp_path, name):
    array = zarr.create_array(tmp_path, shape=(2,), dtype=name)

    assert array.dtype == EXTENSION[name]
    assert bits(array[:]).tolist() == [0, 0]


def test_zarr_v2_is_refused_with_the_reason(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} exists in Zarr v3 only"):
        zarr.create_array(tmp_path, shape=(2,), dtype=EXTENSION[name], zarr_format=2)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is")
def test_a_consolidated_group_opens(tmp_path, name):
    group = zarr.create_group(tmp_path)
    group.create_array("a", shape=(2,), dtype=EXTENSION[name])
    zarr.consolidate_metadata(tmp_path)

    assert zarr.open_consolidated(tmp_path, mode="r")["a"].dtype == EXTENSION[name]


# Fill values


def test_every_bit_pattern_survives_as_a_fill_value(name):
    dtype = CLASSES[name]()
    for scalar in every_pattern(name).flat:
        spelled = json.loads(json.dumps(dtype.to_json_scalar(scalar, zarr_format=3)))
        assert bits(dtype.from_json_scalar(spelled, zarr_format=3)) == bits(scalar), spelled


@pytest.mark.parametrize(
    ("name", "pattern", "spelled"),
    [
        ("bfloat16", 0x3FC0, 1.5),
        ("bfloat16", 0x8000, -0.0),
        ("bfloat16", 0x7F80, "Infinity"),
        ("bfloat16", 0xFF80, "-Infinity"),
        ("bfloat16", 0x7FC0, "NaN"),
        ("bfloat16", 0x7FC1, "0x7fc1"),
        ("bfloat16", 0xFFC0, "0xffc0"),
        ("float8_e4m3fn", 0x7E, 448.0),
        ("float8_e4m3fn", 0x7F, "NaN"),
        ("float8_e4m3fn", 0xFF, "0xff"),
        ("float8_e4m3fnuz", 0x80, "NaN"),
        ("float8_e5m2", 0x7C, "Infinity"),
        ("float8_e5m2", 0x7E, "NaN"),
        ("float8_e5m2", 0x7D, "0x7d"),
        ("float8_e5m2fnuz", 0x80, "NaN"),
        ("float8_e8m0fnu", 0x7F, "0x7f"),
        ("float8_e8m0fnu", 0xFF, "NaN"),
    ],
)
def test_a_fill_value_is_spelled_as_the_specification_says(name, pattern, spelled):
    written = CLASSES[name]().to_json_scalar(every_pattern(name).flat[pattern], zarr_format=3)

    assert repr(written) == repr(spelled)


@pytest.mark.parametrize("pattern", [0x00, 0x01, 0x3D, 0x7C, 0x7D, 0x7F, 0x80, 0x81, 0xFE, 0xFF])
def test_zarr_and_tensorstore_fill_with_the_same_bits(tmp_path, name, pattern):
    if name == "bfloat16":  # the patterns as the upper byte, over a mantissa that is not 0
        pattern = pattern << 8 | 0xC1
    fill = every_pattern(name).flat[pattern]
    zarr.create_array(tmp_path, shape=(3,), dtype=EXTENSION[name], fill_value=fill)

    array = zarr.open_array(tmp_path, mode="r")

    assert bits(array.fill_value) == pattern
    assert bits(array[:]).tolist() == [pattern] * 3
    assert bits(tensorstore(tmp_path).read().result()).tolist() == [pattern] * 3


def filled_by_tensorstore(path, name, fill):
    grid = {"name": "regular", "configuration": {"chunk_shape": [3]}}
    wanted = {"data_type": name, "shape": [3], "chunk_grid": grid, "fill_value": fill}
    return bits(tensorstore(path, metadata=wanted, create=True).read().result()).tolist()


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"float8_e8m0fnu"}))
@pytest.mark.parametrize("fill", [0.0, -0.0, 1.5, -2.0, 0.1, "NaN", "0x7f", "0xff"])
def test_zarr_fills_as_tensorstore_wrote(tmp_path, name, fill):
    theirs = filled_by_tensorstore(tmp_path, name, fill)

    assert bits(zarr.open_array(tmp_path, mode="r")[:]).tolist() == theirs


@pytest.mark.parametrize(("fill", "pattern"), [(0.0, 0x00), ("0x0", 0x00), ("NaN", 0xFF)])
def test_zarr_fills_float8_e8m0fnu_as_tensorstore_wrote_its_zero_and_nan(tmp_path, fill, pattern):
    assert filled_by_tensorstore(tmp_path, "float8_e8m0fnu", fill) == [pattern] * 3
    assert bits(zarr.open_array(tmp_path, mode="r")[:]).tolist() == [pattern] * 3


def test_the_default_fill_value_is_zero_bits(name):
    assert bits(CLASSES[name]().default_scalar()) == 0


def test_zero_is_accepted_where_the_type_has_none(tmp_path):
    array = zarr.zeros(store=tmp_path, shape=(2,), dtype=EXTENSION["float8_e8m0fnu"])

    assert bits(array[:]).tolist() == [0, 0]


def test_short_and_upper_case_bits_are_read(name):
    dtype = CLASSES[name]()

    assert bits(dtype.from_json_scalar("0x1", zarr_format=3)) == 1
    assert bits(dtype.from_json_scalar("0xAB", zarr_format=3)) == 0xAB


@pytest.mark.parametrize("fill", ["", "nan", "inf", "1", "0x", "0x1_0", "0x00001", "0xfg"])
def test_a_string_that_spells_no_value_is_refused(name, fill):
    with pytest.raises(ValueError, match=name):
        CLASSES[name]().from_json_scalar(fill, zarr_format=3)


@pytest.mark.parametrize("fill", [None, True, [1.0], {"value": 1.0}])
def test_a_fill_value_that_is_no_scalar_is_refused(name, fill):
    with pytest.raises(TypeError, match=name):
        CLASSES[name]().from_json_scalar(fill, zarr_format=3)


def test_a_number_beyond_the_range_is_refused(name):
    with pytest.raises(ValueError, match="beyond the range"):
        CLASSES[name]().cast_scalar(1e39)


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"bfloat16", "float8_e5m2"}))
@pytest.mark.parametrize("fill", ["Infinity", "-Infinity"])
def test_infinity_is_refused_where_the_type_has_none(name, fill):
    with pytest.raises(ValueError, match="beyond the range"):
        CLASSES[name]().from_json_scalar(fill, zarr_format=3)


def test_what_is_no_number_cannot_be_cast(name):
    with pytest.raises(TypeError, match=name):
        CLASSES[name]().cast_scalar(object())


# Registration


def test_every_extension_has_its_class():
    assert {name: cls().to_native_dtype() for name, cls in CLASSES.items()} == EXTENSION


def test_registering_again_changes_nothing():
    before = dict(data_type_registry.contents)
    register()
    zarr_dtypes.register()

    assert data_type_registry.contents == before
    assert {name: before[name] for name in CLASSES} == CLASSES


def test_a_type_that_another_package_registered_stays():
    class Other(BFloat16):
        pass

    data_type_registry.register("bfloat16", Other)
    try:
        register()
        assert data_type_registry.contents["bfloat16"] is Other
    finally:
        data_type_registry.register("bfloat16", BFloat16)


def test_zarr_finds_each_type_by_name_and_by_dtype(name):
    assert data_type_registry.match_json(name, zarr_format=3) == CLASSES[name]()
    assert data_type_registry.match_dtype(EXTENSION[name]) == CLASSES[name]()


def test_zarr_finds_its_own_types_as_before():
    for name, dtype in CORE.items():
        found = data_type_registry.match_json(name, zarr_format=3)
        assert found.to_native_dtype() == dtype
        assert data_type_registry.match_dtype(dtype) == found


def test_the_entry_points_name_the_classes():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"]["zarr.data_type"]

    loaded = {n: metadata.EntryPoint(n, v, "zarr.data_type").load() for n, v in declared.items()}

    assert loaded == CLASSES


BOTH = {
    "ours first": "import datastates, zarr",
    "zarr first": "import zarr, datastates",
    "zarr in use": "import zarr; zarr.zeros((1,))[:]; import datastates",
    "in two threads": """
        import importlib, threading
        meet = threading.Barrier(2)
        def load(name):
            meet.wait()
            importlib.import_module(name)
        threads = [threading.Thread(target=load, args=(n,)) for n in ("zarr", "datastates")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import zarr
    """,
}


@pytest.mark.parametrize("imports", BOTH)
def test_importing_datastates_is_enough_for_zarr_to_open_the_types(tmp_path, imports):
    create(tmp_path, "bfloat16")[:] = every_pattern("bfloat16")
    read = f"print(zarr.open_array({str(tmp_path)!r}, mode='r')[0, 1].tobytes().hex())"

    assert python(textwrap.dedent(BOTH[imports]) + "\n" + read, "-W", "error") == "0100"


def only_zarr(folder):
    """Fill `folder` with zarr and what it requires, and so without our entry points."""
    todo, done = [Requirement("zarr")], set()
    while todo:
        wanted = todo.pop()
        done.add(wanted.name)
        distribution = metadata.distribution(wanted.name)
        for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        extras = ["", *wanted.extras]
        todo += [
            needed
            for needed in map(Requirement, distribution.requires or ())
            if needed.name not in done
            and (not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in extras))
        ]
    return folder


def test_without_datastates_zarr_refuses_the_array_and_opens_the_rest(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    group = zarr.create_group(tmp_path / "group")
    group.create_array("model/weight", shape=(2,), dtype=EXTENSION["bfloat16"])
    group.create_array("model/scale", shape=(2,), dtype="float32", fill_value=1.5)

    code = f"""
        import sys
        sys.path.append({str(only_zarr(site))!r})
        import zarr
        group = zarr.open_group({str(tmp_path / "group")!r}, mode="r")
        print(group["model/scale"][:].tolist())
        try:
            group["model/weight"]
        except ValueError as error:
            print(error)
    """

    scale, refusal = python(code, "-I", "-S").splitlines()
    assert scale == "[1.5, 1.5]"
    assert refusal == "No Zarr data type found that matches 'bfloat16'"
