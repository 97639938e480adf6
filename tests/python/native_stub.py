"""Writes ``lcm/_lcm.pyi`` from the types that the native module declares in Rust.

``maturin generate-stubs`` reads them from the built library. Types that it knows by name only, as text, become
annotations with their imports here.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "lcm-py" / "python" / "lcm" / "_lcm.pyi"
HEADER = "# Generated from Rust by `UPDATE_DOCS=1 .venv/bin/pytest tests/python/test_stub.py`; do not edit."

IMPORTS = """
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Self, Unpack
import lcm.frame
import lcm.observation
import lcm.policy
from lcm._types import AnyRecord, AnyWorker
from lcm._vocabulary import AnyEc2State, AnyWorkerStatus
from lcm.enums import (
    Conclusion, DesiredStatus, EffectName, EffectResult, Outcome, ReasonCode, Requeue, WorkerStatus
)
from lcm.failure import CallFailure
from lcm.types import WorkerChanges, WorkerFields
from lcm.values import FrozenMap
"""
"""Homes of the names in annotations that are text in Rust."""


class Rewrite(ast.NodeTransformer):
    """Turns textual annotations into expressions, and indents documentation."""

    def __init__(self) -> None:
        self.indent = ""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = node.annotation and Expressions().visit(node.annotation)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = Expressions().visit(node.annotation)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self.inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = node.returns and Expressions().visit(node.returns)
        return self.inside(node)

    def inside(self, node: ast.AST) -> ast.AST:
        outer, self.indent = self.indent, self.indent + "    "
        node = self.generic_visit(node)
        self.indent = outer
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines = inspect.cleandoc(node.value.value).splitlines()
            text = "\n".join(lines if len(lines) == 1 else [*lines, ""])
            node.value = ast.Constant(text.replace("\n", "\n" + self.indent))
        return node


class Expressions(ast.NodeTransformer):
    """Parses the text in an annotation, except that of literals."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.parse(node.value, mode="eval").body if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)  # type: ignore[return-value]


def generated(directory: Path) -> str:
    """Return the stub of the native module, built as for the tests."""
    program = Path(sys.executable).with_name("maturin")
    options = ("--locked", "--quiet", "--features", "test-build", "--out", directory)
    subprocess.run([program, "generate-stubs", *options], cwd=ROOT, check=True, capture_output=True)
    (written,) = directory.rglob("*.pyi")
    module = Rewrite().visit(ast.parse(written.read_text(encoding="utf-8")))
    about = ast.get_docstring(module)
    assert about is not None
    declared = [node for node in module.body[1:] if not isinstance(node, ast.ImportFrom | ast.Import)]
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom | ast.Import)]
    bound = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for part in declared for node in ast.walk(part) if isinstance(node, ast.Name)}
    for node in ast.parse(IMPORTS).body:
        assert isinstance(node, ast.ImportFrom | ast.Import)
        names = (alias.name.partition(".")[0] for alias in node.names)
        node.names = [alias for alias, name in zip(node.names, names, strict=True) if name in used - bound]
        imports += [node] if node.names else []
    source = "\n".join([HEADER, f'"""{about}"""', *(ast.unparse(node) for node in (*imports, *declared))])
    return formatted(formatted(source, "check", "--select", "I", "--fix-only", "--quiet"), "format", "--quiet")


def formatted(source: str, *command: str, path: Path = PATH) -> str:
    """Return Python source after a command of ruff."""
    ruff = Path(sys.executable).with_name("ruff")
    arguments = [str(ruff), *command, "--stdin-filename", str(path), "-"]
    done = subprocess.run(arguments, cwd=ROOT, input=source, text=True, check=True, capture_output=True)
    return done.stdout
