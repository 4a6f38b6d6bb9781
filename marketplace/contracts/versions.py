"""Versions of a contract's terms: added, checked, and applied once they are accepted."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from core.errors import ConflictError, InvalidInputError, NotFoundError
from marketplace.models import Contract, ContractVersion
from marketplace.offers.checks import terms_errors
from marketplace.states import CONTRACT_TRANSITIONS, ContractState, Side, VersionState
from marketplace.terms import Terms, differences, stored, terms_hash

MAX_NOTE_LENGTH = 2000
_SHORT = 100


def add_version(
    contract: Contract,
    terms: Terms,
    side: Side,
    *,
    email: str,
    note: str = "",
    now: datetime,
) -> ContractVersion:
    """Add a version that waits for the other side."""
    version = ContractVersion(
        number=len(contract.versions) + 1,
        state=VersionState.PROPOSED,
        terms=stored(terms),
        terms_hash=terms_hash(terms),
        note=note.strip(),
        proposed_side=side,
        proposed_by=email,
        proposed_at=now,
        accepted_by="",
    )
    contract.versions.append(version)
    return version


def apply_version(
    contract: Contract, version: ContractVersion, *, email: str, now: datetime
) -> None:
    """Let a version apply; it was accepted.

    The first applies from the start of this hour, others from that of the next: an hour has one
    price.
    """
    hour_at = now.replace(minute=0, second=0, microsecond=0)
    if contract.state is ContractState.PROPOSED:
        contract.state, contract.starts_at = ContractState.ACTIVE, now
        begins_at = hour_at
    else:
        begins_at = hour_at + timedelta(hours=1)
    version.state, version.applies_from = VersionState.ACCEPTED, begins_at
    version.accepted_by, version.accepted_at = email, now
    term_days = version.decoded_terms.term_days
    contract.ends_at = now + timedelta(days=term_days) if term_days else None


def open_version(contract: Contract, number: int) -> ContractVersion:
    """Return a version that waits for an answer.

    Raises:
        ConflictError: it was answered, or replaced; says by what.
        NotFoundError: there is no such version.
    """
    version = next((item for item in contract.versions if item.number == number), None)
    if version is None:
        raise NotFoundError.of("version", str(number))
    if version.state is VersionState.PROPOSED:
        return version
    newest = contract.versions[-1]
    problem = f"Version {number} was {version.state.value}"
    if newest.number > number and newest.state is VersionState.PROPOSED:
        changes = changes_text(version.decoded_terms, newest.decoded_terms)
        raise ConflictError(f"{problem}, and version {newest.number} is proposed now: {changes}.")
    raise ConflictError(f"{problem}; the contract is {contract.state.value}.")


Hashed = tuple[Terms, str]


def check_hash(accepted: str, current: Hashed, earlier: Sequence[Hashed]) -> None:
    """Refuse a hash that is not that of the current terms, and say what changed since it was.

    Hashes are those that users saw: later versions of the portal may hash new fields, too.
    """
    terms, current_hash = current
    if current_hash == accepted:
        return
    former = next((other for other, hashed in earlier if hashed == accepted), None)
    if former is None:
        what = "These are not the terms that you accept"
    else:
        what = f"The terms have changed: {changes_text(former, terms)}"
    raise ConflictError(
        f"{what}. Read the terms, whose hash is {current_hash}, and accept them.",
        code="terms_changed",
    )


def check_terms(terms: Terms, note: str, *, currency: str) -> None:
    """Refuse terms that are not valid, with the errors by field."""
    errors = {
        f"terms.{name}": texts for name, texts in terms_errors(terms, currency=currency).items()
    }
    if len(note) > MAX_NOTE_LENGTH:
        errors["note"] = [
            f"The note has {len(note):,} characters; use at most {MAX_NOTE_LENGTH:,}."
        ]
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The terms were not proposed. {details}", errors=errors)


def check_move(contract: Contract, state: ContractState) -> None:
    """Refuse a change of state that `CONTRACT_TRANSITIONS` does not have."""
    if state not in CONTRACT_TRANSITIONS[contract.state]:
        raise ConflictError(f"The contract is {contract.state.value}: it can't be {state.value}.")


def changes_text(before: Terms, after: Terms) -> str:
    """Return what differs between two terms, such as `price is 2.5, was 2`."""
    parts = [
        f"{name} is {_short(later)}, was {_short(earlier)}"
        for name, earlier, later in differences(before, after)
    ]
    return "; ".join(parts) or "nothing changed"


def _short(value: Any) -> str:  # noqa: ANN401 - any part of a document
    text = str(value) if value not in ("", [], None) else "empty"
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
