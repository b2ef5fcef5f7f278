"""The client of a Kubernetes API server; no other module calls it.

Seven verbs over plain objects: apply, create, get, list, delete, watch, log. A refusal becomes an error with
one sentence; a server that does not answer raises ProcessFailed, and the caller retries.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from windlass.cluster.kubernetes.kubeconfig import ClusterAccess, find_access, prove, tls_of
from windlass.cluster.kubernetes.labels import MANAGER, Manifest
from windlass.spec.errors import AskedWrongly, BadInput, InUse, ProcessFailed, WindlassError

ANSWER_S = 30.0
QUIET_S = 300.0
"""Maximum silence on a watch; the server is requested to end it earlier."""
PAGE = 500
TRIES = 3
"""For idempotent requests, when the server is busy or the connection broke."""


@dataclass(frozen=True)
class ResourceKind:
    """The API path of objects of a kind."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


KINDS = {
    "Job": ResourceKind("batch", "v1", "jobs"),
    "CronJob": ResourceKind("batch", "v1", "cronjobs"),
    "StatefulSet": ResourceKind("apps", "v1", "statefulsets"),
    "Deployment": ResourceKind("apps", "v1", "deployments"),
    "Service": ResourceKind("", "v1", "services"),
    "ConfigMap": ResourceKind("", "v1", "configmaps"),
    "Pod": ResourceKind("", "v1", "pods"),
    "Event": ResourceKind("", "v1", "events"),
    "Node": ResourceKind("", "v1", "nodes", namespaced=False),
    "Namespace": ResourceKind("", "v1", "namespaces", namespaced=False),
    "ResourceQuota": ResourceKind("", "v1", "resourcequotas"),
    "LimitRange": ResourceKind("", "v1", "limitranges"),
    "ServiceAccount": ResourceKind("", "v1", "serviceaccounts"),
    "PersistentVolumeClaim": ResourceKind("", "v1", "persistentvolumeclaims"),
    "NetworkPolicy": ResourceKind("networking.k8s.io", "v1", "networkpolicies"),
    "Role": ResourceKind("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": ResourceKind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "PriorityClass": ResourceKind("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
    "HorizontalPodAutoscaler": ResourceKind("autoscaling", "v2", "horizontalpodautoscalers"),
    "PodDisruptionBudget": ResourceKind("policy", "v1", "poddisruptionbudgets"),
}


class Expired(WindlassError):
    """A watch started at a version that is too old; the caller must list again."""


class KubernetesApi:
    """One API server, as one user."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access, self._closed = access, False
        self._http = self._connect()

    @classmethod
    def find(cls, context: str | None = None) -> KubernetesApi:
        return cls(find_access(context))

    def close(self) -> None:
        """Close the client; a watch in another thread raises ProcessFailed."""
        self._closed = True
        self._http.close()

    def apply(self, manifest: Manifest) -> Manifest:
        """Create or update an object by server-side apply; return what was stored.

        Fields of other managers are kept; the fields of the manifest become ours. Unknown ones are refused.
        """
        metadata, kind = manifest["metadata"], KINDS[manifest["kind"]]
        stored = self._request(
            "PATCH",
            kind.path(metadata.get("namespace"), metadata["name"]),
            params={"fieldManager": MANAGER, "force": "true", "fieldValidation": "Strict"},
            content=json.dumps(manifest).encode(),
            headers={"content-type": "application/apply-patch+yaml"},
        )
        assert stored is not None
        return stored

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object; raise InUse when it exists."""
        metadata, kind = manifest["metadata"], KINDS[manifest["kind"]]
        stored = self._request(
            "POST",
            kind.path(metadata.get("namespace")),
            params={"fieldManager": MANAGER, "fieldValidation": "Strict"},
            content=json.dumps(manifest).encode(),
            headers={"content-type": "application/json"},
        )
        assert stored is not None
        return stored

    def get(self, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """Return an object; None when there is none."""
        return self._request("GET", KINDS[kind].path(namespace, name), missing=True)

    def list(
        self,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> tuple[list[Manifest], str]:
        """Return the objects that match all labels and fields, and the version from which to watch them."""
        params = {"limit": str(PAGE), **_selecting(labels)}
        if fields:
            params["fieldSelector"] = ",".join(f"{key}={value}" for key, value in fields.items())
        items: list[Manifest] = []
        while True:
            page = self._request("GET", KINDS[kind].path(namespace), params=params) or {}
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            params["continue"] = metadata["continue"]

    def delete(self, kind: str, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        """Delete an object after all that it owns. Return whether it existed."""
        body: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        path = KINDS[kind].path(namespace, name)
        headers = {"content-type": "application/json"}
        answer = self._request(
            "DELETE", path, content=json.dumps(body).encode(), headers=headers, missing=True
        )
        return answer is not None

    def watch(
        self,
        kind: str,
        namespace: str | None,
        version: str,
        labels: Mapping[str, str] | None = None,
        *,
        quiet_s: float = QUIET_S,
    ) -> Iterator[tuple[str, Manifest]]:
        """Yield (ADDED, MODIFIED, DELETED or BOOKMARK, object) from a version on, until the server ends it.

        Raises Expired when the server no longer has the events since that version.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(quiet_s))),
            **_selecting(labels),
        }
        with self._stream(KINDS[kind].path(namespace), params, quiet_s + ANSWER_S) as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError as error:
                    raise ProcessFailed("a watch was cut off in the middle of a line") from error
                if event["type"] == "ERROR":
                    raise _refusal(int(event["object"].get("code", 500)), event["object"], "watch")
                yield event["type"], event["object"]

    def log(self, namespace: str, pod: str, container: str, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines of a container's log; with `follow`, also new ones."""
        params = {"container": container, **({"follow": "true"} if follow else {})}
        path = f"{KINDS['Pod'].path(namespace, pod)}/log"
        with self._stream(path, params, None if follow else ANSWER_S) as lines:
            yield from lines

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        missing: bool = False,
    ) -> Manifest | None:
        """Send a request, with retries; None for a missing object, if `missing` allows it."""
        for left in reversed(range(TRIES)):
            try:
                answer = self._http.request(method, path, params=params, content=content, headers=headers)
            except httpx.HTTPError as error:
                if left and isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                    continue
                raise self._unreachable(error) from error
            except RuntimeError as error:
                raise self._ended(error) from error
            if answer.status_code == 401 and left and self.access.command is not None:
                self._renew()
                continue
            if answer.status_code not in (429, 503, 504) or not left:
                break
        if answer.status_code == 404 and missing and _names_object(answer):
            return None
        if answer.is_error:
            raise _refusal(answer.status_code, _status(answer), f"{method} {path}")
        stored: Manifest = answer.json()
        return stored

    @contextlib.contextmanager
    def _stream(
        self, path: str, params: Mapping[str, str], silence_s: float | None
    ) -> Iterator[Iterator[str]]:
        timeout = httpx.Timeout(ANSWER_S, read=silence_s)
        try:
            with self._http.stream("GET", path, params=params, timeout=timeout) as answer:
                if answer.is_error:
                    answer.read()
                    raise _refusal(answer.status_code, _status(answer), f"GET {path}")
                yield answer.iter_lines()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            raise self._ended(error) from error

    def _ended(self, error: RuntimeError) -> Exception:
        """httpx raises RuntimeError after close; any other RuntimeError is a bug."""
        return ProcessFailed("the connection was closed") if self._closed else error

    def _connect(self) -> httpx.Client:
        secure = self.access.server.startswith("https:")
        return httpx.Client(
            base_url=self.access.server,
            verify=tls_of(self.access) if secure else False,
            timeout=ANSWER_S,
            auth=self._sign,
            headers={"accept": "application/json", "user-agent": MANAGER},
        )

    def _sign(self, request: httpx.Request) -> httpx.Request:
        if token := self.access.bearer():
            request.headers["authorization"] = f"Bearer {token}"
        if self.access.server_name:
            request.extensions["sni_hostname"] = self.access.server_name
        return request

    def _renew(self) -> None:
        """Get new credentials from the program of the kubeconfig."""
        self._http.close()
        self.access = prove(self.access)
        self._http = self._connect()

    def _unreachable(self, error: httpx.HTTPError) -> ProcessFailed:
        why = str(error) or type(error).__name__
        return ProcessFailed(f"the Kubernetes API server {self.access.server} does not answer: {why}")


def _selecting(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else {}


def _names_object(answer: httpx.Response) -> bool:
    """Whether a 404 is about the object, not about an API that the server does not have."""
    return _status(answer).get("details", {}).get("name") is not None


def _status(answer: httpx.Response) -> Manifest:
    with contextlib.suppress(ValueError):
        body: Any = answer.json()
        if isinstance(body, dict):
            return body
    return {"message": answer.text[:500]}


def _refusal(code: int, status: Manifest, what: str) -> WindlassError:
    """Return the error for a response code."""
    message = str(status.get("message") or f"{what}: {code}")
    if code in (401, 403):
        return AskedWrongly(
            f"the cluster denied access: {message}",
            hint="the Role of `windlass kubernetes render --tenant` has all needed rights",
        )
    if code == 404:
        return BadInput(
            f"not found in the cluster: {message}",
            hint="create a namespace by `windlass kubernetes render --tenant T | kubectl apply -f -`",
        )
    if code == 409:
        return InUse(f"conflict with another client: {message}")
    if code == 410:
        return Expired(message)
    if code in (400, 422):
        return BadInput(f"the API server refused it: {message}", hint=_causes(status))
    return ProcessFailed(f"the API server failed ({code}): {message}")


def _causes(status: Manifest) -> str | None:
    causes = (status.get("details") or {}).get("causes") or ()
    texts = [f"{cause.get('field')}: {cause.get('message')}" for cause in causes]
    return "; ".join(texts) or None
