"""What a running agent tells by HTTP: probes for the kubelet, metrics for a scraper, nothing for anybody else."""

from __future__ import annotations

import re
import socket

import pytest

from sharer.core.tell.metrics import METRICS, MetricKind
from tests.e2e.api import Api
from tests.e2e.conftest import MakeNode
from tests.e2e.gpus import GPU, A
from tests.e2e.node import Node
from tests.e2e.pages import HTTP, metrics, read, wait_page


def test_an_agent_is_alive_and_ready_once_the_kubelet_reads_its_lists(node: Node) -> None:
    agent = node.start_agent(HTTP)
    node.wait_listed(8)
    assert wait_page(agent, "/readyz", lambda status, _: status == 200)[1] == "ready\n"
    assert read(agent, "/healthz") == (200, "alive\n")


@pytest.mark.parametrize("path", ["/", "/report", "/debug/pprof/", "/metrics/", "/status"])
def test_there_are_three_pages_and_no_more(node: Node, path: str) -> None:
    """Threat 10."""
    agent = node.start_agent(HTTP)
    assert read(agent, path)[0] == 404
    assert read(agent, "/metrics", "POST")[0] == 405


def test_without_the_flag_nothing_listens(node: Node) -> None:
    agent = node.start_agent()
    node.wait_listed(8)
    assert "probes are served" not in agent.log
    inodes = {text[8:-1] for text in agent.open_files() if text.startswith("socket:[")}
    with open(f"/proc/{agent.pid}/net/tcp", encoding="ascii") as table:
        assert not inodes & {line.split()[9] for line in table.readlines()[1:]}


def test_who_is_not_ready_says_why_in_one_sentence(make_node: MakeNode) -> None:
    node = make_node(A, driver_installed=False)
    node.kubelet.start()
    node.policy_file.unlink()
    agent = node.start_agent(HTTP)
    status, body = read(agent, "/readyz")
    assert (status, body.count("\n")) == (503, 1)
    assert body.startswith("no policy is in force: ")
    node.write_policy("rules: 7\n")
    wait_page(agent, "/readyz", lambda _, body: f"{node.policy_file}" in body)


def test_a_driver_that_is_missing_is_why_an_agent_is_not_ready(make_node: MakeNode) -> None:
    node = make_node(A, driver_installed=False)
    node.kubelet.start()
    agent = node.start_agent(HTTP)
    body = wait_page(agent, "/readyz", lambda _, body: "driver" in body)[1]
    assert "--driver-library" in body
    agent.wait_log("libnvidia-ml")
    assert len(agent.said("libnvidia-ml")) == 1, "told once, not by everybody who misses it"
    node.gpus.install()
    node.wait_listed(4)
    wait_page(agent, "/readyz", lambda status, _: status == 200)


def test_a_kubelet_that_has_gone_is_why_an_agent_is_not_ready(node: Node) -> None:
    agent = node.start_agent(HTTP)
    node.wait_listed(8)
    wait_page(agent, "/readyz", lambda status, _: status == 200)
    node.kubelet.kill()
    assert wait_page(agent, "/readyz", lambda status, _: status == 503)[1] == (
        f"not registered with the kubelet: {GPU}\n"
    )
    assert read(agent, "/healthz")[0] == 200


def test_every_metric_is_there_from_the_start(make_node: MakeNode) -> None:
    """Also on a node that has nothing yet: what can be expected is at 0, so that the first failure shows as a rise."""
    node = make_node(A, driver_installed=False)
    agent = node.start_agent(HTTP)
    text = read(agent, "/metrics")[1]
    for metric in METRICS:
        kind = metric.kind.value
        name = metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name
        assert re.search(rf"^# TYPE {name}(_total)? {kind}$", text, re.MULTILINE), metric.name
    found = metrics(agent)
    assert found['sharer_kubelet_requests_total{code="INVALID_ARGUMENT",method="Allocate"}'] == 0
    assert found['sharer_kubelet_request_seconds_count{method="Allocate"}'] == 0
    assert found['sharer_api_errors_total{code="403",verb="list"}'] == 0
    assert found['sharer_process_findings{kind="leaked"}'] == 0


def test_metrics_count_slices_and_name_their_holder_for_as_long_as_it_holds(node: Node) -> None:
    """P39: pod, namespace, container, slice ID and GPU are labels of their own, and series end with the pod."""
    agent = node.start_agent(HTTP)
    node.wait_listed(8)
    node.kubelet.wait_capacity(GPU, 8)
    pod = node.kubelet.start_pod("train", {GPU: 1})
    [ids] = [ids for container in pod.containers for ids in container.ids.values()]
    uuid = ids[0].partition("::")[0]
    wait_page(agent, "/metrics", lambda _, text: 'pod="train"' in text)
    found = metrics(agent)
    [promise] = [name for name in found if name.startswith("sharer_slice_promise_bytes")]
    assert f'resource="{GPU}",slice="{ids[0]}"' in promise
    assert found[promise] == 20480 * 2**20
    assert found[f'sharer_slices{{gpu="{uuid}",resource="{GPU}",state="held"}}'] == 1
    assert found[f'sharer_slices{{gpu="{uuid}",resource="{GPU}",state="free"}}'] == 3
    assert found['sharer_kubelet_requests_total{code="OK",method="Allocate"}'] == 1
    assert found['sharer_kubelet_request_seconds_count{method="Allocate"}'] == 1
    assert found[f'sharer_registrations_total{{resource="{GPU}",result="OK"}}'] == 1
    verified = f'sharer_container_limit_verified{{container="main",enforcer="watch",gpu="{uuid}"'
    wait_page(agent, "/metrics", lambda _, text: f"{verified}" in text)
    node.kubelet.end_pod("train")
    wait_page(agent, "/metrics", lambda _, text: 'pod="train"' not in text)


def test_an_address_that_is_taken_is_warned_of_and_sharing_goes_on(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = node.start_agent(f"--http=127.0.0.1:{port}")
        node.wait_listed(8)
        said = agent.wait_log(f"cannot listen on 127.0.0.1 port {port} (--http)")
    assert " WARNING " in said


def test_neither_a_page_nor_the_log_tells_the_token(node: Node, api: Api) -> None:
    secret = "eyJhbGciOi-secret"
    api.server.accept_tokens("another")
    api.write_token(secret)
    agent = node.start_agent(HTTP, *api.flags)
    agent.wait_log("does not know sharer's credentials")
    assert secret not in read(agent, "/metrics")[1] + read(agent, "/readyz")[1] + agent.log
