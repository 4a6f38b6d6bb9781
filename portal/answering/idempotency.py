"""Idempotency keys: a creation that is sent twice happens once.

Who creates something sends a header `Idempotency-Key` of their own choice. The first request with
a key is done, and its answer kept, encrypted, for a day; the same request with the same key gets
that answer again. A row of the database stands for the key from before the work until after it:
of several requests at once, one gets the row. What fails leaves no row, and may be sent again.

The transaction that creates the object marks the row too. A row is thus *claimed* (nothing is
created yet), *done* (it is, and the answer is on its way) or *answered*. Where the portal dies, a
claim may be taken over after a minute, for nothing was created; the mark of whoever held it before
then fails, and so does their transaction. What is done without an answer is never done again.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from http import HTTPStatus
from typing import Any

from flask import Response, make_response, request
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from core.db import transaction
from core.errors import ConflictError, InvalidInputError
from portal.answering.etags import before_change, forget_before_change
from portal.context import current_scope, now, portal
from tenants.models import IdempotencyKey

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
KEPT = timedelta(hours=24)
# No request takes as long as this: who claimed a key before has died.
IN_FLIGHT = timedelta(minutes=1)
MAX_KEY_LENGTH = 255
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_LENGTH}}}")
# A row may be gone, or given up in a deadlock, between two looks at it.
_LOOKS = 5


class KeyReusedError(InvalidInputError):
    """The key stands for another request."""

    default_code = "idempotency_key_reused"


class KeyInFlightError(ConflictError):
    """The first request with the key has not ended."""

    default_code = "idempotency_key_in_flight"


class AnswerLostError(ConflictError):
    """The first request with the key was done, and its answer is lost."""

    default_code = "idempotency_answer_lost"


def idempotent(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view that does the same request with the same key once."""

    @wraps(view)
    def once(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return view(*args, **kwargs)
        found = _claim(_checked(key), _hash_of_request())
        if found.answer is not None:
            return _replay(found)
        before_change(partial(_mark, found))
        try:
            response: Response = make_response(view(*args, **kwargs))
        except Exception:
            _forget_claim(found)
            raise
        finally:
            forget_before_change()
        _keep(found, response)
        return response

    return once


def _checked(key: str) -> str:
    if _KEY.fullmatch(key):
        return key
    fault = f"An {KEY_HEADER} has 1 to {MAX_KEY_LENGTH} visible ASCII characters."
    raise InvalidInputError(fault, errors={KEY_HEADER: [fault]})


def _hash_of_request() -> str:
    """Return what tells this request from others: where, in which tenant, and the body."""
    where = f"{request.method} {request.full_path} {current_scope().tenant_id}"
    return hashlib.sha256(where.encode() + b"\n" + request.get_data()).hexdigest()


def _claim(key: str, request_hash: str) -> IdempotencyKey:
    """Return the row of this request: its own, claimed, or the one that has its answer."""
    for _ in range(_LOOKS):
        made = _insert(key, request_hash)
        if made is not None:
            return made
        found = _find(key)
        if found is None:
            continue
        if found.created_at <= now() - KEPT:
            _forget(found)
            continue
        if found.request_hash != request_hash:
            raise KeyReusedError(
                f"The {KEY_HEADER} {key!r} stands for another request. Choose another key."
            )
        if found.answer is not None:
            return found
        if found.created_at > now() - IN_FLIGHT:
            break
        if found.status is not None:
            raise _lost(key)
        taken = _take_over(found)
        if taken is not None:
            return taken
    raise KeyInFlightError(
        f"The first request with the {KEY_HEADER} {key!r} has not ended. Ask again in a moment."
    )


def _lost(key: str) -> AnswerLostError:
    return AnswerLostError(
        f"The first request with the {KEY_HEADER} {key!r} created what it asked for, but its "
        "answer was lost. Look for the object in its list; to create another, choose another key."
    )


def _insert(key: str, request_hash: str) -> IdempotencyKey | None:
    row = IdempotencyKey(
        user_id=current_scope().user_id, key=key, request_hash=request_hash, created_at=now()
    )
    try:
        with transaction(portal().sessions) as session:
            session.add(row)
    except (IntegrityError, OperationalError):
        return None
    return row


def _find(key: str) -> IdempotencyKey | None:
    statement = select(IdempotencyKey).where(
        IdempotencyKey.user_id == current_scope().user_id, IdempotencyKey.key == key
    )
    with transaction(portal().sessions) as session:
        return session.scalar(statement)


def _take_over(row: IdempotencyKey) -> IdempotencyKey | None:
    """Claim the row of somebody who died; None where another was first, or it is done by now."""
    claimed_at = now()
    with transaction(portal().sessions) as session:
        taken: Any = session.execute(
            update(IdempotencyKey).where(*_is_claimed(row)).values(created_at=claimed_at)
        )
        if not taken.rowcount:
            return None
        return session.get_one(IdempotencyKey, row.id)


def _mark(row: IdempotencyKey, session: Session) -> None:
    """Note in the transaction that creates the object that it is done."""
    marked: Any = session.execute(
        update(IdempotencyKey)
        .where(*_is_claimed(row))
        .values(status=HTTPStatus.CREATED)
        .execution_options(synchronize_session=False)
    )
    if not marked.rowcount:
        raise KeyInFlightError(
            f"Another request took over the {KEY_HEADER} {row.key!r}, because this one took more "
            "than a minute. Nothing was created here; ask again in a moment."
        )


def _is_claimed(row: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
    return (
        IdempotencyKey.id == row.id,
        IdempotencyKey.created_at == row.created_at,
        IdempotencyKey.status.is_(None),
    )


def _forget(row: IdempotencyKey) -> None:
    with transaction(portal().sessions) as session:
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.id == row.id))


def _forget_claim(row: IdempotencyKey) -> None:
    """Forget a claim of which nothing came; what was done before the failure stays done."""
    with transaction(portal().sessions) as session:
        session.execute(delete(IdempotencyKey).where(*_is_claimed(row)))


def _keep(row: IdempotencyKey, response: Response) -> None:
    # Some answers hold a secret that is shown only once.
    answer = portal().secrets.encrypt(response.get_data(as_text=True))
    with transaction(portal().sessions) as session:
        session.execute(
            update(IdempotencyKey)
            .where(IdempotencyKey.id == row.id)
            .values(status=response.status_code, answer=answer)
        )


def _replay(row: IdempotencyKey) -> Response:
    answer = portal().secrets.decrypt(row.answer or "")
    response = Response(answer, row.status or HTTPStatus.OK, mimetype="application/json")
    response.headers[REPLAYED_HEADER] = "true"
    return response
