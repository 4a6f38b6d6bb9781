#!/usr/bin/python
"""Change the state of an appliance in the portal, and wait for it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: appliance
short_description: Drain an appliance of Vedette, and wait for its agent
description:
  - Changes an appliance in the portal, over its REST API, and waits until the change is done.
author:
  - Vedette (@vedette)
options:
  url:
    description: Address of the portal.
    type: str
    required: true
  token:
    description: API token of a user who may change appliances, with the scope C(appliances).
    type: str
    required: true
  ca_file:
    description: CA of the portal's certificate, unless this host trusts it.
    type: path
  timeout_seconds:
    description: Time limit of a request.
    type: int
    default: 30
  name:
    description: Name of the appliance.
    type: str
    required: true
  state:
    description:
      - V(drained) gets no jobs, and has none left. V(ready) gets jobs again.
      - V(online) waits for a new heartbeat of the agent, and changes nothing.
      - V(revoked) is rejected by the portal for good; nothing changes if there is none.
    type: str
    choices: [drained, ready, online, revoked]
    required: true
  wait_seconds:
    description: How long to wait for the jobs of V(drained), or for V(online).
    type: int
    default: 600
  move_after_seconds:
    description: Stop jobs that still run this long after V(drained), and queue them again.
      By default they run to their end.
    type: int
  agent_version:
    description: With V(online), wait until the agent reports this version.
    type: str
attributes:
  check_mode:
    description: Predicts the change, and doesn't wait.
    support: full
"""

EXAMPLES = r"""
- name: Drain the appliance, and give its jobs half an hour
  vedette.platform.appliance:
    url: https://portal.example.com
    token: "{{ vault_vedette_api_token }}"
    name: "{{ inventory_hostname }}"
    state: drained
    wait_seconds: 1800
  delegate_to: localhost
"""

RETURN = r"""
appliance:
  description: The appliance, as the portal lists it.
  type: dict
  returned: success
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vedette.platform.plugins.module_utils.portal import (
    OPTIONS,
    Portal,
    PortalError,
)

POLL_SECONDS = 1


class Change:
    """One call of the module."""

    def __init__(self, module):
        self._module = module
        self._options = module.params
        self._portal = Portal(**{name: module.params[name] for name in OPTIONS})

    def make(self):
        """Return whether the appliance changed, and the appliance."""
        appliance = self._appliance()
        state = self._options["state"]
        if appliance is None:
            if state == "revoked":
                return False, {}
            raise PortalError(f"The portal has no appliance {self._options['name']!r} in service.")
        if self._module.check_mode:
            return self._would_change(appliance), appliance
        changed = getattr(self, f"_make_{state}")(appliance)
        return changed, self._appliance() or appliance

    def _would_change(self, appliance):
        is_drained = appliance["drained_at"] is not None
        changes = {"drained": not is_drained, "ready": is_drained, "revoked": True}
        return changes.get(self._options["state"], False)

    def _make_drained(self, appliance):
        path = f"/appliances/{appliance['id']}/drain"
        if appliance["drained_at"] is None:
            self._portal.post(path, {"wait_seconds": self._options["move_after_seconds"]})

        def missing():
            progress = self._portal.get(path)
            if not progress["is_drained"]:
                raise PortalError("Somebody has undrained the appliance meanwhile.")
            names = ", ".join(job["name"] for job in progress["jobs"][:3])
            return None if progress["is_done"] else f"its jobs still run: {names}"

        self._wait(missing)
        return appliance["drained_at"] is None

    def _make_ready(self, appliance):
        if appliance["drained_at"] is None:
            return False
        self._portal.post(f"/appliances/{appliance['id']}/undrain")
        return True

    def _make_revoked(self, appliance):
        self._portal.post(f"/appliances/{appliance['id']}/revoke")
        return True

    def _make_online(self, before):
        version = self._options["agent_version"]

        def missing():
            appliance = self._appliance()
            if appliance is None or appliance["last_seen_at"] == before["last_seen_at"]:
                return "its agent has sent no heartbeat"
            if version and appliance["agent_version"] != version:
                return f"its agent has version {appliance['agent_version']} instead of {version}"
            return None if appliance["state"] == "online" else f"it is {appliance['state']}"

        self._wait(missing)
        return False

    def _wait(self, missing):
        """Wait until nothing is missing."""
        deadline = time.monotonic() + self._options["wait_seconds"]
        while reason := missing():
            if time.monotonic() >= deadline:
                raise PortalError(f"After {self._options['wait_seconds']} seconds, {reason}.")
            time.sleep(POLL_SECONDS)

    def _appliance(self):
        name = self._options["name"]
        matching = self._portal.appliances(search=name)
        return next((item for item in matching if item["name"] == name), None)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **OPTIONS,
            "name": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "required": True,
                "choices": ["drained", "ready", "online", "revoked"],
            },
            "wait_seconds": {"type": "int", "default": 600},
            "move_after_seconds": {"type": "int"},
            "agent_version": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        changed, appliance = Change(module).make()
    except PortalError as error:
        module.fail_json(msg=f"{module.params['name']}: {error}")
    module.exit_json(changed=changed, appliance=appliance)


if __name__ == "__main__":
    main()
