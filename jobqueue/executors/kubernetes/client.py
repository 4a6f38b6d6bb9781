"""HTTP to the API of a cluster: credentials, pages, streams, and errors in the cluster's words.

The package `kubernetes` reads the kubeconfig or the service account, renews tokens and opens TLS;
objects stay JSON, since building its models takes longer than the requests. Nothing is repeated
after a broken connection: a write whose answer is lost may have happened.

Source: Kubernetes API concepts ("Retrieving large results sets in chunks", "Status").
"""

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import urllib3
import yaml

from jobqueue.executors.base import (
    ConflictError,
    ExecutorError,
    ExecutorUnavailableError,
    InvalidError,
    NotFoundError,
    UncertainError,
)
from jobqueue.executors.settings import KubernetesSettings

PAGE_ITEMS = 500
# Of one list: a cluster with more is read as far as this.
MAX_PAGES = 200
CONNECTIONS = 16
MAX_ERROR_LENGTH = 500
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 401, 403, 404, 409, 410
ERROR, SERVER_ERROR, TOO_MANY = 400, 500, 429
INVALID = frozenset({400, 422})
MERGE_PATCH = "application/merge-patch+json"

Object = Mapping[str, Any]
Params = Sequence[tuple[str, str]]


class ForbiddenError(ExecutorError):
    """The account lacks a right, or an admission rule refuses the object."""


class Resource(NamedTuple):
    """A kind of object: `jobs` of `batch/v1`; the group of the core is "".

    Attributes:
        group: with its version, such as `batch/v1`, or `v1` of the core.
        plural: such as `jobs`.
        is_namespaced: whether it is in a namespace.
    """

    group: str
    plural: str
    is_namespaced: bool = True


JOBS = Resource("batch/v1", "jobs")
PODS = Resource("v1", "pods")
SECRETS = Resource("v1", "secrets")
EVENTS = Resource("v1", "events")
NODES = Resource("v1", "nodes", is_namespaced=False)
POD_METRICS = Resource("metrics.k8s.io/v1beta1", "pods")
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io/v1", "selfsubjectaccessreviews", is_namespaced=False
)


