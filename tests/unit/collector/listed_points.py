"""Lists of access points as the portal sends them."""

import msgspec

from collector.sending.access_points import AccessPoints
from protocol.access_points import AccessPointAddress, AccessPointList


def listed(weights: dict[str, int], *, revision: str = "") -> AccessPointList:
    points = [AccessPointAddress(url=url, weight=weight) for url, weight in weights.items()]
    return AccessPointList(revision=revision or f"r{hash(tuple(weights.items()))}", points=points)


def accept(points: AccessPoints, weights: dict[str, int]) -> None:
    points.accept(msgspec.json.encode(listed(weights)))
