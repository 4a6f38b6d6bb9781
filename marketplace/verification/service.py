"""The verification of appliances: checks of inventories, answers to challenges, states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from marketplace.emails import email_admins
from marketplace.verification.answer_checks import slowed
from marketplace.verification.findings import (
    Finding,
    failure,
    failures,
    loaded,
    merged,
    note,
    reason_of,
    stored,
)
from marketplace.verification.identities import shared_findings, store_identities
from marketplace.verification.inventory_checks import NVIDIA_PREFIX, inventory_findings
from marketplace.verification.orders import (
    ANSWER_WITHIN,
    LONGEST_SHARE,
    RETRY_AFTER,
    Policy,
)
from marketplace.verification.states import Facts, next_state
from protocol.challenges import ChallengeOrder, ChallengeResult
from protocol.inventory import Inventory
from tenants.fleet.agents import lock_appliance
from tenants.fleet.appliances import bump_generation, read_inventory
from tenants.fleet.events import EventKind, add_event
from tenants.fleet.states import in_service
from tenants.models import (
    Appliance,
    ApplianceState,
    Challenge,
    ChallengeOutcome,
    Verification,
    VerificationState,
)
from tenants.models.verification import MAX_REASON_LENGTH

CHECK_EVERY = timedelta(hours=1)
MAX_CHECKS = 20
# Until the samples of the challenge have arrived.
EVALUATE_AFTER = timedelta(seconds=45)
MAX_ANSWERS = 5
# Challenges in a row without an answer, until the appliance fails.
MAX_UNANSWERED = 3
ANSWERED = (ChallengeOutcome.PASSED, ChallengeOutcome.FAILED)
_WAITS = {
    VerificationState.UNVERIFIED: "Its agent can't run challenges: update it.",
    VerificationState.PENDING: "Its challenge waits until it is online without jobs.",
    VerificationState.PASSED: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A challenge that was answered and is to be checked, with what that needs."""

    challenge_id: str
    appliance_id: str
    tenant_id: str
    order: ChallengeOrder
    result: ChallengeResult
    inventory: Inventory
    ordered_at: datetime
    answered_at: datetime


def check_due(session: Session, policy: Policy, *, now: datetime) -> int:
    """Check the inventories that were not checked for an hour; return how many."""
    due = (
        select(Verification.appliance_id)
        .join(Appliance, Appliance.id == Verification.appliance_id)
        .where(
            in_service(),
            or_(Verification.checked_at.is_(None), Verification.checked_at < now - CHECK_EVERY),
        )
        .order_by(Verification.checked_at)
        .limit(MAX_CHECKS)
    )
    idents = session.scalars(due).all()
    for ident in idents:
        check(session, ident, policy, now=now)
    return len(idents)


def check(session: Session, appliance_id: str, policy: Policy, *, now: datetime) -> Verification:
    """Check an appliance's inventory, and set the state that follows."""
    appliance = lock_appliance(session, appliance_id)
    row = session.get_one(Verification, appliance_id, populate_existing=True)
    inventory = read_inventory(appliance)
    store_identities(session, appliance_id, inventory, now=now)
    findings = inventory_findings(inventory, accepts_simulated=policy.accepts_simulated)
    findings += shared_findings(session, appliance)
    if row.unanswered >= MAX_UNANSWERED:
        findings.append(_unanswered(session, row))
    answered = _answered(session, row, inventory, policy, now=now)
    facts = Facts(
        findings=findings,
        answered=answered,
        can_challenge=inventory.can_challenge,
        is_open=open_challenge(session, appliance_id) is not None,
    )
    if answered is None and inventory.can_challenge and not facts.is_open and not row.unanswered:
        row.next_at = min(row.next_at, now)
    row.findings = stored(merged([*findings, *(answered or ())]))
    row.checked_at = now
    _set_state(session, appliance, row, next_state(facts), policy, now=now)
    return row


def open_challenge(session: Session, appliance_id: str) -> Challenge | None:
    """Return the challenge that is ordered, or whose answer is to be checked."""
    ordered = select(Challenge).where(
        Challenge.appliance_id == appliance_id, Challenge.outcome == ChallengeOutcome.OPEN
    )
    return session.scalars(ordered.limit(1)).one_or_none()


