"""Sends a write in parts, when the portal does not store it as a whole.

A write that is too large for the portal or a proxy arrives in smaller ones. Of a write that the
portal rejects or fails on, the lines that are the cause remain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from anyio import to_thread

from collector.buffering.undeliverable import numbered_lines, rejected_lines
from protocol.relays import RelayedOutcome, RelayedWrite
from relay.errors import UpstreamBusyError, UpstreamFailedError
from relay.upstream import Upstream

STORED, TOO_LARGE, FAILED = 204, 413, 500
REJECTED = frozenset({400, 413, 415, 422})
# The portal, its store or a proxy can't answer now, which has nothing to do with the write.
NOT_NOW = frozenset({429, 502, 503, 504})
# Requests that fail; what is left then is set aside as it is.
MAX_FAILED_PARTS = 64
# The portal does not name more; then the whole write is set aside.
MAX_NAMED_LINES = 100
_MAX_REASON_CHARACTERS = 500


@dataclass(slots=True)
class Division:
    """What became of the parts of a write.

    Attributes:
        is_stored: whether the portal has stored a part, so that it can.
        refused: lines that it does not store, with the reason.
    """

    is_stored: bool = False
    refused: list[tuple[Sequence[bytes], str]] = field(default_factory=list)
    failed_parts: int = 0


async def divide(upstream: Upstream, write: RelayedWrite, outcome: RelayedOutcome) -> Division:
    """Send what the portal has not stored of a write, in parts.

    Args:
        upstream: the portal.
        write: the write.
        outcome: its outcome as a whole, one of `REJECTED` or a failure.

    Raises:
        UpstreamAwayError: the portal does not answer, or can't store a part now.
        UpstreamRefusedError: it does not accept the relay's token.
    """
    division = Division()
    await _divide(upstream, write, outcome, division)
    return division


async def _divide(
    upstream: Upstream, write: RelayedWrite, outcome: RelayedOutcome, division: Division
) -> None:
    numbered = await to_thread.run_sync(numbered_lines, write.body)
    if named := rejected_lines(outcome.body) if outcome.status in REJECTED else {}:
        division.is_stored = True  # its other lines, if there are any
        line_of = dict(numbered)
        if len(named) >= MAX_NAMED_LINES:
            division.refused.append(([line for _, line in numbered], reason_of(outcome)))
            return
        division.refused += [([line_of.get(at, b"")], reason) for at, reason in named.items()]
        return
    lines = [line for _, line in numbered]
    division.failed_parts += outcome.status != TOO_LARGE
    if len(lines) <= 1 or division.failed_parts > MAX_FAILED_PARTS:
        division.refused.append((lines, reason_of(outcome)))
        return
    middle = len(lines) // 2
    for half in (lines[:middle], lines[middle:]):
        part = msgspec.structs.replace(write, body=b"\n".join(half))
        outcome = await outcome_of(upstream, part)
        if outcome.status == STORED:
            division.is_stored = True
        elif outcome.status in REJECTED or is_failure(outcome):
            await _divide(upstream, part, outcome, division)
        else:
            raise UpstreamBusyError(f"The portal can't store a part of a write now: {outcome}.")


async def outcome_of(upstream: Upstream, write: RelayedWrite) -> RelayedOutcome:
    """Send one write, for which nobody waits; a request that fails as a whole is its outcome.

    Raises:
        UpstreamAwayError: the portal does not answer.
        UpstreamRefusedError: it does not accept the relay's token.
    """
    try:
        [outcome] = await upstream.samples([write], is_patient=True)
    except UpstreamFailedError as error:
        return RelayedOutcome(status=FAILED, body=error.message.encode())
    return outcome


def is_failure(outcome: RelayedOutcome) -> bool:
    """Return whether the portal failed on a write, perhaps because of what it has."""
    return outcome.status >= FAILED and outcome.status not in NOT_NOW


def reason_of(outcome: RelayedOutcome) -> str:
    """Return why a write was not stored, for people."""
    if outcome.status == TOO_LARGE:
        return "status 413: too large for the portal or its proxy"
    text = outcome.body[:_MAX_REASON_CHARACTERS].decode(errors="replace")
    return f"status {outcome.status}: {text}"
