"""The client's modules form no import cycle, not even through imports for type checking."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fairlead.sdk

FOLDER = Path(fairlead.sdk.__file__).parent


def imports_of(path: Path) -> set[str]:
    """The modules of the SDK that a module imports, anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fairlead.sdk":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead.sdk."):
            found.add(str(node.module).rpartition(".")[2])
    return found


def test_no_module_imports_itself_through_others() -> None:
    graph = {path.stem: imports_of(path) for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert graph["client"] >= {"jobs", "datasets"}, "the imports are read"
    TopologicalSorter(graph).prepare()  # raises CycleError