def give_up_due(session: Session, policy: Policy, *, now: datetime) -> int:
    """Give up challenges that were not answered in time; return how many."""
    late = select(Challenge).where(
        Challenge.outcome == ChallengeOutcome.OPEN,
        Challenge.answered_at.is_(None),
        Challenge.ordered_at < now - ANSWER_WITHIN,
    )
    challenges = session.scalars(late).all()
    for challenge in challenges:
        problem = "The agent did not answer in time."
        _end_unanswered(session, challenge, problem, policy, now=now)
    return len(challenges)


def answers_to_check(session: Session, *, now: datetime) -> list[Answer]:
    """Return answered challenges whose samples have arrived."""
    answered = (
        select(Challenge)
        .where(
            Challenge.outcome == ChallengeOutcome.OPEN,
            Challenge.answered_at <= now - EVALUATE_AFTER,
        )
        .order_by(Challenge.answered_at)
        .limit(MAX_ANSWERS)
    )
    answers = []
    for row in session.scalars(answered):
        appliance = session.get_one(Appliance, row.appliance_id)
        if row.answered_at is None or row.result is None:
            continue
        answers.append(
            Answer(
                challenge_id=row.id,
                appliance_id=row.appliance_id,
                tenant_id=row.tenant_id,
                order=msgspec.convert(row.spec, ChallengeOrder),
                result=msgspec.convert(row.result, ChallengeResult),
                inventory=read_inventory(appliance),
                ordered_at=row.ordered_at,
                answered_at=row.answered_at,
            )
        )
    return answers


def settle_answer(
    session: Session,
    answer: Answer,
    findings: Sequence[Finding],
    policy: Policy,
    *,
    now: datetime,
) -> ChallengeOutcome:
    """End an answered challenge by what was found, and set the state that follows."""
    appliance = lock_appliance(session, answer.appliance_id)
    challenge = session.get_one(Challenge, answer.challenge_id, populate_existing=True)
    if challenge.outcome is not ChallengeOutcome.OPEN:
        return challenge.outcome
    row = session.get_one(Verification, appliance.id, populate_existing=True)
    if answer.result.is_interrupted:
        challenge.outcome, challenge.ended_at = ChallengeOutcome.INTERRUPTED, now
        row.next_at = now + RETRY_AFTER
        check(session, appliance.id, policy, now=now)
    elif answer.result.answer is None:
        _end_unanswered(session, challenge, answer.result.problem, policy, now=now)
    else:
        row.unanswered = 0
        has_failed = bool(failures(findings))
        challenge.outcome = ChallengeOutcome.FAILED if has_failed else ChallengeOutcome.PASSED
        challenge.ended_at, challenge.findings = now, stored(merged(findings))
        check(session, appliance.id, policy, now=now)
    return challenge.outcome


def slowed_together(
    session: Session, answer: Answer
) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Return the partners that were slow at the same time as an appliance, with its slow GPUs.

    Both must be slower than they were before: a GPU that is slow alone has another cause.
    """
    challenge = session.get_one(Challenge, answer.challenge_id)
    own = answer.result.answer and slowed(
        answer.result.answer, _best_speeds(session, answer.appliance_id, challenge.number)
    )
    if not own:
        return []
    slow = []
    partners = select(Challenge).where(
        Challenge.appliance_id.in_(challenge.partners),
        Challenge.ordered_at == challenge.ordered_at,
        Challenge.answered_at.is_not(None),
    )
    for partner in session.scalars(partners):
        result = msgspec.convert(partner.result, ChallengeResult)
        best = _best_speeds(session, partner.appliance_id, partner.number)
        if result.answer is not None and slowed(result.answer, best):
            appliance = session.get_one(Appliance, partner.appliance_id)
            is_own = appliance.tenant_id == answer.tenant_id
            slow.append((appliance.name if is_own else "an appliance of another tenant", own))
    return slow


def _best_speeds(session: Session, appliance_id: str, number: int) -> Mapping[str, float]:
    """Return how fast each GPU's memory was in the last challenges that passed, at best."""
    passed = (
        select(Challenge.result)
        .where(
            Challenge.appliance_id == appliance_id,
            Challenge.number < number,
            Challenge.outcome == ChallengeOutcome.PASSED,
        )
        .order_by(Challenge.number.desc())
        .limit(10)
    )
    best: dict[str, float] = {}
    for stored_result in session.scalars(passed):
        answer = msgspec.convert(stored_result, ChallengeResult).answer
        for device in answer.devices if answer is not None else ():
            if device.read_bytes_per_second > best.get(device.uuid, 0.0):
                best[device.uuid] = device.read_bytes_per_second
    return best


