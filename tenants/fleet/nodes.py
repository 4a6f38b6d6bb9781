"""The nodes of clusters: appliances without an agent, which a connector reports."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.models import Appliance


def node_id_of(session: Session, connector_id: str, node_name: str) -> str | None:
    """Return the id of a cluster's node by the name that the cluster gives it.

    None if its connector has not reported it yet.
    """
    named = select(Appliance.id).where(
        Appliance.connector_id == connector_id,
        Appliance.inventory["hostname"].as_string() == node_name,
    )
    # Of rows of the same name, the one in service.
    newest = named.order_by(Appliance.retired_at.is_not(None), Appliance.id.desc())
    return session.scalars(newest.limit(1)).first()
