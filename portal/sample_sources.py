"""The samples that a query in PromQL or InfluxQL reads: those of its tenant, a few at a time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import OverloadedError
from portal.context import current_scope, database, portal
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission
from timeseries.promql.selection import Source
from timeseries.sample_query import MAX_SECONDS

WAIT_SECONDS = 5.0
"""How long a query waits for the tenant's others: a dashboard sends many at the same time."""


@contextmanager
def admitted_source(*, max_seconds: float = MAX_SECONDS) -> Iterator[Source]:
    """Give the samples of the current tenant, of whose queries few run at the same time.

    Args:
        max_seconds: how long the query may take, with the time that it waits for others.

    Raises:
        OverloadedError: the others take long.
    """
    scope = current_scope()
    scope.require(Permission.VIEW)
    started = time.monotonic()
    running = portal().queries.running(scope.tenant_id or "", wait_seconds=WAIT_SECONDS)
    with running as is_admitted:
        if not is_admitted:
            raise OverloadedError(
                f"The tenant runs {portal().queries.max_running} queries at a time, and the others "
                "take long. Send this one again in a moment.",
                retry_after_seconds=5,
            )
        left = min(max_seconds, MAX_SECONDS) - (time.monotonic() - started)
        with database() as session:
            names = appliance_names(session, scope.tenants)
        yield Source(portal().store, scope.tenants, names=names, max_seconds=max(0.0, left))
