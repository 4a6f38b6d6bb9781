"""Landed migrations are never edited: databases have run them as they were.

A new migration is added to `core/migrations/landed.sha256` by `sha256sum`.
"""

from hashlib import sha256
from pathlib import Path

MIGRATIONS = Path(__file__).parents[3] / "core" / "migrations"


def test_no_migration_has_changed() -> None:
    lines = (MIGRATIONS / "landed.sha256").read_text("utf-8").splitlines()
    landed = {name: digest for digest, name in map(str.split, lines)}
    files = (MIGRATIONS / "versions").glob("[0-9]*.py")
    assert {file.name: sha256(file.read_bytes()).hexdigest() for file in files} == landed
