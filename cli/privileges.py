"""Root's commands on a server's data: its files must remain those of the user that it runs as."""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def acting_as_owner(folder: Path) -> Iterator[None]:
    """Let root act as the owner of a data folder in the block, if there is one."""
    if os.geteuid() != 0 or not folder.exists():
        yield
        return
    status = folder.stat()
    with acting_as(status.st_uid, status.st_gid):
        yield


@contextmanager
def acting_as(user_id: int, group_id: int) -> Iterator[None]:
    """Let root act as another user in the block."""
    if user_id == os.geteuid():
        yield
        return
    groups = os.getgroups()
    try:
        os.initgroups(pwd.getpwuid(user_id).pw_name, group_id)
    except KeyError:  # in containers, users may have no name
        os.setgroups([])
    os.setegid(group_id)
    os.seteuid(user_id)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
