"""Access is found as kubectl finds it, and credentials never show."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from windlass.cluster.kubernetes.kubeconfig import find_access, in_cluster
from windlass.spec.errors import BadInput


def config(**user: Any) -> dict[str, Any]:
    return {
        "current-context": "a",
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://10.0.0.1:6443/",
                    "certificate-authority-data": base64.b64encode(b"CA").decode(),
                },
            }
        ],
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
            {"name": "b", "context": {"cluster": "c"}},
        ],
        "users": [{"name": "u", "user": user}],
    }


def written(folder: Path, told: Any) -> dict[str, str]:
    path = folder / "config"
    path.write_text(json.dumps(told))  # JSON is YAML
    return {"KUBECONFIG": str(path)}


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    access = find_access(None, written(tmp_path, config(token="t0p")))
    assert (access.server, access.namespace, access.ca_pem) == ("https://10.0.0.1:6443", "n", b"CA")
    assert access.bearer() == "t0p"
    assert "t0p" not in repr(access)


def test_another_context_may_be_named_and_may_have_no_user(tmp_path: Path) -> None:
    access = find_access("b", written(tmp_path, config(token="t0p")))
    assert (access.namespace, access.bearer()) == ("default", None)


def test_an_unknown_context_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no context 'z'") as caught:
        find_access("z", written(tmp_path, config()))
    assert caught.value.hint == "contexts: a, b"


def test_several_files_are_one(tmp_path: Path) -> None:
    whole = config(token="t")
    users = {"users": whole.pop("users")}
    (tmp_path / "one").write_text(json.dumps(whole))
    (tmp_path / "two").write_text(json.dumps(users))
    paths = f"{tmp_path / 'one'}:{tmp_path / 'missing'}:{tmp_path / 'two'}"
    assert find_access(None, {"KUBECONFIG": paths}).bearer() == "t"


def test_a_token_in_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    access = find_access(None, written(tmp_path, config(tokenFile="token")))
    assert access.bearer() == "first"
    (tmp_path / "token").write_text("second\n")
    assert access.bearer() == "second"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_program_gives_credentials(tmp_path: Path, version: str) -> None:
    program = tmp_path / "login"
    program.write_text(
        "#!/bin/sh\n"
        'test -n "$KUBERNETES_EXEC_INFO" || exit 3\n'
        'echo "{\\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"$WHO-$1\\"}}"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    told = {
        "apiVersion": f"client.authentication.k8s.io/{version}",
        "command": str(program),
        "args": ["x"],
        "env": [{"name": "WHO", "value": "me"}],
    }
    assert find_access(None, written(tmp_path, config(exec=told))).bearer() == "me-x"


def test_a_program_that_is_not_there_is_named_with_its_hint(tmp_path: Path) -> None:
    told = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-login",
        "installHint": "get it",
    }
    with pytest.raises(BadInput, match="no-such-login") as caught:
        find_access(None, written(tmp_path, config(exec=told)))
    assert caught.value.hint == "get it"


def test_a_pod_knows_its_own_cluster(tmp_path: Path) -> None:
    for name, text in {"namespace": "n\n", "ca.crt": "CA", "token": "t\n"}.items():
        (tmp_path / name).write_text(text)
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (access.server, access.namespace, access.bearer()) == ("https://[fd00::1]:443", "n", "t")


def test_without_any_cluster_the_way_to_one_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no Kubernetes cluster is configured"):
        find_access(None, {"KUBECONFIG": str(tmp_path / "none")})


def test_what_is_no_kubeconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a kubeconfig"):
        find_access(None, written(tmp_path, ["a list"]))
