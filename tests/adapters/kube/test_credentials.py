"""Who we are to the API server: the official client's own loaders, tokens that are renewed, and nothing too early."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.kube.access import InCluster, Kubeconfig, choose_access
from sharer.adapters.kube.errors import ApiError
from sharer.core.holders.observations import ApiTroubleKind
from sharer.simulation.apiserver import NODE, POD, ApiServer, Ending, node_object, pod_object
from tests.adapters.kube.lab import NODE_NAME, KubeLab, names
from tests.tasks import ROOT

# For 127.0.0.1, until 2120. Made for these tests; it opens nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBcTCCARagAwIBAgIBATAKBggqhkjOPQQDAjAWMRQwEgYDVQQDDAtzaGFyZXIt
dGVzdDAgFw0yMDAxMDEwMDAwMDBaGA8yMTIwMDEwMTAwMDAwMFowFjEUMBIGA1UE
AwwLc2hhcmVyLXRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASa6mVNATJl
oC5/LTkL4xCc2r2o4pcN3DSLiD3nNaJHicJRBh5iaM1C4k24nnhi3ySm44AtASX3
r+DzRxN1XR1Vo1MwUTAPBgNVHREECDAGhwR/AAABMA8GA1UdEwEB/wQFMAMBAf8w
DgYDVR0PAQH/BAQDAgKEMB0GA1UdDgQWBBQr0+HbaPj+V78Um69FaGtuI32zvTAK
BggqhkjOPQQDAgNJADBGAiEAhSsxn2jdibqi6QaOVBoRS0dq1FzA4XR0tj3C9yuh
f+ECIQCLo1HtOYz4jTQgt0PzLnCHOuzfWf8Qz7bqjpixUbXtGg==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgHk/Le9uobqDT1uva
srIunI+I9Q9mZwzQRXvK6VoiCIuhRANCAASa6mVNATJloC5/LTkL4xCc2r2o4pcN
3DSLiD3nNaJHicJRBh5iaM1C4k24nnhi3ySm44AtASX3r+DzRxN1XR1V
-----END PRIVATE KEY-----
"""
CREDENTIAL = """{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{{token}}}}}"""


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiServer]:
    """With `indirect` parameter "tls": as a cluster's."""
    tls = None
    if getattr(request, "param", None) == "tls":
        both = tmp_path / "tls.pem"
        both.write_text(CERTIFICATE + KEY)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(both)
    with ApiServer(tls=tls).start() as server:
        server.put(NODE, node_object("node-1", uid="n1"))
        yield server


def in_cluster(server: ApiServer, folder: Path, token: str) -> InCluster:
    """As the kubelet mounts it."""
    host, _, port = server.url.removeprefix("https://").partition(":")
    (folder / "ca.crt").write_text(CERTIFICATE)
    (folder / "token").write_text(token)
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return InCluster(directory=folder, environment=environment)


def others_authorities() -> str:
    """Certificates of authorities that do not vouch for the server."""
    paths = ssl.get_default_verify_paths()
    system = Path(paths.cafile or paths.openssl_cafile)
    if not system.exists():
        import certifi

        system = Path(certifi.where())
    return system.read_text()


