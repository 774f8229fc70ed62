"""What is installed is what the tree says, and the public face is complete."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path
from types import ModuleType

import pytest

import datastates as ds
from datastates import testing

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = {"datastates": "datastates", "providers": "datastates.providers"} | {
    "tiers": "datastates.tiers"
}
GROUPS = ("datastates.tiers", "datastates.providers", "zarr.data_type", "console_scripts")


def packages() -> set[str]:
    """Return what the tree says: every folder with an `__init__.py`, by its import name."""
    found = set()
    for folder, name in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join([name, *parts]))
    return found


def modules() -> list[str]:
    found = []
    for name in ("datastates", "datastates.providers", "datastates.tiers"):
        package = importlib.import_module(name)
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return found


def test_every_folder_is_a_package_that_is_installed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages()
    flat = (path for name in ("providers", "tiers") for path in (ROOT / name).rglob("*/*.py"))
    assert not [path for path in flat if "__pycache__" not in path.parts]


def test_every_entry_point_loads() -> None:
    for group in GROUPS:
        ours = [p for p in entry_points(group=group) if p.dist and p.dist.name == "datastates"]
        listed = PROJECT["project"]["scripts"]
        if group != "console_scripts":
            listed = PROJECT["project"]["entry-points"][group]
        assert {point.name: point.value for point in ours} == listed
        for point in ours:
            assert callable(point.load())


@pytest.mark.parametrize("module", [ds, testing], ids=lambda module: module.__name__)
def test_all_equals_the_public_members(module: ModuleType) -> None:
    assert list(module.__all__) == sorted(module.__all__, key=_as_ruff_sorts)
    for name in module.__all__:
        assert getattr(module, name).__doc__, f"{name} has no docstring"
    public = {n for n, v in vars(module).items() if n[0] != "_" and not inspect.ismodule(v)}
    assert public - set(module.__all__) <= {"annotations", "TYPE_CHECKING", "import_module"}


def _as_ruff_sorts(name: str) -> tuple[bool, bool, str]:
    return not name.isupper(), not name[0].isupper(), name


@pytest.mark.parametrize("name", modules())
def test_all_of_each_module_is_there_and_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.{public}"


def test_the_core_names_no_concrete_provider_or_tier() -> None:
    for path in (ROOT / "datastates").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                assert not name.startswith(("datastates.providers", "datastates.tiers")), path


def test_torch_is_imported_only_when_it_is_needed() -> None:
    code = "import sys, datastates; print('torch' in sys.modules, 'pytest' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_the_version_is_the_distributions() -> None:
    assert ds.__version__ == PROJECT["project"]["version"] == distribution("datastates").version


def test_the_wheel_has_everything(tmp_path: Path) -> None:
    copy = tmp_path / "source"  # a build leaves folders behind, and not in this tree
    names = ["pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", *FOLDERS]
    copy.mkdir()
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in names), str(copy)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(tmp_path), str(copy)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("datastates-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    expected = {
        f"{name.replace('.', '/')}/{source.name}"
        for folder, name in FOLDERS.items()
        for source in (ROOT / folder).glob("*.py")
    }
    assert expected <= held
    assert {"datastates/py.typed", "datastates/cli/__init__.py"} <= held
    assert "datastates/testing/tier_tests.py" in held
    tops = {name.partition("/")[0] for name in held}
    assert tops == {"datastates", f"datastates-{ds.__version__}.dist-info"}
    assert not [
        name for name in held if "__pycache__" in name or name.startswith("datastates/tests")
    ]
