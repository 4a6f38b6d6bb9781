"""Calls of services by API operations and pages that do nothing else.

Services are called alike: with the session, the scope and what the request asks for; filters of a
list are keywords. Of the clock's time, the secret box, the currency, the portal's addresses and
the support desk, each gets those that it has a parameter for.
"""

from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from typing import Any

from sqlalchemy.orm import Session

from portal.context import current_scope, mail_url, now, portal, public_url
from portal.presenters.tickets import desk

Service = Callable[..., Any]
_SUPPLIED: Mapping[str, Callable[[], object]] = {
    "now": now,
    "box": lambda: portal().secrets,
    "public_url": public_url,
    "mail_url": mail_url,
    "currency": lambda: portal().settings.billing_currency,
    "desk": desk,
}


def call(service: Service, session: Session, *arguments: object, **filters: object) -> Any:  # noqa: ANN401 - a service's own
    """Return the result of a service."""
    supplied = {name: _SUPPLIED[name]() for name in _supplied_names(service)}
    return service(session, current_scope(), *arguments, **supplied, **filters)


@cache
def _supplied_names(service: Service) -> frozenset[str]:
    return frozenset(_SUPPLIED.keys() & signature(service).parameters.keys())
