"""Every rule finds what it is there for: one wrong manifest each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.test_kubernetes_manifests import everything, of_kind
from windlass.cluster.kubernetes.rules import RULES, against_rules

Manifest = dict[str, Any]
Spoil = Callable[[Manifest], None]


def pod(made: Manifest) -> Manifest:
    return dict.__getitem__(made["spec"]["template"], "spec")  # type: ignore[no-any-return]


def exit_codes(made: Manifest) -> Manifest:
    return made["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]  # type: ignore[no-any-return]


WRONG: list[tuple[str, str, Spoil]] = [
    ("Job", "podFailurePolicy needs restartPolicy Never", lambda m: pod(m).update(restartPolicy="OnFailure")),
    ("Job", "restarted Never or OnFailure", lambda m: pod(m).update(restartPolicy="Always")),
    ("Job", "needs completions", lambda m: m["spec"].update(completions=None)),
    ("Job", "needs completionMode Indexed", lambda m: m["spec"].update(completionMode="NonIndexed")),
    ("Job", "at most 100000", lambda m: m["spec"].update(parallelism=200_000)),
    ("Job", "is more than completions", lambda m: m["spec"].update(maxFailedIndexes=3)),
    (
        "Job",
        "need maxFailedIndexes of at most 10000",
        lambda m: m["spec"].update(completions=200_000, parallelism=200_000),
    ),
    ("Job", "FailIndex needs backoffLimitPerIndex", lambda m: m["spec"].pop("backoffLimitPerIndex")),
    ("Job", "0 is not a failure", lambda m: exit_codes(m).update(values=[0, 2])),
    ("Job", "in ascending order", lambda m: exit_codes(m).update(values=[3, 2])),
    ("Job", "neither In nor NotIn", lambda m: exit_codes(m).update(operator="Exists")),
    ("Job", "there is no container 'other'", lambda m: exit_codes(m).update(containerName="other")),
    (
        "Job",
        "needs one of onExitCodes and onPodConditions",
        lambda m: m["spec"]["podFailurePolicy"]["rules"].append({"action": "Count"}),
    ),
    (
        "Job",
        "podReplacementPolicy can only be Failed",
        lambda m: m["spec"].update(podReplacementPolicy="TerminatingOrFailed"),
    ),
    ("Job", "could never be scaled", lambda m: m["spec"].update(parallelism=1)),
    ("Job", "made by its controller", lambda m: m["spec"].update(selector={"matchLabels": {}})),
    ("Job", "is no DNS label of 63", lambda m: m["metadata"].update(name="x" * 62)),
    ("Job", "no Service 'elsewhere'", lambda m: pod(m).update(subdomain="elsewhere")),
    ("Job", "seccompProfile", lambda m: pod(m)["securityContext"].pop("seccompProfile")),
    ("Job", "runAsNonRoot", lambda m: pod(m)["securityContext"].update(runAsUser=0)),
    ("Job", "hostNetwork is not allowed", lambda m: pod(m).update(hostNetwork=True)),
    (
        "Job",
        "kind hostPath, which is not allowed",
        lambda m: pod(m)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    (
        "Job",
        "allowPrivilegeEscalation false",
        lambda m: pod(m)["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
    ),
    (
        "Job",
        "drop ALL capabilities",
        lambda m: pod(m)["containers"][0]["securityContext"].pop("capabilities"),
    ),
    ("Job", "which is not there", lambda m: pod(m)["volumes"].pop(0)),
    (
        "Job",
        "two volumes at the same path",
        lambda m: pod(m)["containers"][0]["volumeMounts"][0].update(mountPath="/dev/shm"),
    ),
    (
        "Job",
        "requests more cpu",
        lambda m: pod(m)["containers"][0]["resources"]["requests"].update(cpu="5"),
    ),
    (
        "Job",
        "requested and limited by the same number",
        lambda m: pod(m)["containers"][0]["resources"]["requests"].update({"nvidia.com/gpu": "1"}),
    ),
    (
        "Job",
        "must come from one (secretKeyRef)",
        lambda m: pod(m)["containers"][0]["env"].append({"name": "DB_PASSWORD", "value": "x"}),
    ),
    ("Job", "cannot have the value", lambda m: m["metadata"]["labels"].update(note="two words")),
    ("Job", "more than 256 KiB", lambda m: m["metadata"]["annotations"].update(long="x" * (257 << 10))),
    ("Service", "must begin with a letter", lambda m: m["metadata"].update(name="2nd")),
    ("Service", "must be headless", lambda m: m["spec"].pop("clusterIP")),
    ("Service", "once they are ready", lambda m: m["spec"].pop("publishNotReadyAddresses")),
    ("Service", "matches no pods", lambda m: m["spec"]["selector"].update(other="label")),
    ("Service", "is no port of its pods", lambda m: m["spec"]["ports"][0].update(targetPort="gone")),
    (
        "Deployment",
        "does not match its own pods",
        lambda m: m["spec"]["selector"]["matchLabels"].update(a="b"),
    ),
    ("Deployment", "are always restarted", lambda m: pod(m).update(restartPolicy="Never")),
    ("Deployment", "would undo the autoscaler", lambda m: m["spec"].update(replicas=2)),
    ("Deployment", "requests no cpu", lambda m: pod(m)["containers"][0].pop("resources")),
    ("Deployment", "takes all of the 5 s", lambda m: pod(m).update(terminationGracePeriodSeconds=5)),
    ("HorizontalPodAutoscaler", "needs a feature gate", lambda m: m["spec"].update(minReplicas=0)),
    ("HorizontalPodAutoscaler", "is more than maxReplicas", lambda m: m["spec"].update(minReplicas=9)),
    (
        "HorizontalPodAutoscaler",
        "must be 0 to 3600",
        lambda m: m["spec"]["behavior"]["scaleDown"].update(stabilizationWindowSeconds=7200),
    ),
    ("PodDisruptionBudget", "needs one of", lambda m: m["spec"].update(minAvailable=1)),
    ("PodDisruptionBudget", "could ever be drained", lambda m: m["spec"].update(maxUnavailable=0)),
    ("PriorityClass", "Kubernetes' own", lambda m: m["metadata"].update(name="system-mine")),
    ("PriorityClass", "at most 1000000000", lambda m: m.update(value=2 * 10**9)),
    ("CronJob", "would overlap", lambda m: m["spec"].update(concurrencyPolicy="Allow")),
    ("CronJob", "every 10 s", lambda m: m["spec"].update(startingDeadlineSeconds=5)),
    ("CronJob", "at most 52 characters", lambda m: m["metadata"].update(name="x" * 53)),
    ("Namespace", "cannot be named", lambda m: m["metadata"].update(name="Not.A-Label")),
    ("Role", "more than needed", lambda m: m["rules"][0].update(verbs=["*"])),
    ("ServiceAccount", "does not belong into rendered files", lambda m: m.update(kind="Secret")),
]


@pytest.mark.parametrize(("kind", "words", "spoil"), WRONG, ids=[f"{k}: {w}" for k, w, _ in WRONG])
def test_a_rule_finds_what_would_be_refused(kind: str, words: str, spoil: Spoil) -> None:
    manifests = copy.deepcopy(everything())
    spoil(of_kind(kind, manifests))
    found = against_rules(manifests)
    assert any(words in finding.what for finding in found), [str(each) for each in found]
    assert all(finding.cites.startswith("https://kubernetes.io/docs/") for finding in found)


def test_no_rule_is_without_a_wrong_manifest() -> None:
    told = set()
    for kind, _, spoil in WRONG:
        manifests = copy.deepcopy(everything())
        spoil(of_kind(kind, manifests))
        told |= {finding.cites for finding in against_rules(manifests)}
    assert told == {cites for cites, _ in RULES}
