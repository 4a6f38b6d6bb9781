"""The wheelhouse: the packages of the agent, in a folder that the portal serves to appliances.

`vedette wheelhouse build` makes it; the portal never fetches packages. The folder has wheels, the
file `requirements.txt` with the SHA-256 of each, and `wheelhouse.json`, which is written last.
"""

from pathlib import Path

import msgspec

from core.settings import ServerSettings
from tenants.fleet.rollouts import AgentPackages

INDEX_NAME = "wheelhouse.json"
REQUIREMENTS_NAME = "requirements.txt"
BUILD_COMMAND = "vedette wheelhouse build"


class Wheelhouse(msgspec.Struct, frozen=True, kw_only=True):
    """What a wheelhouse contains.

    Attributes:
        version: of Vedette.
        pythons: the versions of Python that it has wheels for, such as "3.12", the oldest first.
        machines: their architectures, as `uname -m` prints them.
        requirements_sha256: of `requirements.txt`, which has the hashes of all wheels.
    """

    version: str
    pythons: list[str]
    machines: list[str]
    requirements_sha256: str


def wheelhouse_dir(settings: ServerSettings) -> Path:
    """Return the folder of the wheelhouse."""
    return settings.data_dir / "wheelhouse"


def read_wheelhouse(settings: ServerSettings) -> Wheelhouse | None:
    """Return what the wheelhouse contains; None if there is none, or one that can't be read."""
    try:
        content = (wheelhouse_dir(settings) / INDEX_NAME).read_bytes()
        return msgspec.json.decode(content, type=Wheelhouse)
    except (OSError, msgspec.MsgspecError):
        return None


def agent_packages(settings: ServerSettings) -> AgentPackages | None:
    """Return what agents are updated to; None without a wheelhouse."""
    contents = read_wheelhouse(settings)
    if contents is None:
        return None
    return AgentPackages(contents.version, contents.requirements_sha256)


def wheel_names(settings: ServerSettings) -> list[str]:
    """Return the names of the wheels."""
    return sorted(path.name for path in wheelhouse_dir(settings).glob("*.whl"))
