"""Shared column types."""

from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Enum, ForeignKey, Integer, String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column
from sqlalchemy.types import TypeEngine

from core.ids import ID_LENGTH

SECRET_HASH_LENGTH = 64
ADDRESS_LENGTH = 64
USER_AGENT_LENGTH = 300
# SQLite generates ids for INTEGER columns only.
BigNumber = BigInteger().with_variant(Integer(), "sqlite")


def enum_column(kind: type[StrEnum]) -> Enum:
    """Return a column type that stores the enum's values as plain text."""
    return Enum(
        kind,
        native_enum=False,
        length=32,
        create_constraint=False,
        values_callable=lambda members: [member.value for member in members],
    )


def exact_text(length: int) -> TypeEngine[str]:
    """Return a text type that compares case and accents on every database."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def reference(target: str, *, ondelete: str = "CASCADE", **options: Any) -> MappedColumn[Any]:  # noqa: ANN401 - mapped_column's
    """Return a foreign key column; by default, its row is deleted with the target."""
    return mapped_column(String(ID_LENGTH), ForeignKey(target, ondelete=ondelete), **options)


def tenant_column() -> MappedColumn[Any]:
    """Return an indexed column for the tenant that owns a row."""
    return reference("tenants.id", index=True)


def user_column() -> MappedColumn[Any]:
    """Return an indexed column for the user that owns a row."""
    return reference("users.id", index=True)


def secret_hash_column() -> Mapped[str]:
    """Return a unique column for the hash of a secret."""
    return mapped_column(String(SECRET_HASH_LENGTH), unique=True)
