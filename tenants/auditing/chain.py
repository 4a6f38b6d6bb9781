"""Hash chains of the audit log: one for each tenant, one for the platform.

An entry's hash is the SHA-256 of its canonical JSON, which contains the hash of the entry before
it: a changed or deleted entry invalidates all that follow. The head of a chain stores its last
number and hash, which reveals a truncated chain. Someone with write access to the database could
forge both: `vedette audit verify` prints the heads, to store elsewhere and compare later.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, String, insert, select, update
from sqlalchemy.orm import Session

from core.db import changed_one, insert_missing
from core.errors import InvalidInputError
from core.ids import new_id
from tenants.auditing.drafts import Draft
from tenants.models import PLATFORM_CHAIN, AuditEntry, AuditHead

GENESIS_HASH = "0" * 64
# The columns of an exported entry, in order.
COLUMNS = (
    "chain",
    "number",
    "at",
    "actor_id",
    "actor_name",
    "via",
    "action",
    "target_kind",
    "target_id",
    "target_name",
    "before",
    "after",
    "reason",
    "address",
    "user_agent",
    "id",
    "previous_hash",
    "hash",
)
HASHED = COLUMNS[:-1]


def append(session: Session, drafts: Iterable[Draft]) -> None:
    """Append entries to their chains, as the last statements of a transaction.

    The head of a chain stays locked until the commit. Heads are locked in order of their names, and
    nothing is locked after them, which prevents deadlocks.
    """
    by_chain: dict[str, list[Draft]] = {}
    for draft in drafts:
        by_chain.setdefault(draft.chain, []).append(draft)
    for chain in sorted(by_chain):
        _append(session, chain, by_chain[chain])


def entry_hash(values: Mapping[str, Any]) -> str:
    """Return the hash of an entry, given as its columns."""
    canonical = {name: values[name] for name in HASHED} | {
        "at": values["at"].isoformat(" ", "microseconds")
    }
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _append(session: Session, chain: str, drafts: list[Draft]) -> None:
    number, previous = _lock_head(session, chain, adding=len(drafts))
    rows = []
    for draft in drafts:
        number += 1
        row = _row(draft) | {"number": number, "previous_hash": previous}
        row["hash"] = previous = entry_hash(row)
        rows.append(row)
    session.execute(insert(AuditEntry), rows)
    session.execute(
        _unsynchronized(update(AuditHead).where(AuditHead.chain == chain).values(hash=previous))
    )


def _lock_head(session: Session, chain: str, *, adding: int) -> tuple[int, str]:
    """Increase the head's number, which locks it; return the last number and hash."""
    counted = _unsynchronized(
        update(AuditHead).where(AuditHead.chain == chain).values(number=AuditHead.number + adding)
    )
    if not changed_one(session, counted):
        insert_missing(session, AuditHead, {"chain": chain, "number": 0, "hash": GENESIS_HASH})
        session.execute(counted)
    number, last_hash = session.execute(
        select(AuditHead.number, AuditHead.hash).where(AuditHead.chain == chain)
    ).one()
    return number - adding, last_hash


def _unsynchronized(statement: Any) -> Any:  # noqa: ANN401 - any kind of statement
    return statement.execution_options(synchronize_session=False)


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
    for name, value in row.items():
        column_type = AuditEntry.__table__.c[name].type
        if isinstance(value, str) and isinstance(column_type, String):
            row[name] = value[: column_type.length]
    return row


BATCH = 5000
Progress = Callable[[str, int], None]
_HEAD_PARTS = 3


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a chain, as a line to store elsewhere."""

    chain: str
    number: int
    hash: str

    def __str__(self) -> str:
        """Return it as a line that `parse` reads."""
        return f"{self.chain} {self.number} {self.hash}"

    @classmethod
    def parse(cls, line: str) -> "Head":
        """Parse a line that a verification printed."""
        parts = line.split()
        if len(parts) < _HEAD_PARTS or not parts[1].isdigit():
            raise InvalidInputError(
                f"{line!r} is not a head of a chain. Pass lines as `vedette audit verify` prints "
                "them: the chain, a number and a hash."
            )
        return cls(parts[0], int(parts[1]), parts[2])


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The result of one chain; `problem` is empty if the chain is intact."""

    head: Head
    problem: str = ""


