"""The chains of the audit log: one for each tenant and one for the platform.

An entry's hash is SHA-256 over its canonical JSON, in which the hash of the entry before it is.
So nothing can be changed or taken out without all that follows becoming wrong. The head of a chain
holds its last number and hash: what is cut off at the end shows by it. Who can write to the
database could forge head and entries alike; `vedette audit verify` prints the heads, to be kept
elsewhere and compared later.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import String, insert, select, update
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from core.ids import new_id
from tenants.auditing.drafts import Draft
from tenants.models import AuditEntry, AuditHead

GENESIS_HASH = "0" * 64
HASHED = (
    "id", "chain", "number", "at", "actor_id", "actor_name", "via", "action", "target_kind",
    "target_id", "target_name", "before", "after", "reason", "address", "user_agent",
    "previous_hash",
)  # fmt: skip
_TEXTS = ("actor_name", "via", "action", "target_kind", "target_name", "reason", "address",
          "user_agent")  # fmt: skip


def append(session: Session, drafts: Iterable[Draft]) -> None:
    """Put entries at the ends of their chains.

    It is done last in a transaction: the chain's head stays locked from here to the commit, and
    nothing else is locked after it. Several heads are locked in the order of their names. So no
    circle of waiting can close.
    """
    by_chain: dict[str, list[Draft]] = {}
    for draft in drafts:
        by_chain.setdefault(draft.chain, []).append(draft)
    for chain in sorted(by_chain):
        _append(session, chain, by_chain[chain])


def entry_hash(values: Mapping[str, Any]) -> str:
    """Return the hash of an entry, given as its columns."""
    told = {name: values[name] for name in HASHED} | {
        "at": values["at"].isoformat(" ", "microseconds")
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of(entry: AuditEntry) -> str:
    """Return the hash that a stored entry should have."""
    return entry_hash({name: getattr(entry, name) for name in HASHED})


def _append(session: Session, chain: str, drafts: list[Draft]) -> None:
    number, previous = _lock_head(session, chain, adding=len(drafts))
    rows = []
    for draft in drafts:
        number += 1
        row = _row(draft) | {"number": number, "previous_hash": previous}
        row["hash"] = previous = entry_hash(row)
        rows.append(row)
    session.execute(insert(AuditEntry), rows)
    session.execute(_quiet(update(AuditHead).where(AuditHead.chain == chain).values(hash=previous)))


def _lock_head(session: Session, chain: str, *, adding: int) -> tuple[int, str]:
    """Count on and return what was last; the head is this transaction's from here on."""
    counted = _quiet(
        update(AuditHead).where(AuditHead.chain == chain).values(number=AuditHead.number + adding)
    )
    if not session.execute(counted).rowcount:  # type: ignore[attr-defined] # a CursorResult
        session.execute(_new_head(session, chain))
        session.execute(counted)
    number, last_hash = session.execute(
        select(AuditHead.number, AuditHead.hash).where(AuditHead.chain == chain)
    ).one()
    return number - adding, last_hash


def _quiet(statement: Any) -> Any:  # noqa: ANN401 - any kind of statement
    return statement.execution_options(synchronize_session=False)


def _new_head(session: Session, chain: str) -> Any:  # noqa: ANN401 - of either dialect
    """Return what makes a head unless somebody else just did.

    A plain INSERT that fails would keep a shared lock on MySQL, over which two could wait for each
    other.
    """
    values = {"chain": chain, "number": 0, "hash": GENESIS_HASH}
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(AuditHead).values(values).on_conflict_do_nothing()
    made = mysql.insert(AuditHead).values(values)
    return made.on_duplicate_key_update(number=AuditHead.number)


def _row(draft: Draft) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": new_id(),
        "chain": draft.chain,
        "at": draft.at,
        "actor_id": draft.actor.user_id,
        "actor_name": draft.actor.name,
        "via": draft.actor.via,
        "action": draft.action,
        "target_kind": draft.target_kind,
        "target_id": draft.target_id,
        "target_name": draft.target_name,
        "before": None if draft.before is None else dict(draft.before),
        "after": None if draft.after is None else dict(draft.after),
        "reason": draft.reason,
        "address": draft.actor.address,
        "user_agent": draft.actor.user_agent,
    }
    return row | {name: _cut(name, row[name]) for name in _TEXTS}


def _cut(name: str, text: str) -> str:
    column_type = AuditEntry.__table__.c[name].type
    return text[: column_type.length] if isinstance(column_type, String) else text
