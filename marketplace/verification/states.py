"""The state of an appliance's verification, and where it may move. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marketplace.verification.findings import Finding, failures
from tenants.models import VerificationState

_V = VerificationState
VERIFICATION_TRANSITIONS: Mapping[VerificationState, frozenset[VerificationState]] = {
    _V.UNVERIFIED: frozenset({_V.PENDING, _V.PASSED, _V.FAILED}),
    _V.PENDING: frozenset({_V.UNVERIFIED, _V.PASSED, _V.FAILED}),
    _V.PASSED: frozenset({_V.FAILED, _V.PENDING, _V.UNVERIFIED}),
    _V.FAILED: frozenset({_V.UNVERIFIED, _V.PENDING, _V.PASSED}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the state follows from.

    Attributes:
        findings: of the inventory, now.
        answered: the findings of the last answer; None without a recent one of all GPUs.
        can_challenge: whether the agent answers challenges.
        is_open: whether a challenge is ordered.
    """

    findings: Sequence[Finding]
    answered: Sequence[Finding] | None
    can_challenge: bool
    is_open: bool


def next_state(facts: Facts) -> VerificationState:
    """Return the state that follows from the facts.

    One that has passed stays so while it is challenged again; one that failed by its answer is
    pending then, and not on offer either.
    """
    if failures(facts.findings):
        return VerificationState.FAILED
    if facts.answered is not None and not failures(facts.answered):
        return VerificationState.PASSED
    if facts.answered is not None:
        return VerificationState.PENDING if facts.is_open else VerificationState.FAILED
    return VerificationState.PENDING if facts.can_challenge else VerificationState.UNVERIFIED
