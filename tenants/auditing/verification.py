"""Goes along the chains and says where one was tampered with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from tenants.auditing.chain import GENESIS_HASH, HASHED, entry_hash
from tenants.models import PLATFORM_CHAIN, AuditEntry, AuditHead

BATCH = 5000
Progress = Callable[[str, int], None]
_HEAD_PARTS = 3


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain at some time, as it can be kept on paper."""

    chain: str
    number: int
    hash: str

    def __str__(self) -> str:
        """Return it as one line, which `parse` reads again."""
        return f"{self.chain} {self.number} {self.hash}"

    @classmethod
    def parse(cls, line: str) -> "Head":
        """Read a line that a former verification printed."""
        parts = line.split()
        if len(parts) < _HEAD_PARTS or not parts[1].isdigit():
            raise InvalidInputError(
                f"{line!r} is no head of a chain. Give lines as `vedette audit verify` prints "
                "them: the chain, a number and a hash."
            )
        return cls(parts[0], int(parts[1]), parts[2])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one chain; `fault` is empty where it is whole."""

    head: Head
    fault: str = ""


def verify(
    session: Session, chain: str, *, known: Iterable[Head] = (), progress: Progress | None = None
) -> Verdict:
    """Go along a chain and return whether it is whole.

    Args:
        session: the database session; it reads only.
        chain: a tenant's id, or `platform`.
        known: heads that were kept elsewhere; the chain must still hold them.
        progress: told of the chain and how many entries were seen, now and then.
    """
    kept = {head.number: head.hash for head in known if head.chain == chain}
    last = Head(chain, 0, GENESIS_HASH)
    while True:
        for rows in _batches(session, chain, after=last.number):
            for row in rows:
                fault = _fault(row, last, kept)
                if fault:
                    return Verdict(last, fault)
                last = Head(chain, row.number, row.hash)
            if progress is not None:
                progress(chain, last.number)
        head = session.execute(
            select(AuditHead.number, AuditHead.hash).where(AuditHead.chain == chain)
        ).one_or_none()
        # More may have been written since the last look.
        if head is None or head.number <= last.number or not _exists(session, chain, last.number):
            return Verdict(last, _fault_at_end(head, last, kept))


def verify_all(
    session: Session, *, known: Sequence[Head] = (), progress: Progress | None = None
) -> list[Verdict]:
    """Go along every chain, those too that there should be and are not."""
    return [
        verify(session, chain, known=known, progress=progress)
        for chain in [PLATFORM_CHAIN, *sorted(_chains(session, known) - {PLATFORM_CHAIN})]
    ]


def _chains(session: Session, known: Iterable[Head]) -> set[str]:
    made = _told_of(session, "tenant.created") | {head.chain for head in known}
    found = {
        *session.scalars(select(AuditHead.chain)),
        *session.scalars(select(AuditEntry.chain).distinct()),
        # The chain of a tenant that was removed went with it, after it was exported.
        *(made - _told_of(session, "tenant.removed")),
    }
    return {chain for chain in found if chain}


def _told_of(session: Session, action: str) -> set[str]:
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


def _exists(session: Session, chain: str, number: int) -> bool:
    following = select(AuditEntry.id).where(
        AuditEntry.chain == chain, AuditEntry.number == number + 1
    )
    return session.scalar(following) is not None


def _fault(row: Row[Any], last: Head, kept: Mapping[int, str]) -> str:
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's public name of a row as a mapping
    if row.number != last.number + 1:
        return _missing(last.number + 1, row.number - 1)
    if row.previous_hash != last.hash:
        return f"Entry {row.number} does not follow entry {last.number}."
    if entry_hash(values) != row.hash:  # type: ignore[arg-type] # column names are strings
        return f"Entry {row.number} was changed."
    if kept.get(row.number, row.hash) != row.hash:
        return f"Entry {row.number} is not the one whose hash was kept: the chain was rewritten."
    return ""


def _fault_at_end(head: Row[int, str] | None, last: Head, kept: Mapping[int, str]) -> str:
    longest = max([*kept, 0 if head is None else head.number])
    if longest > last.number:
        return _missing(last.number + 1, longest)
    if head is None:
        return "The chain's head is missing." if last.number else "The chain is missing."
    if head.number < last.number:
        return f"Entries {head.number + 1} to {last.number} came past the chain's head."
    return (
        "" if head.hash == last.hash else "The chain's head has another hash than its last entry."
    )


def _missing(first: int, last: int) -> str:
    return (
        f"Entry {first} is missing." if first == last else f"Entries {first} to {last} are missing."
    )
