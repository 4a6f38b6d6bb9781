"""Root's commands on a server's data: its files must remain those of the user that it runs as."""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def act_as_owner(folder: Path) -> None:
    """Let a command of root run as the owner of a data folder from now on."""
    if os.geteuid() != 0 or not folder.exists():
        return
    owner = folder.stat().st_uid
    if owner == 0:
        return
    try:
        account = pwd.getpwuid(owner)
    except KeyError:  # as in containers
        os.setgroups([])
        os.setgid(folder.stat().st_gid)
    else:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
    os.setuid(owner)


@contextmanager
def acting_as(account: pwd.struct_passwd | None) -> Iterator[None]:
    """Let root act as another user in the block; None is no other."""
    if account is None:
        yield
        return
    groups = os.getgroups()
    os.initgroups(account.pw_name, account.pw_gid)
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