# ---- in a pod


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_requests_from_a_pod_carry_its_token(server: ApiServer, lab: KubeLab, tmp_path: Path) -> None:
    """P35: with the real library, over TLS that is verified against the cluster's CA."""
    server.accept_tokens("t1")
    client = lab.connect(in_cluster(server, tmp_path, "t1"))
    assert client.node("node-1").uid == "n1"
    (request,) = server.requests()
    assert (request.token, request.user_agent) == ("t1", "sharer-agent")


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_renewed_token_is_used_at_once_when_the_old_one_is_refused(
    server: ApiServer, lab: KubeLab, tmp_path: Path
) -> None:
    """P35: the projected token rotates on disk; one refused request, and no error for the caller."""
    server.accept_tokens("t1")
    client = lab.connect(in_cluster(server, tmp_path, "t1"))
    client.node("node-1")
    client.node("node-1")
    (tmp_path / "token").write_text("t2")
    server.accept_tokens("t2")
    client.node("node-1")
    client.node("node-1")
    assert [(request.token, request.code) for request in server.requests()] == [
        ("t1", 200), ("t1", 200), ("t1", 401), ("t2", 200), ("t2", 200),
    ]  # fmt: skip
    assert client.counters().errors == {("get", "401"): 1}


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_server_that_the_cluster_s_ca_does_not_vouch_for_is_not_talked_to(
    server: ApiServer, lab: KubeLab, tmp_path: Path
) -> None:
    access = in_cluster(server, tmp_path, "t1")
    (tmp_path / "ca.crt").write_text(others_authorities())
    with pytest.raises(ApiError) as refused:
        lab.connect(access).node("node-1")
    assert refused.value.kind is ApiTroubleKind.UNREACHABLE
    assert "certificate" in str(refused.value)
    assert server.requests() == ()


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_renewed_certificate_authority_is_trusted_without_a_restart(
    server: ApiServer, lab: KubeLab, tmp_path: Path
) -> None:
    """Neighbour of P35: the kubelet renews `ca.crt` beside the token when a cluster changes its CA."""
    client = lab.connect(in_cluster(server, tmp_path, "t1"))
    (tmp_path / "ca.crt").write_text(others_authorities())
    with pytest.raises(ApiError, match="certificate"):
        client.node("node-1")
    (tmp_path / "ca.crt").write_text(CERTIFICATE)
    assert client.node("node-1").uid == "n1"


@pytest.mark.parametrize("content", ["", "\n"])
@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_token_that_is_empty_for_a_moment_is_no_end(
    server: ApiServer, lab: KubeLab, tmp_path: Path, content: str
) -> None:
    """Neighbour of P35: a file that is written in place is empty first; nothing is asked as anonymous then."""
    server.accept_tokens("t1")
    client = lab.connect(in_cluster(server, tmp_path, content))
    with pytest.raises(ApiError) as refused:
        client.node("node-1")
    assert refused.value.kind is ApiTroubleKind.UNAUTHORIZED
    assert all(request.token is None or request.code == 401 for request in server.requests())
    (tmp_path / "token").write_text("t1")
    assert client.node("node-1").uid == "n1"


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_token_that_is_not_mounted_yet_is_asked_for_again_at_the_next_request(
    server: ApiServer, lab: KubeLab, tmp_path: Path
) -> None:
    access = in_cluster(server, tmp_path, "t1")
    (tmp_path / "token").unlink()
    client = lab.connect(access)
    with pytest.raises(ApiError) as refused:
        client.node("node-1")
    assert refused.value.kind is ApiTroubleKind.UNAUTHORIZED
    assert str(tmp_path) in str(refused.value)
    (tmp_path / "token").write_text("t1")
    assert client.node("node-1").uid == "n1"


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_watch_over_tls_can_be_stopped(server: ApiServer, tmp_path: Path, lab: KubeLab) -> None:
    watch, told = lab.watch_pods(client=lab.connect(in_cluster(server, tmp_path, "t1")))
    told.next()
    server.wait_watches(1)
    watch.stop()
    server.wait_watches(0)
    assert lab.pauses.none


# ---- by kubeconfig


def test_a_token_refused_for_good_is_reported_and_a_new_one_picked_up(lab: KubeLab, server: ApiServer) -> None:
    """P35: "not synced" is visible, and nothing needs a restart."""
    server.accept_tokens("t2")
    watch, told = lab.watch_pods()
    lab.pauses.asked_s()
    trouble = watch.sync.trouble
    assert trouble is not None
    assert trouble.kind is ApiTroubleKind.UNAUTHORIZED
    assert "token" in trouble.message
    assert watch.sync.synced_at_s is None
    lab.put_token("t2")
    lab.pauses.go_on()
    assert told.next().pods == {}
    server.wait_watches(1)
    server.put(POD, pod_object("a", node=NODE_NAME))
    assert names(told.next()) == ["a"]
    assert watch.sync.trouble is None
    assert [request.token for request in server.requests("list", "pods")] == ["t1", "t1", "t1", "t2"]


