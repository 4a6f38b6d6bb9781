"""Errors of one tenant, which do not stop what a task does for the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import OverloadedError, UnavailableError

log = logging.getLogger(__name__)


class TenantsFailedError(UnavailableError):
    """Something failed for some tenants, and was done for the others; the next run repeats it."""


class TenantErrors:
    """The tenants for which a task failed.

    Args:
        task: what is done, such as `close months`.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self.tenant_ids: set[str] = set()

    @contextmanager
    def of(self, *tenant_ids: str) -> Iterator[None]:
        """Log an error of what is done for tenants, and continue after the block.

        Raises:
            UnavailableError: the others would fail, too.
        """
        try:
            yield
        except (UnavailableError, OverloadedError):
            raise
        except Exception:
            log.exception("can't %s of tenant %s", self._task, " and ".join(tenant_ids))
            self.tenant_ids.update(tenant_ids)

    def raise_if_any(self) -> None:
        """End the task as failed, so that metrics and commands show it.

        Raises:
            TenantsFailedError: it failed for a tenant.
        """
        if self.tenant_ids:
            names = ", ".join(sorted(self.tenant_ids))
            raise TenantsFailedError(
                f"Can't {self._task} of the tenants {names}; the log says why. It was done for the "
                "others, and is tried again for these."
            )
