"""The inventory of a tenant's appliances, read from the portal."""

from __future__ import annotations

DOCUMENTATION = r"""
name: appliances
short_description: Appliances of a Vedette tenant
description:
  - Reads the appliances of a tenant over the REST API of the portal, with the API token of one of
    its users. The scope C(read) is enough.
  - Every appliance is a host in the group C(appliances), and in groups by site (C(site_delft)),
    status (C(status_online)) and GPU model (C(gpu_nvidia_h100)). Retired and revoked ones are left
    out.
  - The portal doesn't know the address at which Ansible reaches a host. Without C(ansible_host), it
    is the appliance's name; set others by O(compose), or in C(host_vars).
author:
  - Vedette (@vedette)
options:
  plugin:
    description: The name of this plugin.
    required: true
    choices: [vedette.platform.appliances]
  url:
    description: Address of the portal.
    required: true
    env:
      - name: VEDETTE_URL
  token:
    description: API token. Set the variable of the environment instead of writing it into the file.
    default: ""
    env:
      - name: VEDETTE_TOKEN
  ca_file:
    description: CA of the portal's certificate, unless this host trusts it.
    type: path
  timeout_seconds:
    description: Time limit of a request. A request returns up to 500 appliances.
    type: int
    default: 30
  site:
    description: Only the appliances of this site.
    default: ""
extends_documentation_fragment:
  - constructed
  - inventory_cache
"""

EXAMPLES = r"""
# vedette.yml, used with: VEDETTE_TOKEN=vdt_... ansible-playbook -i vedette.yml ...
plugin: vedette.platform.appliances
url: https://portal.example.com
compose:
  ansible_host: inventory_hostname ~ '.' ~ vedette_site ~ '.example.com'
keyed_groups:
  - key: vedette_labels.rack
    prefix: rack
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/vedette-inventory
cache_timeout: 300
"""

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.vedette.platform.plugins.module_utils.portal import Portal, PortalError

GROUP = "appliances"
# The fields that become variables with the prefix vedette_.
FIELDS = (
    "name",
    "site",
    "region",
    "labels",
    "status",
    "state",
    "health_state",
    "gpu_count",
    "gpu_model",
    "appliance_class",
    "agent_version",
    "last_seen_at",
    "drained_at",
)
# Prefixes of groups, with the field whose value follows.
GROUPED_BY = {"site": "site", "status": "status", "gpu": "gpu_model"}


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Appliances as hosts."""

    NAME = "vedette.platform.appliances"

    def verify_file(self, path):
        """Accept files named `vedette.yml`, or `production.vedette.yml`."""
        names = ("vedette.yml", "vedette.yaml")
        return super().verify_file(path) and path.endswith(names)

    def parse(self, inventory, loader, path, cache=True):
        """Add the appliances, from the cache if it is enabled and fresh."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self.inventory.add_group(GROUP)
        for appliance in self._appliances(self.get_cache_key(path), may_use_cache=cache):
            self._add(appliance)

    def _appliances(self, key, may_use_cache):
        is_cached = self.get_option("cache")
        if is_cached and may_use_cache and key in self._cache:
            return self._cache[key]
        site = self.get_option("site")
        options = ("url", "token", "ca_file", "timeout_seconds")
        try:
            portal = Portal(**{name: self.get_option(name) for name in options})
            appliances = portal.appliances(**({"site": site} if site else {}))
        except PortalError as error:
            raise AnsibleParserError(str(error)) from error
        if is_cached:
            self._cache[key] = appliances
        return appliances

    def _add(self, appliance):
        name = appliance["name"]
        self.inventory.add_host(name, group=GROUP)
        variables = {f"vedette_{field}": appliance.get(field) for field in FIELDS}
        variables["vedette_appliance_id"] = appliance["id"]
        for variable, value in variables.items():
            self.inventory.set_variable(name, variable, value)
        for prefix, field in GROUPED_BY.items():
            group = f"{prefix}_{appliance.get(field) or 'none'}".lower()
            self.inventory.add_child(
                self.inventory.add_group(self._sanitize_group_name(group)), name
            )
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        keyed_groups = self.get_option("keyed_groups")
        self._add_host_to_keyed_groups(keyed_groups, variables, name, strict=strict)
