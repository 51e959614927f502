"""The walls of the house: who may import whom, what no file may do, and what the wheel holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ADAPTERS = ("cli", "serving", "training")
ROOMS = (
    "config", "decoding", "disk", "data", "demo", "backbone", "parts", "run", "report", "cluster", "model", "methods",
    "discovery", "export", "registry", "schedule", "continual", "bench",
)  # fmt: skip
# Rooms that see less than all that lies above them.
ONLY = {
    "decoding": set[str](),
    "disk": {"config"},
    "parts": set[str](),
    "run": {"config", "disk"},
    "report": {"config", "disk", "data", "parts", "run"},
    "schedule": {"config", "disk", "registry"},
}
LONGEST = 400
UNPICKLERS = {"cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(paths: list[Path]) -> dict[str, Path]:
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


LIBRARY = named(sources("partgcd"))
SHIPPED = named(sources("partgcd", *ADAPTERS))
EVERYTHING = named(sources("partgcd", *ADAPTERS, "tests", "benchmarks"))


def imports(source: str, module: str) -> Iterator[str]:
    """Absolute dotted names of everything that ``module`` imports, wherever in the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "partgcd" else ("partgcd", *parts))


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and parts[1] in ROOMS) else None


def broken_walls(source: str, module: str) -> list[str]:
    """Imports of ``module`` that its room may not make."""
    room, wrong = room_of(module), []
    for name in imports(source, module):
        head, *rest = name.split(".")
        if head in ("ray", "fastapi", "typer", "starlette", "uvicorn", *ADAPTERS):
            wrong.append(name)
        if head != "partgcd" or not rest:
            continue
        other = rest[0]
        if other in ADAPTERS:
            wrong.append(name)
        elif room is not None and other in ROOMS and other != room:
            allowed = ONLY.get(room, set(ROOMS[: ROOMS.index(room)]))
            wrong += [] if other in allowed else [name]
    return wrong