def _answered(
    session: Session, row: Verification, inventory: Inventory, policy: Policy, *, now: datetime
) -> list[Finding] | None:
    """Return what was found in the last answer; None if it is old, or other GPUs are there now."""
    answered = select(Challenge).where(
        Challenge.appliance_id == row.appliance_id, Challenge.outcome.in_(ANSWERED)
    )
    last = session.scalars(answered.order_by(Challenge.number.desc()).limit(1)).one_or_none()
    if last is None or last.ended_at is None:
        return None
    if last.ended_at < now - (1 + LONGEST_SHARE) * policy.interval:
        return None
    challenged = set(msgspec.convert(last.spec, ChallengeOrder).gpu_uuids)
    current = {gpu.uuid for gpu in inventory.gpus if gpu.uuid.startswith(NVIDIA_PREFIX)}
    cut = {gpu.uuid for gpu in inventory.gpus if gpu.is_mig_enabled}
    if not current - cut <= challenged:
        return None
    others = len(inventory.gpus) - len(current - cut)
    rest = f"{others} GPUs were checked by the inventory alone: AMD's, or cut by MIG."
    unchallenged = [note("not_challenged", rest)] if others else []
    return loaded(last.findings) + unchallenged


def _end_unanswered(
    session: Session, challenge: Challenge, problem: str, policy: Policy, *, now: datetime
) -> None:
    row = session.get_one(Verification, challenge.appliance_id)
    appliance = session.get_one(Appliance, challenge.appliance_id)
    challenge.outcome, challenge.ended_at = ChallengeOutcome.UNANSWERED, now
    challenge.findings = stored([note("no_answer", problem or "The challenge gave no answer.")])
    # An appliance that is away is measured by its availability.
    if appliance.state is ApplianceState.ONLINE:
        row.unanswered += 1
    row.next_at = now + RETRY_AFTER * 2 ** min(row.unanswered, 6)
    session.flush()
    bump_generation(session, challenge.appliance_id)
    check(session, challenge.appliance_id, policy, now=now)


def _unanswered(session: Session, row: Verification) -> Finding:
    last = session.scalars(
        select(Challenge)
        .where(
            Challenge.appliance_id == row.appliance_id,
            Challenge.outcome == ChallengeOutcome.UNANSWERED,
        )
        .order_by(Challenge.number.desc())
        .limit(1)
    ).one_or_none()
    problem = loaded(last.findings)[0].text if last is not None and last.findings else ""
    return failure(
        "no_answer",
        f"{row.unanswered} challenges in a row gave no answer. The last: {problem}",
        "See the agent's log for `challenge`, and check that containers with GPUs start.",
        problem=problem,
    )


def _set_state(
    session: Session,
    appliance: Appliance,
    row: Verification,
    state: VerificationState,
    policy: Policy,
    *,
    now: datetime,
) -> None:
    """Set the state with its reason; a change is an event, and a failure an email, too."""
    former, former_reason = row.state, row.reason
    findings = loaded(row.findings)
    reason = reason_of(findings) if failures(findings) else _WAITS[state]
    if state is VerificationState.PENDING and failures(findings):
        reason = f"It is challenged again. Before: {reason}"
    row.state = state
    row.reason = reason[:MAX_REASON_LENGTH]
    if state is not former:
        row.since = now
        texts = {
            VerificationState.PASSED: "It passed its verification.",
            VerificationState.FAILED: f"It failed its verification: {row.reason}",
        }
        message = texts.get(state, f"Verification: {row.reason}")
        add_event(session, appliance, EventKind.VERIFICATION, message, now=now)
    if state is VerificationState.FAILED and row.reason not in former_reason:
        advice = " ".join(dict.fromkeys(finding.advice for finding in failures(findings)))
        email_admins(
            session,
            appliance.tenant_id,
            subject=f"{appliance.name} failed its verification",
            text=f"{appliance.name} is not on offer: {row.reason} {advice}".strip(),
            link=policy.mail_url and f"{policy.mail_url}/provider/checks/{appliance.id}",
            now=now,
        )
    session.flush()
