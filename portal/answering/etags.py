"""ETags: what an object was when somebody read it, so that nobody overwrites what they never saw.

A GET of one object answers with an `ETag`. A change that names it in `If-Match` is refused by 412
where the object is another by now; the row is locked from that check until the change is done.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from functools import wraps
from http import HTTPStatus
from typing import Any

from flask import Response, g, make_response, request
from sqlalchemy import update
from sqlalchemy.orm import Session

from core.errors import VedetteError

View = Callable[..., Any]


class OutdatedError(VedetteError):
    """The object is another than the one that was read."""

    status = 412
    default_code = "outdated"


def answering_etag(view: View, *, volatile: Collection[str] = ()) -> View:
    """Return a view of one object that answers with its ETag.

    Args:
        view: answers with the object.
        volatile: fields that the ETag says nothing about, since they change all the time. With
            any, the object is sent in full whatever the reader has.
    """

    @wraps(view)
    def answer(*args: Any, **kwargs: Any) -> Response:  # noqa: ANN401 - a view's own
        response = make_response(view(*args, **kwargs))
        if response.status_code < HTTPStatus.MULTIPLE_CHOICES and response.is_json:
            response.set_etag(_etag_of(response, volatile))
            if request.method == "GET" and not volatile:
                response.make_conditional(request)
        return response

    return answer


def heeding_if_match(view: View, *, show: View, model: Any) -> View:  # noqa: ANN401 - any model
    """Return a view of a change that is refused where `If-Match` names another state.

    Args:
        view: changes or deletes the object.
        show: called with the view's arguments, answers with the object and its ETag.
        model: the table whose row is the object; its id is the view's argument `<object>_id`.
    """

    @wraps(view)
    def change(**kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        if request.if_match and not request.if_match.star_tag:
            (ident,) = (value for name, value in kwargs.items() if name.endswith("_id"))

            def check(session: Session) -> None:
                # Touching the row locks it on every database, until the change is committed.
                session.execute(
                    update(model)
                    .where(model.id == ident)
                    .values(id=ident)
                    .execution_options(synchronize_session=False)
                )
                _refuse_other(show(**kwargs))

            before_change(check)
        return view(**kwargs)

    return change


def before_change(check: Callable[[Session], None]) -> None:
    """Have this checked at the start of the next transaction of the request."""
    g.before_change = check


def check_before_change(session: Session) -> None:
    """Check what the request asked to be so, once, in the transaction that changes it."""
    check = g.pop("before_change", None)
    if check is not None:
        check(session)


def forget_before_change() -> None:
    """Check nothing any more: the request ended without the change."""
    g.pop("before_change", None)


def _refuse_other(shown: Response) -> None:
    etag, _ = shown.get_etag()
    if etag is None or not request.if_match.contains(etag):
        raise OutdatedError(
            "Somebody has changed this since you read it. Read it again, and change what it is "
            "now; or leave 'If-Match' out."
        )


def _etag_of(response: Response, volatile: Collection[str]) -> str:
    shown = response.get_json()
    kept = {name: value for name, value in shown.items() if name not in volatile}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