def careless(source: str) -> list[str]:
    """What could run a stranger's code: pickle and its users, shell strings, eval, unsafe loaders."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wrong += [each.name for each in node.names if each.name.split(".")[0] in UNPICKLERS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {
            *UNPICKLERS,
            "pickle",
        }:
            wrong.append(str(node.module))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
            wrong += [] if node.attr == "UnpicklingError" else [f"pickle.{node.attr}"]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {each.arg: each.value for each in node.keywords}

        def states(name: str, value: bool, given: dict[str | None, ast.expr] = given) -> bool:
            told = given.get(name)
            return isinstance(told, ast.Constant) and told.value is value

        if "shell" in given and not states("shell", False):
            wrong.append(f"{called}(shell=)")
        if called == "torch.load" and not states("weights_only", True):
            wrong.append("torch.load without weights_only=True")
        if called in ("np.load", "numpy.load") and not states("allow_pickle", False):
            wrong.append("np.load without allow_pickle=False")
        if called in ("torch.save", "os.system", "os.popen", "eval", "exec", "yaml.load", "yaml.unsafe_load"):
            wrong.append(called)
    return wrong


@pytest.mark.parametrize("name", LIBRARY)
def test_rooms_import_only_from_rooms_above_them(name: str) -> None:
    if name == "partgcd/__main__.py":  # python -m partgcd is the command line
        return
    path = LIBRARY[name]
    assert broken_walls(path.read_text(encoding="utf-8"), module_of(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("partgcd.data.scan", "from partgcd.run.folder import RunFolder"),
        ("partgcd.run.world", "def f():\n    import partgcd.discovery.fit"),
        ("partgcd.run.world", "from partgcd.data.catalog import Catalog"),
        ("partgcd.parts.em", "from partgcd.config.tree import Settings"),
        ("partgcd.model.heads", "from ..discovery import fit"),
        ("partgcd.model.heads", "from partgcd import discovery"),
        ("partgcd.discovery.fit", "def f():\n    import ray"),
        ("partgcd.report.build", "from partgcd.cli import main"),
        ("partgcd.report.build", "import typer"),
        ("partgcd.report.build", "import cli.main"),
    ],
)
def test_a_hole_in_a_wall_is_seen(module: str, source: str) -> None:
    assert broken_walls(source, module)


def test_every_room_on_disk_has_its_place_in_the_order_and_in_the_map() -> None:
    rooms = {path.parent.name for path in (ROOT / "partgcd").glob("*/__init__.py")}
    assert rooms <= set(ROOMS)
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    mapped = re.findall(r"^\| `partgcd/(\w+)/`", table, re.MULTILINE)
    assert rooms == set(mapped)
    assert mapped == sorted(mapped, key=ROOMS.index), "the map lists rooms in another order"


@pytest.mark.parametrize("name", EVERYTHING)
def test_nobody_imports_an_adapter_by_its_folder_name(name: str) -> None:
    path = EVERYTHING[name]
    found = imports(path.read_text(encoding="utf-8"), module_of(path))
    assert [each for each in found if each.split(".")[0] in ADAPTERS] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_no_file_can_run_what_it_reads(name: str) -> None:
    assert careless(SHIPPED[name].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')",
        "from pickle import loads",
        "def f():\n    import joblib",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.save(x, path)",
        "yaml.load(text)",
    ],
)
def test_carelessness_is_seen(source: str) -> None:
    assert careless(source)


@pytest.mark.parametrize("name", SHIPPED)
def test_no_file_outgrows_its_subject(name: str) -> None:
    lines = len(SHIPPED[name].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{name} has {lines} lines: split it"


def test_the_library_imports_without_the_optional_packages() -> None:
    modules = [
        module_of(path).removesuffix(".__init__")
        for name, path in LIBRARY.items()
        if name != "partgcd/__main__.py" and not name.startswith("partgcd/export/")
    ]
    code = (
        "import importlib, sys\n"
        "for name in ('ray', 'faiss', 'onnx', 'onnxruntime', 'onnxscript'): sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(len([name for name in sys.modules if name.startswith('partgcd')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= len(modules)


@pytest.mark.parametrize("room", ["registry", "schedule"])
def test_what_serving_needs_of_the_library_comes_without_torch(room: str) -> None:
    modules = [module_of(path) for path in sources(f"partgcd/{room}") if path.name != "__init__.py"]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*(name for name in ('torch', 'timm', 'sklearn') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_truth_is_read_only_by_evaluation_and_by_who_starts_it() -> None:
    """Training never sees hidden classes: nobody else imports their reader or opens truth.parquet."""
    readers = {
        name
        for name, path in SHIPPED.items()
        if any("partgcd.data.truth" in each for each in imports(path.read_text("utf-8"), module_of(path)))
    }
    assert readers <= {"partgcd/discovery/discover.py", "cli/results.py"}
    evaluators = {
        name
        for name, path in SHIPPED.items()
        if any("discovery.evaluate" in each for each in imports(path.read_text("utf-8"), module_of(path)))
    }
    assert evaluators <= readers


def settings_of_the_wheel() -> dict[str, dict[str, object]]:
    tool: dict[str, dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    return tool


def folders() -> dict[str, Path]:
    """{package: folder} of every package on disk."""
    found = {}
    for top in ("partgcd", *ADAPTERS):
        for init in (ROOT / top).rglob("__init__.py"):
            found[module_of(init).removesuffix(".__init__")] = init.parent
    return found


def test_the_wheel_holds_every_package_under_one_name() -> None:
    setuptools = settings_of_the_wheel()["setuptools"]
    listed = setuptools["packages"]
    assert isinstance(listed, list)
    assert sorted(listed) == sorted(folders())
    assert {name.split(".")[0] for name in listed} == {"partgcd"}
    assert setuptools["package-dir"] == {
        "partgcd": "partgcd",
        **{f"partgcd.{name}": name for name in ADAPTERS},
    }


def test_the_wheel_holds_every_file_that_is_no_module() -> None:
    data = settings_of_the_wheel()["setuptools"]["package-data"]
    assert isinstance(data, dict)
    for package, folder in folders().items():
        for file in folder.iterdir():
            if file.is_file() and file.suffix not in (".py", ".pyc"):
                assert any(fnmatch(file.name, pattern) for pattern in data.get(package, [])), file


def test_every_folder_with_modules_is_a_package() -> None:
    for path in SHIPPED.values():
        assert (path.parent / "__init__.py").exists(), path
