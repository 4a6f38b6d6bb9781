"""Idempotency keys: a creation request that is sent twice creates one object.

Clients send a header `Idempotency-Key` with a value of their choice. The first request with a key
is processed, and its response is stored encrypted for a day; the same request with the same key
gets that response again. A database row claims the key while the request is processed, so that
only one of several concurrent requests is. Failed requests leave no row and may be sent again.

The transaction that creates the object also marks the row. A row is thus *claimed* (nothing was
created yet), *done* (the object was created, the response is not stored yet) or *answered*. If the
portal crashes, another request takes over the claim after a minute, because nothing was created;
the transaction of the previous claimant can't mark the row any more and fails. A row that is done
without an answer is never processed again.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from http import HTTPStatus
from typing import Any

from flask import Response, current_app, g, make_response, request
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one, transaction
from core.errors import ConflictError, DeadlockError, InvalidInputError
from portal.context import TRANSACTION_HOOK, current_scope, now, portal
from tenants.models import IdempotencyKey

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
KEY_LIFETIME = timedelta(hours=24)
# No request takes this long: the claimant has crashed.
CLAIM_TIMEOUT = timedelta(minutes=1)
MAX_KEY_LENGTH = 255
_KEY = re.compile(rf"[!-~]{{1,{MAX_KEY_LENGTH}}}")
# A row may disappear between two reads, or be rolled back in a deadlock.
_CLAIM_ATTEMPTS = 5


class KeyReusedError(InvalidInputError):
    """The key belongs to another request."""

    default_code = "idempotency_key_reused"


class KeyInFlightError(ConflictError):
    """The first request with the key is still processed."""

    default_code = "idempotency_key_in_flight"


class AnswerLostError(ConflictError):
    """The first request with the key created its object, but the response is lost."""

    default_code = "idempotency_answer_lost"


def idempotent(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view that processes a request with a key once."""

    @wraps(view)
    def once(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return view(*args, **kwargs)
        if not _KEY.fullmatch(key):
            message = f"{KEY_HEADER} must be 1 to {MAX_KEY_LENGTH} visible ASCII characters."
            raise InvalidInputError(message, errors={KEY_HEADER: [message]})
        head = f"{request.method} {request.full_path} {current_scope().tenant_id}"
        row = _claim(key, _request_hash(head.encode() + b"\n" + request.get_data()))
        if row.answer is not None:
            return _replay(row)
        setattr(g, TRANSACTION_HOOK, partial(_mark_done, row))
        try:
            response: Response = make_response(view(*args, **kwargs))
        except Exception:
            # Changes from before the failure remain.
            _delete_if(*_is_claimed(row))
            raise
        finally:
            g.pop(TRANSACTION_HOOK, None)
        _store(row, response)
        return response

    return once


def _request_hash(text: bytes) -> str:
    """Return a keyed hash: from a plain one, a secret in the request could be guessed."""
    return hmac.new(str(current_app.secret_key).encode(), text, hashlib.sha256).hexdigest()


def _claim(key: str, request_hash: str) -> IdempotencyKey:
    """Return the row of this request: a new claim, or the row with its answer."""
    for _ in range(_CLAIM_ATTEMPTS):
        created = _insert(key, request_hash)
        if created is not None:
            return created
        row = _find(key)
        if row is None:
            continue
        if row.created_at <= now() - KEY_LIFETIME:
            _delete_if(IdempotencyKey.id == row.id)
            continue
        if row.request_hash != request_hash:
            raise KeyReusedError(
                f"The {KEY_HEADER} {key!r} was used for another request. Use a new key."
            )
        if row.answer is not None:
            return row
        if row.created_at > now() - CLAIM_TIMEOUT:
            break
        if row.status is not None:
            raise AnswerLostError(
                f"The first request with the {KEY_HEADER} {key!r} created its object, but the "
                "response was lost. Find the object in its list, or use a new key to create "
                "another."
            )
        taken = _take_over(row)
        if taken is not None:
            return taken
    raise KeyInFlightError(
        f"The first request with the {KEY_HEADER} {key!r} is still being processed. Try again in "
        "a moment."
    )


def _insert(key: str, request_hash: str) -> IdempotencyKey | None:
    row = IdempotencyKey(
        user_id=current_scope().user_id, key=key, request_hash=request_hash, created_at=now()
    )
    try:
        with transaction(portal().sessions) as session:
            session.add(row)
    except (IntegrityError, DeadlockError):
        return None
    return row


def _find(key: str) -> IdempotencyKey | None:
    statement = select(IdempotencyKey).where(
        IdempotencyKey.user_id == current_scope().user_id, IdempotencyKey.key == key
    )
    with transaction(portal().sessions) as session:
        return session.scalar(statement)


def _take_over(row: IdempotencyKey) -> IdempotencyKey | None:
    """Claim the row of a crashed request; None if another did so first, or it is done by now."""
    statement = update(IdempotencyKey).where(*_is_claimed(row)).values(created_at=now())
    with transaction(portal().sessions) as session:
        if not changed_one(session, statement):
            return None
        return session.get_one(IdempotencyKey, row.id)


def _mark_done(row: IdempotencyKey, session: Session) -> None:
    """Mark the row in the transaction that creates the object."""
    statement = update(IdempotencyKey).where(*_is_claimed(row)).values(status=HTTPStatus.CREATED)
    if not changed_one(session, statement, synchronize_session=False):
        raise KeyInFlightError(
            f"Another request took over the {KEY_HEADER} {row.key!r} because this one took more "
            "than a minute. Nothing was created; try again in a moment."
        )


def _is_claimed(row: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
    return (
        IdempotencyKey.id == row.id,
        IdempotencyKey.created_at == row.created_at,
        IdempotencyKey.status.is_(None),
    )


def _delete_if(*conditions: ColumnElement[bool]) -> None:
    with transaction(portal().sessions) as session:
        session.execute(delete(IdempotencyKey).where(*conditions))


def _store(row: IdempotencyKey, response: Response) -> None:
    # Some responses contain a secret that is shown only once.
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
