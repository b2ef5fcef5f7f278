"""Groups in a Kubernetes cluster: the implementation of cluster.backend.

    launch   create the Job suspended -> apply what it owns -> resume it; a repeated call continues
    observe  read the Job and its pods; the group itself is in an annotation of the Job
    stop     delete the Job after what it owns
    scale    apply the Job with other completions and parallelism, which always change together

After every apply, what was stored is compared with what was sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from windlass.cluster.backend import (
    ClusterState,
    Group,
    GroupStatus,
    Node,
    Resources,
    check,
    group_from,
    refuse_other,
)
from windlass.cluster.kubernetes.api import KubernetesApi
from windlass.cluster.kubernetes.apply_check import check_stored, quantity
from windlass.cluster.kubernetes.labels import MANAGER, TENANT, WANTED, Manifest, is_ours, selector
from windlass.cluster.kubernetes.members import members_of
from windlass.cluster.kubernetes.messages import event_words
from windlass.cluster.kubernetes.pod import GPU, PodSetting
from windlass.cluster.kubernetes.training import dependents, owned, workload
from windlass.spec.errors import AskedWrongly, BadInput, InUse, NotFound

OWNERS = ("Job", "StatefulSet")
OURS = {"app.kubernetes.io/managed-by": MANAGER}


class KubernetesBackend:
    """Groups as Jobs and StatefulSets."""

    def __init__(self, api: KubernetesApi, setting: PodSetting | None = None) -> None:
        self.api, self.setting = api, setting or PodSetting()

    def launch(self, group: Group) -> None:
        check(group)
        owner = self._owner(group.tenant, group.name)
        if owner is None:
            owner = self._create(group)
        if owner["metadata"].get("deletionTimestamp"):
            raise InUse(f"group {group.key} is being stopped", hint="wait until it is gone")
        refuse_other(_wanted(owner), group)
        for manifest in dependents(group, self.setting):
            self._apply(owned(manifest, owner))
        if _wanted(owner) != group or (owner["spec"].get("suspend") and group.count):
            self._set(owner, group)

    def observe(self, key: str) -> GroupStatus | None:
        owner = self._owner(*_parts(key))
        return None if owner is None else self._status(owner)

    def stop(self, key: str) -> None:
        owner = self._owner(*_parts(key))
        if owner is not None and not owner["metadata"].get("deletionTimestamp"):
            metadata = owner["metadata"]
            self.api.delete(owner["kind"], metadata["namespace"], metadata["name"], uid=metadata["uid"])

    def scale(self, key: str, count: int) -> None:
        owner = self._owner(*_parts(key))
        if owner is None:
            raise NotFound(f"there is no group {key}")
        group = check(replace(_wanted(owner), count=count))
        if owner["metadata"].get("deletionTimestamp"):
            raise InUse(f"group {key} is being stopped", hint="wait until it is gone")
        if group != _wanted(owner):
            self._set(owner, group)

    def survey(self, tenant: str | None = None) -> ClusterState:
        namespace = self.setting.namespace if tenant is None else self.setting.of(tenant)
        labels = {**OURS, **({TENANT: tenant} if tenant is not None else {})}
        statuses = []
        for kind in OWNERS:
            found = self._owners(kind, namespace, labels)
            statuses += [self._status({**each, "kind": kind}) for each in found if _is_group(each)]
        return ClusterState(self._nodes(), tuple(sorted(statuses, key=lambda each: each.group.key)))

    def _owners(self, kind: str, namespace: str | None, labels: Mapping[str, str]) -> list[Manifest]:
        """List the owners of groups; namespace by namespace if we may not list the whole cluster."""
        try:
            return self.api.list(kind, namespace, labels)[0]
        except AskedWrongly:
            if namespace is not None:
                raise
        spaces, _ = self.api.list("Namespace", None, OURS)
        names = [space["metadata"]["name"] for space in spaces if TENANT in space["metadata"]["labels"]]
        return [owner for name in names for owner in self.api.list(kind, name, labels)[0]]

    def _owner(self, tenant: str, name: str) -> Manifest | None:
        """Return the Job or StatefulSet of a group."""
        namespace = self.setting.of(tenant)
        for kind in OWNERS:
            found = self.api.get(kind, namespace, name)
            if found is None:
                continue
            if not is_ours(found) or not _is_group(found):
                raise InUse(
                    f"{kind} {namespace}/{name} already exists and was not made by Windlass",
                    hint="choose another name",
                )
            if _wanted(found).tenant == tenant:
                return {**found, "kind": kind}
        return None

    def _create(self, group: Group) -> Manifest:
        """Create the owner without pods: what they need must exist first."""
        manifest = workload(group, self.setting, suspended=True)
        try:
            return check_stored(manifest, {**manifest, **self.api.create(manifest)})
        except InUse:
            owner = self._owner(group.tenant, group.name)  # another process was faster
            if owner is None:
                raise
            return owner

    def _set(self, owner: Manifest, group: Group) -> None:
        if _is_finished(owner):
            raise BadInput(
                f"group {group.key} has finished, and Kubernetes cannot restart it",
                hint="stop it, and launch it again",
            )
        self._apply(workload(group, self.setting))

    def _apply(self, manifest: Manifest) -> Manifest:
        return check_stored(manifest, self.api.apply(manifest))

    def _status(self, owner: Manifest) -> GroupStatus:
        group, metadata = _wanted(owner), owner["metadata"]
        pods, _ = self.api.list("Pod", metadata["namespace"], selector(group))
        mine = [pod for pod in pods if _is_owned(pod, owner)]
        why = self._why_none(owner) if len(mine) < group.count else ""
        members = members_of(group, owner, mine, why)
        return GroupStatus(group, tuple(members), stopping=bool(metadata.get("deletionTimestamp")))

    def _why_none(self, owner: Manifest) -> str:
        """Return why a group has no pods."""
        metadata = owner["metadata"]
        about = {"involvedObject.name": metadata["name"], "involvedObject.kind": owner["kind"]}
        events, _ = self.api.list("Event", metadata["namespace"], fields=about)
        texts = [text for event in events if (text := event_words(event)) is not None]
        return texts[-1] if texts else "it has no pod yet"

    def _nodes(self) -> tuple[Node, ...]:
        """Return the nodes; none if we may not list them."""
        with contextlib.suppress(AskedWrongly):
            nodes, _ = self.api.list("Node", None)
            pods, _ = self.api.list("Pod", None)
            return tuple(_node(node, pods) for node in nodes)
        return ()


def _parts(key: str) -> tuple[str, str]:
    tenant, slash, name = key.partition("/")
    if not (tenant and slash and name):
        raise BadInput(f"'{key}' is not the key of a group", hint="TENANT/NAME")
    return tenant, name


def _wanted(owner: Manifest) -> Group:
    return group_from(owner["metadata"]["annotations"][WANTED].encode())


def _is_group(owner: Manifest) -> bool:
    return WANTED in (owner["metadata"].get("annotations") or {})


def _is_owned(pod: Manifest, owner: Manifest) -> bool:
    references = pod["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == owner["metadata"]["uid"] for each in references)


def _is_finished(owner: Manifest) -> bool:
    conditions = (owner.get("status") or {}).get("conditions") or ()
    return any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)


def _node(node: Manifest, pods: list[Manifest]) -> Node:
    status, name = node.get("status") or {}, node["metadata"]["name"]
    ready = [c for c in status.get("conditions") or () if c.get("type") == "Ready"]
    alive = any(condition.get("status") == "True" for condition in ready)
    addresses = [a["address"] for a in status.get("addresses") or () if a.get("type") == "InternalIP"]
    here = [pod for pod in pods if pod["spec"].get("nodeName") == name and _takes_room(pod)]
    total = status.get("allocatable") or {}
    closed = "it takes no new work (cordoned)" if (node.get("spec") or {}).get("unschedulable") else ""
    reason = closed if alive else str(ready[0].get("message", "")) if ready else "it is not ready"
    free = Resources(
        cores=_amount(total, "cpu") - sum(_requested(pod, "cpu") for pod in here),
        memory_bytes=round(_amount(total, "memory") - sum(_requested(pod, "memory") for pod in here)),
        gpus=round(_amount(total, GPU) - sum(_requested(pod, GPU) for pod in here)),
    )
    all_of_it = Resources(_amount(total, "cpu"), round(_amount(total, "memory")), round(_amount(total, GPU)))
    address, labels = addresses[0] if addresses else "", node["metadata"].get("labels") or {}
    return Node(name, alive and not closed, address, all_of_it, free, reason, labels)


def _takes_room(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _requested(pod: Manifest, what: str) -> float:
    requests = [(each.get("resources") or {}).get("requests") or {} for each in pod["spec"]["containers"]]
    return sum(_amount(each, what) for each in requests)


def _amount(amounts: Manifest, what: str) -> float:
    return float(quantity(amounts.get(what, "0")) or 0)
