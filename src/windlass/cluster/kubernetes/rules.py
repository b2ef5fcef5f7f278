"""Rules beyond the schemas: what an API server or a controller refuses although the schema allows it.

Each rule is a pure function of one manifest and of all others of the set, and cites the documentation of
Kubernetes. The rules cover what Windlass renders; they are not complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.cluster.kubernetes.apply_check import quantity
from windlass.cluster.kubernetes.labels import Manifest
from windlass.cluster.kubernetes.schemas import named

DOCS = "https://kubernetes.io/docs/"
JOB = DOCS + "concepts/workloads/controllers/job/"
POD_SECURITY = DOCS + "concepts/security/pod-security-standards/#restricted"
NAMES = DOCS + "concepts/overview/working-with-objects/names/"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
            "secret"}  # fmt: skip
ANNOTATIONS_BYTES = 256 << 10

Found = Iterator[str]
Rule = Callable[[Manifest, Sequence[Manifest]], Found]


@dataclass(frozen=True)
class RuleViolation:
    """A violation: where, what, and the documentation that forbids it."""

    where: str
    what: str
    cites: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.cites})"


RULES: list[tuple[str, Rule]] = []


def rule(cites: str) -> Callable[[Rule], Rule]:
    """Register a rule with its source."""

    def keep(function: Rule) -> Rule:
        RULES.append((cites, function))
        return function

    return keep


def against_rules(manifests: Sequence[Manifest]) -> list[RuleViolation]:
    """Return all violations."""
    return [
        RuleViolation(named(manifest), what, cites)
        for manifest in manifests
        for cites, function in RULES
        for what in function(manifest, manifests)
    ]


def pod_of(manifest: Manifest) -> Manifest | None:
    """Return the pod template of a workload, if it has one."""
    spec = manifest.get("spec") or {}
    if manifest.get("kind") == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template: Manifest | None = spec.get("template") if isinstance(spec, dict) else None
    return template


def jobs_of(manifest: Manifest) -> Manifest | None:
    """Return the spec of a Job, or of the Job that a CronJob creates."""
    spec: Manifest | None = None
    if manifest.get("kind") == "Job":
        spec = manifest.get("spec")
    elif manifest.get("kind") == "CronJob":
        spec = manifest["spec"]["jobTemplate"].get("spec")
    return spec


@rule(JOB + "#pod-template")
def _jobs_end(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest)
    if job is not None:
        policy = job["template"]["spec"].get("restartPolicy", "Always")
        if policy not in ("Never", "OnFailure"):
            yield f"restartPolicy {policy}: pods of a Job are restarted Never or OnFailure"
        if policy != "Never":
            for key in ("podFailurePolicy", "backoffLimitPerIndex"):
                if key in job:
                    yield f"{key} needs restartPolicy Never, not {policy}"


@rule(JOB + "#completion-mode")
def _indexed_jobs_know_their_size(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest)
    if job is None:
        return
    indexed = job.get("completionMode") == "Indexed"
    if indexed and job.get("completions") is None:
        yield "completionMode Indexed needs completions"
    if indexed and job.get("parallelism", 0) > 100_000:
        yield "parallelism of an indexed Job may be at most 100000"
    for key in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
        if key in job and not indexed:
            yield f"{key} needs completionMode Indexed"


@rule(JOB + "#backoff-limit-per-index")
def _failed_indexes_have_a_limit(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest)
    if job is None:
        return
    limit, completions = job.get("maxFailedIndexes"), job.get("completions") or 0
    if limit is not None and "backoffLimitPerIndex" not in job:
        yield "maxFailedIndexes needs backoffLimitPerIndex"
    if limit is not None and limit > completions:
        yield f"maxFailedIndexes {limit} is more than completions {completions}"
    if "backoffLimitPerIndex" in job and completions > 100_000:
        if limit is None or limit > 10_000:
            yield "more than 100000 completions need maxFailedIndexes of at most 10000"
        if job.get("parallelism", 1) > 10_000:
            yield "more than 100000 completions may run at most 10000 at a time"


@rule(JOB + "#pod-failure-policy")
def _failure_rules_are_whole(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest)
    policy = (job or {}).get("podFailurePolicy")
    if job is None or policy is None:
        return
    rules = policy.get("rules") or []
    if len(rules) > 20:
        yield f"podFailurePolicy has {len(rules)} rules, and at most 20 are taken"
    containers = {each["name"] for each in _containers(job["template"])}
    for at, each in enumerate(rules):
        for what in _failure_rule(each, containers, per_index="backoffLimitPerIndex" in job):
            yield f"podFailurePolicy.rules[{at}]: {what}"


def _failure_rule(each: Manifest, containers: set[str], *, per_index: bool) -> Found:
    action = each.get("action")
    if action not in ("FailJob", "FailIndex", "Ignore", "Count"):
        yield f"action {action} is none of FailJob, FailIndex, Ignore and Count"
    if action == "FailIndex" and not per_index:
        yield "action FailIndex needs backoffLimitPerIndex"
    codes, conditions = each.get("onExitCodes"), each.get("onPodConditions") or []
    if (codes is None) == (not conditions):
        yield "needs one of onExitCodes and onPodConditions, and not both"
    for condition in conditions:
        if condition.get("status") not in ("True", "False", "Unknown"):
            yield "onPodConditions needs a status of True, False or Unknown"
    if codes is None:
        return
    values = codes.get("values") or []
    if codes.get("operator") not in ("In", "NotIn"):
        yield f"operator {codes.get('operator')} is neither In nor NotIn"
    if not values or len(values) > 255 or values != sorted(set(values)):
        yield "values must be 1 to 255 different codes in ascending order"
    if codes.get("operator") == "In" and 0 in values:
        yield "0 is not a failure"
    if codes.get("containerName") is not None and codes["containerName"] not in containers:
        yield f"there is no container '{codes['containerName']}'"


@rule(JOB + "#pod-replacement-policy")
def _replacements_wait_for_the_end(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest) or {}
    if "podFailurePolicy" in job and job.get("podReplacementPolicy", "Failed") != "Failed":
        yield "with podFailurePolicy, podReplacementPolicy can only be Failed"


@rule(JOB + "#controlling-parallelism")
def _elastic_jobs_run_all_at_once(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    """completions of an indexed Job can only be changed together with an equal parallelism."""
    job = jobs_of(manifest) or {}
    if job.get("completionMode") == "Indexed" and job.get("completions") != job.get("parallelism"):
        yield "completions and parallelism differ, so the Job could never be scaled"


@rule(JOB + "#specifying-your-own-pod-selector")
def _jobs_choose_their_selector(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    job = jobs_of(manifest) or {}
    if "selector" in job and not job.get("manualSelector"):
        yield "the selector of a Job is made by its controller; leave it out"


@rule(NAMES + "#rfc-1035-label-names")
def _names_are_labels(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    name, kind = str(manifest["metadata"].get("name", "")), manifest["kind"]
    if kind == "Service" and _LABEL_1035.fullmatch(name) is None:
        yield f"a Service cannot be named '{name}': it must begin with a letter"
    if kind == "Namespace" and _LABEL.fullmatch(name) is None:
        yield f"a Namespace cannot be named '{name}'"
    if kind == "CronJob" and len(name) > 52:
        yield f"the name of a CronJob has at most 52 characters, not {len(name)}"
    if kind == "Job":
        host = f"{name}-{max(0, (manifest['spec'].get('completions') or 1) - 1)}"
        if _LABEL.fullmatch(host) is None:
            yield f"its last pod would have the host name '{host}', which is no DNS label of 63 characters"


@rule(DOCS + "concepts/overview/working-with-objects/labels/#syntax-and-character-set")
def _labels_are_short(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    tables = [manifest["metadata"], (pod_of(manifest) or {}).get("metadata") or {}]
    for table in tables:
        for key, value in (table.get("labels") or {}).items():
            if _VALUE.fullmatch(str(value)) is None:
                yield f"label {key} cannot have the value '{value}'"


@rule(DOCS + "concepts/overview/working-with-objects/annotations/")
def _annotations_are_not_too_long(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    annotations = manifest["metadata"].get("annotations") or {}
    if sum(len(k.encode()) + len(str(v).encode()) for k, v in annotations.items()) > ANNOTATIONS_BYTES:
        yield "its annotations have more than 256 KiB"


@rule(DOCS + "concepts/workloads/controllers/deployment/#selector")
def _selectors_match_their_pods(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] not in ("Deployment", "StatefulSet"):
        return
    labels = ((pod_of(manifest) or {}).get("metadata") or {}).get("labels") or {}
    for key, value in ((manifest["spec"].get("selector") or {}).get("matchLabels") or {}).items():
        if labels.get(key) != value:
            yield f"selector {key}={value} does not match its own pods"


@rule(DOCS + "concepts/workloads/pods/pod-lifecycle/#restart-policy")
def _always_running_pods_restart(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] in ("Deployment", "StatefulSet"):
        policy = (pod_of(manifest) or {})["spec"].get("restartPolicy", "Always")
        if policy != "Always":
            yield f"restartPolicy {policy}: pods of a {manifest['kind']} are always restarted"


@rule(DOCS + "concepts/services-networking/dns-pod-service/#pod-s-hostname-and-subdomain-fields")
def _subdomains_have_a_service(manifest: Manifest, others: Sequence[Manifest]) -> Found:
    spec = (pod_of(manifest) or {}).get("spec") or {}
    name = spec.get("subdomain") or manifest.get("spec", {}).get("serviceName")
    if not name:
        return
    found = [o for o in others if o["kind"] == "Service" and o["metadata"]["name"] == name]
    if not found:
        yield f"no Service '{name}' gives its pods names"
    for service in found:
        if service["spec"].get("clusterIP") != "None":
            yield f"Service '{name}' must be headless (clusterIP None) to name pods"
        if not service["spec"].get("publishNotReadyAddresses"):
            yield f"Service '{name}' names pods only once they are ready, but they must meet before"


@rule(DOCS + "concepts/services-networking/service/#field-spec-ports")
def _ports_lead_somewhere(manifest: Manifest, others: Sequence[Manifest]) -> Found:
    if manifest["kind"] != "Service":
        return
    wanted = manifest["spec"].get("selector") or {}
    pods = [p for o in others if (p := pod_of(o)) is not None and _has(p, wanted)]
    names = {port.get("name") for pod in pods for c in _containers(pod) for port in c.get("ports") or ()}
    if wanted and not pods and any(pod_of(other) is not None for other in others):
        yield "its selector matches no pods"
    for port in manifest["spec"].get("ports") or ():
        target = port.get("targetPort")
        if isinstance(target, str) and pods and target not in names:
            yield f"targetPort '{target}' is no port of its pods"


@rule(DOCS + "tasks/run-application/horizontal-pod-autoscale/")
def _autoscalers_can_measure(manifest: Manifest, others: Sequence[Manifest]) -> Found:
    if manifest["kind"] != "HorizontalPodAutoscaler":
        return
    spec = manifest["spec"]
    minimum, maximum = spec.get("minReplicas", 1), spec.get("maxReplicas", 0)
    if minimum < 1:
        yield "minReplicas 0 needs a feature gate and a metric from outside"
    if minimum > maximum:
        yield f"minReplicas {minimum} is more than maxReplicas {maximum}"
    window = (spec.get("behavior") or {}).get("scaleDown", {}).get("stabilizationWindowSeconds", 300)
    if not 0 <= window <= 3600:
        yield f"stabilizationWindowSeconds {window} must be 0 to 3600"
    target = spec["scaleTargetRef"]
    for other in others:
        if other["kind"] != target["kind"] or other["metadata"]["name"] != target["name"]:
            continue
        if "replicas" in other["spec"]:
            yield "the Deployment says replicas too: every apply would undo the autoscaler"
        for container in _containers(pod_of(other) or {}):
            if "cpu" not in ((container.get("resources") or {}).get("requests") or {}):
                yield f"container '{container['name']}' requests no cpu, of which a share could be measured"


@rule(DOCS + "tasks/run-application/configure-pdb/")
def _budgets_allow_something(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] == "PodDisruptionBudget":
        spec = manifest["spec"]
        if ("minAvailable" in spec) == ("maxUnavailable" in spec):
            yield "needs one of minAvailable and maxUnavailable"
        if spec.get("maxUnavailable") in (0, "0%"):
            yield "maxUnavailable 0: no node could ever be drained"


@rule(DOCS + "concepts/scheduling-eviction/pod-priority-preemption/#priorityclass")
def _priorities_are_ours(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] == "PriorityClass":
        if manifest["metadata"]["name"].startswith("system-"):
            yield "names that begin with system- are Kubernetes' own"
        if not -(2**31) <= manifest["value"] <= 10**9:
            yield f"value {manifest['value']} must be at most 1000000000"


@rule(DOCS + "concepts/workloads/controllers/cron-jobs/#concurrency-policy")
def _backups_take_turns(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] == "CronJob":
        if manifest["spec"].get("concurrencyPolicy") not in ("Forbid", "Replace"):
            yield "concurrencyPolicy Allow: a slow run and the next one would overlap"
        deadline = manifest["spec"].get("startingDeadlineSeconds")
        if deadline is not None and deadline < 10:
            yield "startingDeadlineSeconds under 10 may never start it: the controller looks every 10 s"


@rule(POD_SECURITY)
def _pods_have_no_rights(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    pod = pod_of(manifest)
    if pod is None:
        return
    security = pod["spec"].get("securityContext") or {}
    if (security.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "securityContext.seccompProfile.type must be RuntimeDefault or Localhost"
    if not security.get("runAsNonRoot") or security.get("runAsUser") == 0:
        yield "securityContext.runAsNonRoot must be true, and runAsUser not 0"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod["spec"].get(key):
            yield f"{key} is not allowed"
    for volume in pod["spec"].get("volumes") or ():
        for kind in volume.keys() - _VOLUMES - {"name"}:
            yield f"volume '{volume['name']}' is of kind {kind}, which is not allowed"
    for container in _containers(pod):
        own = container.get("securityContext") or {}
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            yield f"container '{container['name']}' must set allowPrivilegeEscalation false"
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or ()):
            yield f"container '{container['name']}' must drop ALL capabilities"


@rule(DOCS + "concepts/storage/volumes/")
def _mounts_have_volumes(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    pod = pod_of(manifest)
    if pod is None:
        return
    names = [volume["name"] for volume in pod["spec"].get("volumes") or ()]
    if len(names) != len(set(names)):
        yield "two volumes have the same name"
    for container in _containers(pod):
        mounts = container.get("volumeMounts") or []
        paths = [mount["mountPath"] for mount in mounts]
        if len(paths) != len(set(paths)):
            yield f"container '{container['name']}' mounts two volumes at the same path"
        for mount in mounts:
            if mount["name"] not in names:
                yield f"container '{container['name']}' mounts volume '{mount['name']}', which is not there"


@rule(DOCS + "concepts/configuration/manage-resources-containers/")
def _requests_fit_their_limits(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    for container in _containers(pod_of(manifest) or {}):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for what, amount in requests.items():
            requested, limit = quantity(amount), quantity(limits.get(what, amount))
            if requested is None or limit is None:
                yield f"'{amount}' is not a quantity of {what}"
            elif requested > limit:
                yield f"requests more {what} ({amount}) than its limit ({limits[what]})"
        for what, amount in limits.items():
            extended = "/" in what
            if extended and requests.get(what, amount) != amount:
                yield f"{what} must be requested and limited by the same number"


@rule(DOCS + "concepts/configuration/secret/")
def _variables_hold_no_secrets(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    for container in _containers(pod_of(manifest) or {}):
        for variable in container.get("env") or ():
            if _VARIABLE.fullmatch(variable["name"]) is None:
                yield f"'{variable['name']}' is not the name of a variable"
            if "value" in variable and "valueFrom" in variable:
                yield f"{variable['name']} has a value and a reference"
            secret = re.search(r"password|secret|token|access_?key|private_?key", variable["name"], re.I)
            if secret and variable.get("value"):
                yield f"{variable['name']} is a secret, and must come from one (secretKeyRef)"
    if manifest["kind"] == "Secret":
        yield "a Secret does not belong into rendered files"


@rule(DOCS + "reference/access-authn-authz/rbac/")
def _roles_are_narrow(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    if manifest["kind"] in ("Role", "ClusterRole"):
        for each in manifest.get("rules") or ():
            for key in ("apiGroups", "resources", "verbs"):
                if "*" in each.get(key, ()):
                    yield f"{key} '*' grants more than needed"


@rule(DOCS + "concepts/containers/container-lifecycle-hooks/")
def _hooks_fit_into_the_grace(manifest: Manifest, _: Sequence[Manifest]) -> Found:
    pod = pod_of(manifest)
    grace = ((pod or {}).get("spec") or {}).get("terminationGracePeriodSeconds", 30)
    for container in _containers(pod or {}):
        hook = (container.get("lifecycle") or {}).get("preStop") or {}
        command: list[Any] = (hook.get("exec") or {}).get("command") or []
        if command[:1] == ["sleep"] and int(command[1]) >= grace:
            yield f"preStop takes all of the {grace} s that a pod has to end"


def _containers(pod: Manifest) -> list[Manifest]:
    spec = pod.get("spec") or {}
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]


def _has(pod: Manifest, labels: Manifest) -> bool:
    own = (pod.get("metadata") or {}).get("labels") or {}
    return all(own.get(key) == value for key, value in labels.items())
