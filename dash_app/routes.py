"""Addresses of the dashboards: path to tier and back."""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

PREFIX = "/dashboards/"
NO_DASHBOARD = "There is no dashboard at this address. Check it for typos."
PLATFORM_PATH = f"{PREFIX}platform"


class Tier(StrEnum):
    """The dashboard of an address; `missing` is any other address."""

    FLEET = "fleet"
    APPLIANCE = "appliance"
    GPU = "gpu"
    JOB = "job"
    CUSTOM = "custom"
    PLATFORM = "platform"
    MISSING = "missing"


# Tiers of one object, by the first part of their path.
_TIERS = {"appliances": Tier.APPLIANCE, "jobs": Tier.JOB, "custom": Tier.CUSTOM}


@dataclass(frozen=True, slots=True)
class Route:
    """A tier, the id of its appliance, job or dashboard, and the GPU's index."""

    tier: Tier
    ident: str = ""
    gpu: str = ""


def parse_path(pathname: str | None) -> Route:
    """Return the route of a path; ids are not looked up."""
    path = (pathname or PREFIX).removeprefix(PREFIX.rstrip("/"))
    match [unquote(part) for part in path.strip("/").split("/")]:
        case [""]:
            return Route(Tier.FLEET)
        case ["platform"]:
            return Route(Tier.PLATFORM)
        case ["appliances", ident, "gpus", gpu] if ident and gpu:
            return Route(Tier.GPU, ident, gpu)
        case [folder, ident] if folder in _TIERS and ident:
            return Route(_TIERS[folder], ident)
        case _:
            return Route(Tier.MISSING)


def appliance_path(appliance_id: str) -> str:
    """Return the address of an appliance's dashboard."""
    return f"{PREFIX}appliances/{quote(appliance_id, safe='')}"


def gpu_path(appliance_id: str, gpu: str) -> str:
    """Return the address of a GPU's dashboard."""
    return f"{appliance_path(appliance_id)}/gpus/{quote(gpu, safe='')}"


def job_path(job_id: str) -> str:
    """Return the address of a job's dashboard."""
    return f"{PREFIX}jobs/{quote(job_id, safe='')}"


def custom_path(dashboard_id: str) -> str:
    """Return the address of a custom dashboard."""
    return f"{PREFIX}custom/{quote(dashboard_id, safe='')}"
