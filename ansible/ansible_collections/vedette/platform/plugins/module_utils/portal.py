"""The REST API of a portal, for the collection's modules and its inventory."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url

PAGE_SIZE = 500

OPTIONS = {
    "url": {"type": "str", "required": True},
    "token": {"type": "str", "required": True, "no_log": True},
    "ca_file": {"type": "path"},
    "timeout_seconds": {"type": "int", "default": 30},
}


class PortalError(Exception):
    """What went wrong, with what to do about it."""


class Portal:
    """A portal and the API token of one of its users.

    Args:
        url: of the portal, without /api/v1.
        token: of a user of the tenant.
        ca_file: CA of the portal's certificate, unless this host trusts it.
        timeout_seconds: of a request.
    """

    def __init__(self, url, token, ca_file=None, timeout_seconds=30):
        if not token:
            raise PortalError(
                "There is no API token. Create one in the portal under Settings, and set it as "
                "token or in VEDETTE_TOKEN."
            )
        self._url = url.rstrip("/")
        self._token = token
        self._ca_file = ca_file
        self._timeout_seconds = timeout_seconds

    def get(self, path, **query):
        """Return what the portal answers."""
        return self._request("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path, body=None):
        """Return what the portal answers."""
        return self._request("POST", path, body)

    def appliances(self, **filters):
        """Return all appliances with these fields, from all pages."""
        items, total, page = [], 1, 0
        while len(items) < total:
            page += 1
            answer = self.get("/appliances", page=page, page_size=PAGE_SIZE, **filters)
            if not answer["items"]:
                break
            items += answer["items"]
            total = answer["total"]
        return items

    def _request(self, method, path, body=None):
        try:
            answer = open_url(
                f"{self._url}/api/v1{path}",
                method=method,
                data=None if body is None else json.dumps(body),
                headers={
                    "Authorization": f"Bearer {self._token}",
                    "Content-Type": "application/json",
                },
                ca_path=self._ca_file,
                timeout=self._timeout_seconds,
                # A redirect would pass the token on.
                follow_redirects="none",
            )
            return json.loads(answer.read())
        except HTTPError as error:
            # Ansible prints the causes too, which would repeat the code.
            raise PortalError(self._refusal(error)) from None
        except (OSError, ValueError) as error:
            raise PortalError(
                f"{self._url} does not answer as a portal: {getattr(error, 'reason', error)}. "
                "Check url, and ca_file if the portal's CA is private."
            ) from None

    def _refusal(self, error):
        try:
            message = json.loads(error.read())["message"]
        except (ValueError, KeyError, TypeError, OSError):
            message = f"no message, so check that {self._url} is a portal."
        return f"The portal answered {error.code}: {message}"
