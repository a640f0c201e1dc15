from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharer.core.cluster.pod_asks import Ask, counts, pod_ask
from sharer.core.holders.observations import ContainerKind, ContainerSeen, PodPhase, PodSeen

RESOURCE = "nvidia.com/gpu.shared"
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def pod(
    *containers: tuple[ContainerKind, int],
    phase: PodPhase = PodPhase.RUNNING,
    node: str | None = "n",
    deleting: bool = False,
    cgroup_uid: str = "u",
) -> PodSeen:
    return PodSeen(
        uid="u",
        cgroup_uid=cgroup_uid,
        namespace="default",
        name="p",
        phase=phase,
        is_deleting=deleting,
        node_name=node,
        containers=tuple(
            ContainerSeen(name=f"c{number}", kind=kind, limits={RESOURCE: amount} if amount else {})
            for number, (kind, amount) in enumerate(containers)
        ),
    )


def asked(*containers: tuple[ContainerKind, int]) -> tuple[int, int]:
    found = pod_ask(pod(*containers))
    assert found is not None
    (ask,) = found.asks
    return ask.requested, ask.running


def test_a_pod_counts_while_it_is_bound_and_has_not_ended() -> None:
    """P31: of its nine pods four count."""
    nine = [
        pod((APP, 1)),
        pod((APP, 1), phase=PodPhase.PENDING),  # cannot pull its image
        pod((INIT, 1), (APP, 1), phase=PodPhase.PENDING),  # its init container runs
        pod((APP, 1), phase=PodPhase.PENDING, node=None),
        pod((APP, 1), phase=PodPhase.SUCCEEDED),
        pod((APP, 1), phase=PodPhase.FAILED),
        pod((APP, 1), phase=PodPhase.FAILED),  # Evicted
        pod((APP, 1), phase=PodPhase.FAILED),  # UnexpectedAdmissionError
        pod((APP, 1), deleting=True),
    ]
    assert [counts(one) for one in nine] == [True, True, True, False, False, False, False, False, True]
    assert sum(pod_ask(one) is not None for one in nine) == 4


def test_a_pod_of_which_nobody_knows_how_it_is_counts_until_it_is_said_to_have_ended() -> None:
    """Neighbour of P31: its node is lost, so its phase is Unknown; nobody can take its slice in the meantime."""
    assert counts(pod((APP, 1), phase=PodPhase.UNKNOWN))
    assert counts(pod((APP, 1), phase=PodPhase.UNKNOWN, deleting=True))
    assert not counts(pod((APP, 1), phase=PodPhase.FAILED, deleting=True)), "kept by a finalizer only"


def test_init_containers_run_one_after_the_other_and_before_the_others() -> None:
    """Neighbour of P31: what init containers asked for is taken for good."""
    assert asked((INIT, 2), (INIT, 3), (APP, 1)) == (3, 1)
    assert asked((INIT, 1), (APP, 2), (APP, 2)) == (4, 4)


def test_sidecars_run_beside_what_starts_after_them() -> None:
    assert asked((SIDECAR, 1), (INIT, 2), (APP, 1)) == (3, 2)
    assert asked((INIT, 2), (SIDECAR, 1), (APP, 1)) == (2, 2)
    assert asked((SIDECAR, 1), (SIDECAR, 1), (APP, 1)) == (3, 3)


def test_what_only_init_containers_ask_for_is_requested_and_used_by_nobody_later() -> None:
    assert asked((INIT, 1), (APP, 0)) == (1, 0)


def test_a_pod_without_extended_resources_asks_for_nothing() -> None:
    assert pod_ask(pod((APP, 0))) is None


def test_a_static_pod_counts_under_the_uid_that_its_node_knows() -> None:
    """Neighbour of P31: its mirror has another UID."""
    found = pod_ask(pod((APP, 1), cgroup_uid="hash"))
    assert found is not None
    assert found.uid == "hash"


def test_each_resource_counts_for_itself() -> None:
    both = ContainerSeen(name="c", kind=APP, limits={"a.b/x": 1, "a.b/y": 2})
    found = pod_ask(PodSeen(uid="u", cgroup_uid="u", namespace="d", name="p", phase=PodPhase.RUNNING, node_name="n",
                            containers=(both,)))  # fmt: skip
    assert found is not None
    assert found.asks == (
        Ask(resource="a.b/x", requested=1, running=1),
        Ask(resource="a.b/y", requested=2, running=2),
    )


@given(
    st.lists(st.tuples(st.sampled_from([INIT, SIDECAR]), st.integers(0, 4)), max_size=5),
    st.lists(st.tuples(st.just(APP), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_the_formula_is_what_the_kubelet_takes_when_it_reuses_what_init_containers_had(
    first: list[tuple[ContainerKind, int]], apps: list[tuple[ContainerKind, int]]
) -> None:
    """kubelet-contract §5, "Init containers and sidecars": reusable until a sidecar or an app container takes it."""
    containers = [*first, *apps]
    taken = reusable = 0
    for kind, amount in containers:
        fresh = max(0, amount - reusable)
        taken += fresh
        reusable = reusable + fresh if kind is INIT else reusable - (amount - fresh)
    found = pod_ask(pod(*containers))
    assert taken == (0 if found is None else found.asks[0].requested)
