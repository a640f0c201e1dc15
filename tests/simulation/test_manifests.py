from __future__ import annotations

import pytest

from sharer.core.errors import InputError
from sharer.simulation.kubelet import ContainerSpec
from sharer.simulation.manifests import read_manifests

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
  annotations:
    simulation.sharer.dev/start-after: 5m
    simulation.sharer.dev/run-for: 1h30m
spec:
  containers:
  - name: main
    resources:
      requests: {cpu: 500m, memory: 1Gi, nvidia.com/gpu.shared: 2}
      limits: {nvidia.com/gpu.shared: "2", memory: 1Gi}
"""
CONTAINERS = "containers: [{name: main, resources: {limits: {a.io/gpu: 1}}}]"


def one_pod(spec: str) -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}"


def workload(kind: str, spec: str, annotations: str = "{}") -> str:
    template = f"{{metadata: {{annotations: {annotations}}}, spec: {{{CONTAINERS}}}}}"
    head = f"apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: w, namespace: lab}}"
    return f"{head}\nspec: {{{spec}template: {template}}}"


def refusal(text: str) -> str:
    with pytest.raises(InputError) as refused:
        read_manifests(text.encode(), "pods.yaml")
    return str(refused.value)


def test_a_pod_is_its_extended_resources_and_its_times() -> None:
    (pod,) = read_manifests(POD.encode(), "pods.yaml").pods
    assert (pod.title, pod.start_after_s, pod.run_for_s) == ("default/train", 300.0, 5400.0)
    assert pod.containers == (ContainerSpec(name="main", limits={"nvidia.com/gpu.shared": 2}),)


def test_without_annotations_a_pod_comes_at_once_and_runs_for_ever() -> None:
    (pod,) = read_manifests(one_pod(f"{{{CONTAINERS}}}").encode(), "pods.yaml").pods
    assert (pod.start_after_s, pod.run_for_s) == (0.0, None)


def test_an_init_container_that_restarts_always_is_a_sidecar() -> None:
    text = one_pod(f"{{initContainers: [{{name: i}}, {{name: s, restartPolicy: Always}}], {CONTAINERS}}}")
    (pod,) = read_manifests(text.encode(), "pods.yaml").pods
    assert pod.init_containers == (ContainerSpec(name="i"), ContainerSpec(name="s", sidecar=True))


def test_a_deployment_is_as_many_pods_as_it_has_replicas() -> None:
    text = workload("Deployment", "replicas: 3, ", "{simulation.sharer.dev/start-after: 1m}")
    pods = read_manifests(text.encode(), "pods.yaml").pods
    assert [pod.title for pod in pods] == ["lab/w-0", "lab/w-1", "lab/w-2"]
    assert {pod.start_after_s for pod in pods} == {60.0}


def test_a_job_is_its_completions_of_which_only_some_run_at_once() -> None:
    pods = read_manifests(workload("Job", "completions: 5, parallelism: 2, ").encode(), "pods.yaml").pods
    assert [(pod.name, pod.job, pod.at_once) for pod in pods] == [(f"w-{n}", "lab/w", 2) for n in range(5)]


def test_every_document_and_every_item_of_a_list_counts_and_other_kinds_are_named() -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: web}}\n"
    found = read_manifests(f"{POD}---\n---\n{listed}".encode(), "pods.yaml")
    assert [pod.name for pod in found.pods] == ["train"]
    assert found.warnings == (
        "pods.yaml: document 3: Service web is passed over: only pods and what makes them are planned",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: }", "pods.yaml:1:4: not valid YAML: "),
        ("\x00", "pods.yaml: is not YAML: it is not text in UTF-8, or has characters that YAML may not have"),
        ("", "pods.yaml: has no pod; expected documents of kind Pod, Job, Deployment, ReplicaSet or StatefulSet"),
        ("- 1", "pods.yaml: document 1: is a list, not a Kubernetes object"),
        ("kind: Pod", "pods.yaml: document 1: has no apiVersion and kind"),
        ("{apiVersion: v1, kind: Pod, metadata: {}}", "pods.yaml: document 1: Pod: metadata.name is missing"),
        (one_pod("{}"), "pods.yaml: document 1: Pod p: its pod has no containers"),
        (one_pod("{containers: {name: a}}"), "pods.yaml: document 1: Pod p: containers is a mapping, not a list"),
        (f"{POD}---\n{POD}", "pods.yaml: pod default/train is there twice"),
        (POD.replace("5m", "5"), "Pod train: annotation simulation.sharer.dev/start-after: '5' is not a number with"),
        (POD.replace('"2"', "1.5"), "Pod train: container main asks for 1.5 nvidia.com/gpu.shared; a whole number"),
        (POD.replace('"2"', "true"), "Pod train: container main asks for True nvidia.com/gpu.shared; a whole number"),
        (POD.replace('"2"', "3"), "Pod train: container main requests 2 nvidia.com/gpu.shared with a limit of 3"),
        (POD.replace('nvidia.com/gpu.shared: "2", ', ""), "requests nvidia.com/gpu.shared without a limit"),
        (workload("Deployment", "replicas: -1, "), "Deployment w: replicas is -1; a whole number from 0 to 10000"),
        (
            workload("StatefulSet", "", "{simulation.sharer.dev/run-for: 1m}"),
            "StatefulSet w: simulation.sharer.dev/run-for is set, and the pods of a StatefulSet never end; use a Job",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_file_document_and_object(text: str, complaint: str) -> None:
    assert complaint in refusal(text)
