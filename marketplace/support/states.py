"""States of a ticket, and what moves it from one to another.

The *requester* is the party that opened the ticket, the *responder* the one that it asks: the
provider of what is rented, or the operator. An operator may be called in as a third party.
"""

from enum import StrEnum

from core.errors import ConflictError


class Party(StrEnum):
    """A party of a ticket; a tenant that rents nothing is the customer of its operator."""

    CUSTOMER = "customer"
    PROVIDER = "provider"
    OPERATOR = "operator"


class Recipient(StrEnum):
    """Whom a new ticket asks."""

    PROVIDER = "provider"
    OPERATOR = "operator"


class TicketState(StrEnum):
    """Of a ticket: `open` until another party has answered for the first time; `closed` is final.

    `solved` ones are closed after two weeks, and opened again by a message until then.
    """

    OPEN = "open"
    WAITING_FOR_CUSTOMER = "waiting_for_customer"
    WAITING_FOR_PROVIDER = "waiting_for_provider"
    WAITING_FOR_OPERATOR = "waiting_for_operator"
    SOLVED = "solved"
    CLOSED = "closed"

    @property
    def is_active(self) -> bool:
        """Whether somebody is waited for."""
        return self not in {TicketState.SOLVED, TicketState.CLOSED}


class Step(StrEnum):
    """What a party, or the time, does with a ticket."""

    FOLLOW_UP = "follow_up"
    """The requester writes before the first answer, or while it is waited for anyway."""
    ANSWER = "answer"
    """A message after which a certain party is waited for."""
    SOLVE = "solve"
    REOPEN = "reopen"
    CLOSE = "close"


_S = TicketState
WAITING: dict[Party, TicketState] = {
    Party.CUSTOMER: _S.WAITING_FOR_CUSTOMER,
    Party.PROVIDER: _S.WAITING_FOR_PROVIDER,
    Party.OPERATOR: _S.WAITING_FOR_OPERATOR,
}
ACTIVE = tuple(state for state in TicketState if state.is_active)
_WAITING = frozenset(WAITING.values())
TICKET_TRANSITIONS: dict[TicketState, frozenset[TicketState]] = {
    _S.OPEN: _WAITING | {_S.SOLVED},
    **{state: (_WAITING - {state}) | {_S.SOLVED} for state in WAITING.values()},
    _S.SOLVED: _WAITING | {_S.CLOSED},
    _S.CLOSED: frozenset(),
}


def next_state(state: TicketState, step: Step, awaited: Party) -> TicketState:
    """Return the state after a step.

    Args:
        state: the state before it.
        step: what happens.
        awaited: who is waited for then, of steps after which somebody is.

    Raises:
        ConflictError: the ticket is in no state for it; the text says what to do.
    """
    if state is TicketState.CLOSED:
        raise ConflictError("The ticket is closed. Open a new one that refers to it.")
    if step is Step.FOLLOW_UP and state is TicketState.OPEN:
        return state
    if step is Step.SOLVE:
        if not state.is_active:
            raise ConflictError("The ticket is solved already.")
        return TicketState.SOLVED
    if step is Step.REOPEN and state.is_active:
        raise ConflictError(f"The ticket is {state.value.replace('_', ' ')}: it was not solved.")
    if step is Step.CLOSE:
        if state.is_active:
            raise ConflictError("The ticket is not solved. Solve it first.")
        return TicketState.CLOSED
    return WAITING[awaited]