def verify(
    session: Session,
    chain: str,
    *,
    known_heads: Iterable[Head] = (),
    progress: Progress | None = None,
) -> VerificationResult:
    """Verify a chain, which must still contain `known_heads`, which were stored elsewhere.

    `progress` is called with the chain and the number of verified entries.
    """
    stored = {head.number: head.hash for head in known_heads if head.chain == chain}
    last = Head(chain, 0, GENESIS_HASH)
    while True:
        for rows in _batches(session, chain, after=last.number):
            for row in rows:
                problem = _problem(row, last, stored)
                if problem:
                    return VerificationResult(last, problem)
                last = Head(chain, row.number, row.hash)
            if progress is not None:
                progress(chain, last.number)
        head = session.execute(
            select(AuditHead.number, AuditHead.hash).where(AuditHead.chain == chain)
        ).one_or_none()
        following = AuditEntry.chain == chain, AuditEntry.number == last.number + 1
        # Entries may have been appended meanwhile.
        if (
            head is None
            or head.number <= last.number
            or session.scalar(select(AuditEntry.id).where(*following)) is None
        ):
            return VerificationResult(last, _problem_at_end(head, last, stored))


def verify_all(
    session: Session, *, known_heads: Sequence[Head] = (), progress: Progress | None = None
) -> list[VerificationResult]:
    """Verify every chain, also those that should exist and do not."""
    made = _targets_of(session, "tenant.created") | {head.chain for head in known_heads}
    chain_names = {
        *session.scalars(select(AuditHead.chain)),
        *session.scalars(select(AuditEntry.chain).distinct()),
        # The chain of a removed tenant was exported and deleted.
        *(made - _targets_of(session, "tenant.removed")),
    }
    chains = [PLATFORM_CHAIN, *sorted(chain_names - {PLATFORM_CHAIN, ""})]
    return [verify(session, chain, known_heads=known_heads, progress=progress) for chain in chains]


def _targets_of(session: Session, action: str) -> set[str]:
    statement = select(AuditEntry.target_id).where(
        AuditEntry.chain == PLATFORM_CHAIN, AuditEntry.action == action
    )
    return {ident for ident in session.scalars(statement) if ident}


def _batches(session: Session, chain: str, *, after: int) -> Iterable[Sequence[Row[Any]]]:
    columns = [getattr(AuditEntry, name) for name in (*HASHED, "hash")]
    statement = select(*columns).where(AuditEntry.chain == chain).order_by(AuditEntry.number)
    while rows := session.execute(statement.where(AuditEntry.number > after).limit(BATCH)).all():
        yield rows
        after = rows[-1].number


def _problem(row: Row[Any], last: Head, stored: Mapping[int, str]) -> str:
    values = row._mapping  # noqa: SLF001 - public in SQLAlchemy
    if row.number != last.number + 1:
        return _missing(last.number + 1, row.number - 1)
    if row.previous_hash != last.hash:
        return f"Entry {row.number} does not follow entry {last.number}."
    if entry_hash(values) != row.hash:  # type: ignore[arg-type] # column names are strings
        return f"Entry {row.number} was changed."
    if stored.get(row.number, row.hash) != row.hash:
        return f"Entry {row.number} does not match the stored head: the chain was rewritten."
    return ""


def _problem_at_end(head: Row[int, str] | None, last: Head, stored: Mapping[int, str]) -> str:
    longest = max([*stored, 0 if head is None else head.number])
    if longest > last.number:
        return _missing(last.number + 1, longest)
    if head is None:
        return "The chain's head is missing." if last.number else "The chain is missing."
    if head.number < last.number:
        return f"Entries {head.number + 1} to {last.number} are after the chain's head."
    if head.hash != last.hash:
        return "The hash of the chain's head does not match its last entry."
    return ""


def _missing(first: int, last: int) -> str:
    subject = f"Entry {first} is" if first == last else f"Entries {first} to {last} are"
    return f"{subject} missing."
