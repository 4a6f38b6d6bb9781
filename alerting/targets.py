"""Whether a webhook may be sent to where a new receiver points, before it is saved.

What is refused here would be refused at every sending; what is let through is checked again there,
for the name may lead elsewhere by then.
"""

from urllib.parse import urlsplit

from alerting.addresses import PORTS, AddressPolicy, RefusedAddressError, host_of
from alerting.states import ReceiverKind
from core.errors import InvalidInputError
from tenants.permissions import Permission
from tenants.scope import Scope


def check_target(scope: Scope, kind: ReceiverKind, target: str, *, policy: AddressPolicy) -> None:
    """Refuse a webhook into a private network; call it outside of any transaction.

    A name that has no address now, or whose address nobody tells in time, is let through. So is
    what is no web address at all: `create_receiver` says what is wrong with that.

    Raises:
        InvalidInputError: the target leads into a network that is not open.
    """
    scope.require(Permission.EDIT_ALERTS)
    if kind is not ReceiverKind.WEBHOOK:
        return
    try:
        url = urlsplit(target.strip())
        if url.scheme in PORTS and url.hostname:
            policy.addresses(host_of(url), url.port or PORTS[url.scheme])
    except RefusedAddressError as error:
        fault = (
            f"{url.hostname} leads into a private network, where this portal sends nothing. Give a "
            "public address, or ask the operator to allow the network "
            "(VEDETTE_WEBHOOK_ALLOWED_NETWORKS)."
        )
        message = f"The receiver can't be added. {fault}"
        raise InvalidInputError(message, errors={"target": [fault]}) from error
    except (OSError, ValueError):
        return
