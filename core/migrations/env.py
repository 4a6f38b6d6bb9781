"""Alembic environment: runs the scripts on the caller's connection."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Enum

from core.db import Base, UTCDateTime


def render_item(kind: str, item: Any, autogen: AutogenContext) -> str | Literal[False]:  # noqa: ANN401
    """Render our column types as stored, so that scripts do not depend on the models."""
    if kind == "type" and isinstance(item, UTCDateTime):
        autogen.imports.add("from core.db import UTCDateTime")
        return "UTCDateTime()"
    if kind == "type" and isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_item=render_item,
    render_as_batch=True,
    compare_type=True,
    on_version_apply=context.config.attributes.get("on_version_apply"),
)
with context.begin_transaction():
    context.run_migrations()
