"""Names of images as container engines take them: `registry:5000/team/app:1.2@sha256:...`.

Source: https://github.com/distribution/reference, its grammar and `splitDockerDomain`.
"""

import re
from ipaddress import AddressValueError, IPv6Address

MAX_IMAGE_LENGTH = 300
MAX_PORT = 65535
_PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
_REPOSITORY = re.compile(_PATH)
_NAME = re.compile(
    r"(?:(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])"
    r"(?::(?P<port>\d{1,5}))?/)?"
    rf"{_PATH}"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def is_image_name(text: str) -> bool:
    """Return whether an engine can pull an image of this name."""
    match = _NAME.fullmatch(text) if len(text) <= MAX_IMAGE_LENGTH else None
    if match is None or int(match["port"] or 1) not in range(1, MAX_PORT + 1):
        return False
    if match["ipv6"]:
        return _is_ipv6(match["ipv6"])
    # Without a dot and a port it is no host, but the first part of a path on Docker Hub.
    host = match["host"] or ""
    return bool(match["port"]) or "." in host or host == host.lower()


def is_repository_name(text: str) -> bool:
    """Return whether a registry can have a repository of this name, such as `acme/train`.

    Of a name such as `acme/../globex/x`, token server and registry could think differently.
    """
    return len(text) <= MAX_IMAGE_LENGTH and _REPOSITORY.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True
