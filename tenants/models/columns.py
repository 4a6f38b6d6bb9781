"""Column types that the tables of this package share."""

from enum import StrEnum

from sqlalchemy import BigInteger, Enum, ForeignKey, Integer, String
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from core.ids import ID_LENGTH

SECRET_HASH_LENGTH = 64
ADDRESS_LENGTH = 64
USER_AGENT_LENGTH = 300
# SQLite numbers rows by INTEGER alone.
BigNumber = BigInteger().with_variant(Integer(), "sqlite")


def enum_column(kind: type[StrEnum]) -> Enum:
    """Return a column type that stores the enum's values as plain text on every database."""
    return Enum(
        kind, native_enum=False, length=32, create_constraint=False,
        values_callable=lambda members: [member.value for member in members],
    )  # fmt: skip


def exact_text(length: int) -> TypeEngine[str]:
    """Return a text type that tells `a` from `A` and from `á` on every database."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def tenant_column() -> Mapped[str]:
    """Return a column that names the tenant that a row belongs to and goes with."""
    return mapped_column(
        String(ID_LENGTH), ForeignKey("tenants.id", ondelete="CASCADE"), index=True
    )


def user_column() -> Mapped[str]:
    """Return a column that names the user that a row belongs to and goes with."""
    return mapped_column(String(ID_LENGTH), ForeignKey("users.id", ondelete="CASCADE"), index=True)


def secret_hash_column() -> Mapped[str]:
    """Return a column for the hash of a secret, by which it is found."""
    return mapped_column(String(SECRET_HASH_LENGTH), unique=True)