def test_a_watch_whose_token_expired_goes_on_with_the_new_one(lab: KubeLab, server: ApiServer) -> None:
    server.accept_tokens("t1")
    _, told = lab.watch_pods()
    told.next()
    server.wait_watches(1)
    lab.put_token("t2")
    server.accept_tokens("t2")
    server.interrupt_watches(Ending.RESET)
    lab.pauses.pass_by()
    server.wait_watches(1)
    assert [(request.token, request.code) for request in server.requests("watch", "pods")][-2:] == [
        ("t1", 401),
        ("t2", 200),
    ]


@pytest.mark.parametrize("text", ["", "no: {yaml", "kind: Config", "[]"])
def test_a_kubeconfig_that_cannot_be_used_is_named(lab: KubeLab, tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ApiError) as refused:
        lab.connect(Kubeconfig(path=path)).node("node-1")
    assert f"the kubeconfig {path} cannot be used" in str(refused.value)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "No such file or directory: "),
        ("exit 3", "process returned 3"),
        ("echo '{}'", ""),
        (f"echo '{CREDENTIAL.format(token='')}'", ""),
    ],
    ids=["not installed", "failed", "no answer", "nothing in it"],
)
def test_a_command_that_gives_no_credentials_is_named_and_nobody_asks_as_nobody(
    lab: KubeLab, server: ApiServer, tmp_path: Path, script: str | None, why: str
) -> None:
    """Neighbour of P35: a 403 for system:anonymous sends people to their roles, and it is the login that is missing."""
    path = with_command(server, tmp_path, script)
    with pytest.raises(ApiError) as refused:
        lab.connect(Kubeconfig(path=path)).node("node-1")
    assert f"the kubeconfig {path} cannot be used" in str(refused.value)
    assert f"its command for credentials gave none: {why}" in str(refused.value)
    assert not server.requests()


def test_a_command_s_credentials_are_used(lab: KubeLab, server: ApiServer, tmp_path: Path) -> None:
    server.accept_tokens("t1")
    path = with_command(server, tmp_path, f"""echo '{CREDENTIAL.format(token='"token": "t1"')}'""")
    assert lab.connect(Kubeconfig(path=path)).node("node-1").name == "node-1"


def with_command(server: ApiServer, folder: Path, script: str | None) -> Path:
    """A kubeconfig whose user is told by a command, as those of managed clusters are. None: it is not installed."""
    command = {"command": str(folder / "login")} if script is None else {"command": "sh", "args": ["-c", script]}
    told = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", **command}
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"exec": told}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(made))
    return path


# ---- which of them


@pytest.mark.parametrize(
    ("setting", "environment", "access"),
    [
        ("off", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        ("auto", {}, None),
        (
            "auto",
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            InCluster(environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        ),
        ("/etc/kubeconfig", {}, Kubeconfig(path=Path("/etc/kubeconfig"))),
    ],
)
def test_the_setting_chooses_the_access(
    setting: str, environment: dict[str, str], access: InCluster | Kubeconfig | None
) -> None:
    assert choose_access(setting, environment) == access


def test_the_official_client_is_imported_by_connect_and_not_before() -> None:
    """It takes 25 MiB and 0.15 s and more; the kubelet comes first (DESIGN §10)."""
    program = """
import sys
from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.connect import connect
assert not any(name.startswith(("kubernetes", "urllib3", "pydantic")) for name in sys.modules)
connect(Kubeconfig(path="unused"))
assert "kubernetes" in sys.modules
assert not any(name.startswith(("kubernetes.client.models.", "kubernetes.client.api.")) for name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_an_api_server_with_an_ipv6_address_is_addressed_as_a_url_has_it(lab: KubeLab, tmp_path: Path) -> None:
    """Neighbour of P35: on such a cluster the variable has the bare address."""
    (tmp_path / "ca.crt").write_text(CERTIFICATE)
    (tmp_path / "token").write_text("t1")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    client = lab.connect(InCluster(directory=tmp_path, environment=environment))
    assert client.server() == "https://[fd00::1]:443"
