"""Updates of the agent that the portal orders, and the root service that carries them out.

The agent has no right to change its own software. It writes an order into its data folder, which
starts `vedette-agent-update.service` (`cli/agent_update.py`); that service runs the portal's
install script as root, and writes the result into a folder that only root can change.
"""

from pathlib import Path

from collector.data_dir import load_json, save_json
from protocol.agent_update import UpdateOrder, UpdateReport, UpdateResult

ORDER_NAME = "update-order.json"
RESULT_NAME = "result.json"
# The last order that was passed on, so that a restarted agent does not pass it on again.
_PASSED_ON_NAME = "last-update.json"


class Updates:
    """Passes orders on to the update service.

    Args:
        data_dir: of the agent.
        service_dir: where the update service writes its results; None if the host has none.
    """

    def __init__(self, data_dir: Path, service_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._service_dir = service_dir
        self._order = load_json(data_dir / _PASSED_ON_NAME, UpdateOrder)

    @property
    def can_update(self) -> bool:
        """Whether this host has the update service."""
        return self._service_dir is not None and self._service_dir.is_dir()

    def report(self) -> UpdateReport | None:
        """Return what came of the last order; None if there was none."""
        if self._order is None or self._service_dir is None:
            return None
        result = load_json(self._service_dir / RESULT_NAME, UpdateReport)
        if result is not None and result.update_id == self._order.update_id:
            return result
        return UpdateReport(update_id=self._order.update_id, result=UpdateResult.INSTALLING)

    def pass_on(self, order: UpdateOrder | None) -> None:
        """Start the update service with an order, unless it had this one already."""
        if order is None or order == self._order or not self.can_update:
            return
        passed_on = self._data_dir / _PASSED_ON_NAME
        if not save_json(passed_on, order):
            return
        if save_json(self._data_dir / ORDER_NAME, order):
            self._order = order
        else:  # the next heartbeat brings the order again
            passed_on.unlink(missing_ok=True)
