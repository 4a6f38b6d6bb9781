"""What the parts of a server share."""

from dataclasses import dataclass

from core.db import SessionFactory
from core.settings import ServerSettings
from tenants.users.sightings import Sightings
from timeseries.store import Store


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts that portal, agent API and scheduler share."""

    settings: ServerSettings
    sessions: SessionFactory
    store: Store
    sightings: Sightings
