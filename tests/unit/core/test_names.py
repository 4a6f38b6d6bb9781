"""Names of variables, arguments and functions say what they hold: pronouns do not."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRONOUNS = frozenset({"one", "some", "found", "known", "further", "more", "most", "kept", "again"})
FOLDERS = (
    *("access", "alerting", "cli", "collector", "core", "dash_app", "jobqueue", "plugins"),
    *("portal", "protocol", "scheduler", "serving", "tenants", "timeseries", "vedette"),
    *("benchmarks", "tests"),
)

# Of the REST API, whose names stay.
EXCEPTIONS = {("portal/api/tenants.py", "most")}


def assigned_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module gives, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_no_name_is_a_pronoun() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    pronouns = [
        f"{path}:{line}: {name}"
        for file in files
        for path in [str(file.relative_to(ROOT))]
        for name, line in assigned_names(ast.parse(file.read_text("utf-8")))
        if name in PRONOUNS and (path, name) not in EXCEPTIONS
    ]
    assert files
    assert pronouns == []