class KubernetesAPI:
    """The API of one cluster; connects at the first request."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._configuration: Any = None
        self._pool: urllib3.PoolManager | None = None

    @property
    def namespace(self) -> str:
        """The namespace of the jobs."""
        return self._settings.namespace

    def get(self, path: str) -> Object:
        """Return the JSON of a path, such as `/version`."""
        return self._answer("GET", path)

    def list(
        self,
        resource: Resource,
        *,
        labels: str = "",
        fields: str = "",
        all_namespaces: bool = False,
    ) -> Iterator[Object]:
        """Yield the objects of a kind, page by page.

        A list that has expired between two pages is the caller's to begin again.
        """
        path = self.path(resource, all_namespaces=all_namespaces)
        params = [("limit", str(PAGE_ITEMS))]
        params += [("labelSelector", labels)] if labels else []
        params += [("fieldSelector", fields)] if fields else []
        token = ""
        for _ in range(MAX_PAGES):
            page = self._answer("GET", path, [*params, ("continue", token)] if token else params)
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    def read(self, resource: Resource, name: str) -> Object:
        """Return an object."""
        return self._answer("GET", self.path(resource, name))

    def create(self, resource: Resource, body: Object) -> Object:
        """Create an object; one of its name that is there is a `ConflictError`."""
        return self._answer("POST", self.path(resource), body=body)

    def patch(self, resource: Resource, name: str, body: Object) -> None:
        """Merge fields into an object."""
        self._answer("PATCH", self.path(resource, name), body=body, content_type=MERGE_PATCH)

    def delete(
        self, resource: Resource, name: str, *, policy: str = "Background", version: str = ""
    ) -> None:
        """Delete an object, and what it owns; with a version, only if it still has this one."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": policy,
        }
        if version:
            body["preconditions"] = {"resourceVersion": version}
        self._answer("DELETE", self.path(resource, name), body=body)

    def stream(
        self, path: str, params: Params, *, read_seconds: float | None
    ) -> urllib3.BaseHTTPResponse:
        """Open a stream, which the caller closes; without `read_seconds` it may be silent."""
        timeout = urllib3.Timeout(connect=self._settings.timeout_seconds, read=read_seconds)
        return self._open("GET", path, params, timeout=timeout)

    def path(self, resource: Resource, name: str = "", *, all_namespaces: bool = False) -> str:
        """Return the path of a kind, or of an object."""
        root = "/api" if "/" not in resource.group else "/apis"
        parts = [root, resource.group]
        if resource.is_namespaced and not all_namespaces:
            parts += ["namespaces", quote(self.namespace, safe="")]
        parts += [resource.plural, *([quote(name, safe="")] if name else [])]
        return "/".join(parts)

    def websocket(
        self, path: str, params: Params
    ) -> tuple[str, dict[str, str], ssl.SSLContext | None]:
        """Return address, headers and TLS of a WebSocket."""
        self._connect()
        configuration = self._configuration
        host: str = configuration.host.rstrip("/")
        url = f"ws{host.removeprefix('http')}{path}?{urlencode(params)}"
        if not host.startswith("https"):
            return url, self._headers(), None
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if not configuration.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        return url, self._headers(), context

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._pool.clear()

    def _answer(
        self,
        method: str,
        path: str,
        params: Params = (),
        *,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        timeout = urllib3.Timeout(total=self._settings.timeout_seconds)
        response = self._open(
            method, path, params, body=body, content_type=content_type, timeout=timeout
        )
        try:
            text = response.read()
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error, method) from error
        finally:
            response.release_conn()
        try:
            answer = json.loads(text) if text else {}
        except ValueError as error:
            raise ExecutorUnavailableError(
                f"Kubernetes at {self._configuration.host} does not answer with JSON. Check the "
                "server of the kubeconfig."
            ) from error
        return answer if isinstance(answer, dict) else {}

    def _open(
        self,
        method: str,
        path: str,
        params: Params,
        *,
        timeout: urllib3.Timeout,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        pool = self._connect()
        url = f"{self._configuration.host.rstrip('/')}{path}"
        try:
            response = pool.request(
                method,
                f"{url}?{urlencode(params)}" if params else url,
                body=None if body is None else json.dumps(body),
                headers={**self._headers(), "Content-Type": content_type},
                timeout=timeout,
                retries=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error, method) from error
        if response.status < ERROR:
            return response
        try:
            text = _words(response)
        finally:
            response.close()
        raise self._failure(response.status, text, method)

    def _failure(self, status: int, text: str, method: str) -> ExecutorError:
        if status == UNAUTHORIZED:
            return ExecutorUnavailableError(
                f"Kubernetes refuses the credentials (401): {text}. Renew the token, or correct "
                "kubeconfig."
            )
        if status >= SERVER_ERROR and method != "GET":
            return UncertainError(f"Kubernetes answered {status}: {text}")
        if status >= SERVER_ERROR or status == TOO_MANY:
            return ExecutorUnavailableError(f"Kubernetes answered {status}: {text}")
        kinds: dict[int, type[ExecutorError]] = {
            FORBIDDEN: ForbiddenError,
            NOT_FOUND: NotFoundError,
            CONFLICT: ConflictError,
        }
        kinds |= dict.fromkeys(INVALID, InvalidError)
        return kinds.get(status, ExecutorError)(f"Kubernetes answered {status}: {text}")

    def _unreachable(self, error: Exception, method: str) -> ExecutorUnavailableError:
        message = f"Kubernetes at {self._configuration.host} does not answer: {error}"
        unsent = (
            urllib3.exceptions.NewConnectionError,
            urllib3.exceptions.ConnectTimeoutError,
            urllib3.exceptions.SSLError,
        )
        if method == "GET" or isinstance(error, unsent):
            return ExecutorUnavailableError(message)
        return UncertainError(message)

    def _headers(self) -> dict[str, str]:
        """Return the credentials as they are now: the package renews tokens here."""
        headers = {"Accept": "application/json", "User-Agent": "vedette-agent"}
        try:
            token = self._configuration.get_api_key_with_prefix("authorization") or (
                self._configuration.get_api_key_with_prefix("BearerToken")
            )
        except Exception as error:  # a command of the kubeconfig has failed
            raise ExecutorUnavailableError(
                f"The credentials of the kubeconfig can't be renewed: {error}"
            ) from error
        if not token and self._configuration.username:
            token = self._configuration.get_basic_auth_token()
        return {**headers, "Authorization": token} if token else headers

    def _connect(self) -> urllib3.PoolManager:
        with self._lock:
            if self._pool is None:
                self._configuration, self._pool = _configured(self._settings)
            return self._pool


def _configured(settings: KubernetesSettings) -> tuple[Any, urllib3.PoolManager]:
    """Return the configuration of the package and its connections."""
    try:
        # Imported only if it is used: it takes a second and 34 MiB.
        from kubernetes import client, config  # noqa: PLC0415
        from kubernetes.client import rest  # noqa: PLC0415
    except ImportError as error:
        raise ExecutorUnavailableError(
            "The package kubernetes is missing. Install the agent with its extra: "
            "pip install 'vedette[kubernetes]'."
        ) from error
    configuration = client.Configuration()
    loader: Any = config  # it is typed in part
    configuration.connection_pool_maxsize = CONNECTIONS
    try:
        if settings.kubeconfig is None and not settings.context:
            loader.load_incluster_config(client_configuration=configuration)
        else:
            path = settings.kubeconfig.expanduser() if settings.kubeconfig else None
            loader.load_kube_config(
                config_file=None if path is None else str(path),
                context=settings.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, LookupError) as error:
        where = settings.kubeconfig or "the service account of this pod"
        raise ExecutorUnavailableError(
            f"Kubernetes can't be reached with {where}: {error}. Set kubernetes.kubeconfig, and "
            "kubernetes.context if it has several."
        ) from error
    pool: urllib3.PoolManager = rest.RESTClientObject(configuration).pool_manager
    return configuration, pool


def _words(response: urllib3.BaseHTTPResponse) -> str:
    """Return the message of a Status, with its causes."""
    text = ""
    with suppress(urllib3.exceptions.HTTPError):
        text = response.read(64 * 1024).decode(errors="replace").strip()
    try:
        status = json.loads(text)
        text = str(status["message"])
    except (ValueError, KeyError, TypeError):
        text = text or response.reason or "no message"
    return text[:MAX_ERROR_LENGTH].rstrip(".")
