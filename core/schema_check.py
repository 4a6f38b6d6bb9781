"""What the tables of the code need and those of the database lack, without Alembic.

Every start checks it: Alembic's comparison takes 12 MiB of memory and five times as long, and
refuses an index that an operator has added. `vedette db check` runs that one.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Index, Table, UniqueConstraint, inspect

from core.db import Base
from core.errors import ConfigurationError

SHOWN_PROBLEMS = 20
_Reflected = dict[tuple[str | None, str], Any]


def require_schema(engine: Engine) -> None:
    """Check that the database has what the code needs.

    Raises:
        ConfigurationError: it has not; names what is missing and what to do.
    """
    problems = schema_problems(engine)
    if not problems:
        return
    shown = problems[:SHOWN_PROBLEMS]
    if len(shown) < len(problems):
        shown.append(f"and {len(problems) - len(shown)} more")
    shown.append(
        "the database is at the revision of this version, but was changed by hand or restored in "
        "part. Restore it from a backup, or make these changes; `vedette db check` compares again"
    )
    raise ConfigurationError(shown, source="The schema of the database")


def schema_problems(engine: Engine) -> list[str]:
    """Return what is missing or stricter in the database, a phrase each.

    Tables, indexes and optional columns that only the database has don't matter.
    """
    database = inspect(engine)
    columns: _Reflected = database.get_multi_columns()
    indexes: _Reflected = database.get_multi_indexes()
    uniques: _Reflected = database.get_multi_unique_constraints()
    problems: list[str] = []
    for table in Base.metadata.sorted_tables:
        key = (None, table.name)
        if key not in columns:
            problems.append(f"the table {table.name} is missing")
            continue
        names = {entry["name"] for entry in (*indexes.get(key, ()), *uniques.get(key, ()))}
        problems += _column_problems(table, {entry["name"]: entry for entry in columns[key]})
        problems += _index_problems(table, names)
    return problems


def _column_problems(table: Table, reflected: dict[str, Any]) -> Iterator[str]:
    for column in table.columns:
        name = f"{table.name}.{column.name}"
        if column.name not in reflected:
            yield f"the column {name} is missing"
        elif reflected[column.name]["nullable"] != column.nullable and not column.primary_key:
            yield f"the column {name} {'must' if column.nullable else 'must not'} accept NULL"
    for name in reflected.keys() - table.columns.keys():
        column = reflected[name]
        has_value = column["nullable"] or column.get("default") or column.get("computed")
        if not has_value:
            yield f"the column {table.name}.{name} needs a value, and this version gives it none"


def _index_problems(table: Table, names: set[str | None]) -> Iterator[str]:
    required: list[Index | UniqueConstraint] = [*table.indexes]
    required += [key for key in table.constraints if isinstance(key, UniqueConstraint)]
    for index in sorted(required, key=lambda index: str(index.name)):
        if index.name is not None and index.name not in names:
            yield f"the index {index.name} of the table {table.name} is missing"
