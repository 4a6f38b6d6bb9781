"""`[network]` of `agent.toml`: how other appliances reach this one."""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from core.config import check_config


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """The settings of gangs' networks.

    Attributes:
        enabled: whether this agent makes networks.
        address: IPv4 address of this host for other appliances of its site; by default the one from
            which it reaches the portal.
        public_address: likewise, for appliances of other sites.
    """

    enabled: bool = True
    address: str = ""
    public_address: str = ""


def check_network(table: object) -> tuple[NetworkSettings | None, list[str]]:
    """Return the settings of `[network]` and all their errors."""
    if not isinstance(table, Mapping):
        return None, [f"network = {table!r}: expected a table [network]"]
    settings, errors = check_config(NetworkSettings, table, prefix="network.")
    for name in ("address", "public_address"):
        value = str(table.get(name, ""))
        if value and not _is_address(value):
            errors.append(f"network.{name} = {value!r}: enter an IPv4 address, such as 192.0.2.10")
    return settings, errors


def _is_address(text: str) -> bool:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)
