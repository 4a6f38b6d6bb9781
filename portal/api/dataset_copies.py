"""`/datasets/ID/copies` and `/prefetches`: where datasets are, and should be, cached."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from datasets.models import DatasetPrefetch
from datasets.prefetches import (
    COPY_SORTS,
    PREFETCH_SORTS,
    PrefetchRequest,
    create_prefetch,
    delete_prefetch,
    get_prefetch,
    list_copies,
    list_prefetches,
    version_numbers,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query
from portal.api.spec_schemas import request_schema
from portal.context import current_scope, database, now
from protocol.datasets import CopyState
from tenants.permissions import Permission

dataset_copies = APIBlueprint(
    "Dataset copies",
    "/datasets",
    "In which appliances' caches datasets are, and should be ahead of jobs.",
    changes=Permission.EDIT_DATASETS,
)


class PrefetchRequestSchema(request_schema(PrefetchRequest)):  # type: ignore[misc] # a class made at run time
    """An order to fetch a dataset ahead of jobs."""


class PrefetchSchema(Schema):
    """An order to have a dataset on appliances, which those that come later follow, too."""

    id = fields.String()
    dataset_id = fields.String()
    version = fields.Integer(allow_none=True, **about("Its number; null is the newest one."))
    appliance_id = fields.String(allow_none=True, **about("Null for all that have the labels."))
    appliance_name = fields.String(attribute="appliance.name")
    labels = fields.Dict(keys=fields.String(), values=fields.String())
    is_pinned = fields.Boolean(**about("Whether it is never evicted."))
    schedule = fields.String()
    time_zone = fields.String()
    next_run_at = instant()
    created_at = instant()


class CopySchema(Schema):
    """A version in the cache of an appliance, as its agent reported it last."""

    version = fields.Integer(attribute="number")
    version_id = fields.String()
    appliance_id = fields.String()
    appliance_name = fields.String()
    state = fields.Enum(CopyState, by_value=True, attribute="copy.state")
    cached_bytes = fields.Integer(attribute="copy.cached_bytes")
    total_bytes = fields.Integer()
    fetched_bytes = fields.Integer(
        attribute="copy.fetched_bytes", **about("What came over the line since the agent started.")
    )
    peer_bytes = fields.Integer(
        attribute="copy.peer_bytes", **about("Of these, from other appliances.")
    )
    message = fields.String(attribute="copy.message")
    last_used_at = instant(attribute="copy.last_used_at")
    reported_at = instant(attribute="copy.reported_at")


def _shown(session: Session, rows: Sequence[DatasetPrefetch]) -> list[dict[str, Any]]:
    numbers = version_numbers(session, rows)
    return [
        {name: getattr(row, name, None) for name in PrefetchSchema().fields}
        | {"version": numbers.get(row.version_id or ""), "appliance": row.appliance}
        for row in rows
    ]


objects = Objects(
    dataset_copies,
    "/<dataset_id>/prefetches/<prefetch_id>",
    read=get_prefetch,
    answer=PrefetchSchema,
    shown=_shown,
    model=DatasetPrefetch,
)
objects.lists(
    "List in which caches the versions of a dataset are.",
    list_copies,
    query=page_query(COPY_SORTS, default="appliance_name"),
    path="/<dataset_id>/copies",
    answer=CopySchema,
    name="copies",
)
objects.lists(
    "List the orders to have a dataset on appliances.",
    list_prefetches,
    query=page_query(PREFETCH_SORTS, default="created_at"),
    path="/<dataset_id>/prefetches",
    name="prefetches",
)


@dataset_copies.operation(
    "POST",
    "/<dataset_id>/prefetches",
    body=PrefetchRequestSchema,
    answer=PrefetchSchema,
    status=HTTPStatus.CREATED,
)
def prefetch(dataset_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Fetch a dataset to appliances ahead of jobs, or pin it there; pins are for admins.

    Without a schedule, the order is for one version. With one, a new version is made of a changed
    source each time, and the newest is fetched. The same order again is returned as it is.
    """
    with database() as session:
        request = PrefetchRequest(**body)
        row = create_prefetch(session, current_scope(), dataset_id, request, now=now())
        return _shown(session, [row])[0]


objects.shows("Return an order to have a dataset on appliances.", name="show_prefetch")
objects.deletes(
    "Delete an order; the copies stay until their place is needed.",
    delete_prefetch,
    name="cancel_prefetch",
)
