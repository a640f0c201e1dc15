"""What may be wrong with a node, each from what was gathered on it. Nothing is looked at here.

In the order in which things build on each other: a driver before its devices, a kubelet before its books, an agent
before what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sharer.core.device_id import uuid_part
from sharer.core.doctor.checkup import OLDEST_KUBELET, Check, fail, ok, unknown, version_of, warn
from sharer.core.doctor.survey import NodeSurvey
from sharer.core.edits import Injection
from sharer.core.report.node import SourceReport

_WHOLE_HOST = (
    'to see it: kubectl debug node/NODE -it --profile=sysadmin --custom=<(echo \'{"securityContext":{"runAsUser":0}}\')'
    " --image=IMAGE -- sharer doctor --node --host-root=/host"
)
OLD_S = 60.0  # a source should be read every 10 s at the latest
TESTED_KUBELET = (1, 33)  # the oldest whose behaviour the tests replay


def check_node(survey: NodeSurvey) -> Iterator[Check]:
    """Every check, once or, for sources and rights, once for each."""
    for one in _CHECKS:
        if one is not _kubelet_version or survey.rights != ():  # without an API server nobody tells it
            yield one(survey)
    yield from _sources(survey)
    yield from _rights(survey)


def _driver(survey: NodeSurvey) -> Check:
    name = "NVIDIA driver"
    if survey.module_version is None:
        return fail(
            name, "its kernel module is not loaded", "load it (modprobe nvidia), or wait for the driver's installation;"
            " dmesg says why it does not load",
        )  # fmt: skip
    library = None if survey.inventory is None else survey.inventory.driver_version
    if library is not None and library != survey.module_version:
        return fail(
            name, f"the kernel module is {survey.module_version} and the library {library}", "reboot the node, or"
            " reload the module once nothing uses the GPUs",
        )  # fmt: skip
    return ok(name, survey.module_version)


def _nvml(survey: NodeSurvey) -> Check:
    name = "NVML"
    if survey.inventory is None:
        problem, _, cure = (survey.driver_problem or "it was not asked").partition(". ")
        return fail(name, problem, cure or "see the line above")
    lost = [gpu.uuid for gpu in survey.inventory.gpus if gpu.lost is not None]
    if lost:
        return fail(name, f"GPUs do not answer: {', '.join(lost)}", "dmesg says why; a reset or a reboot may help")
    if not survey.inventory.gpus:
        return warn(name, "it knows no GPU", "run no agent on nodes without NVIDIA GPUs")
    if survey.inventory.warnings:
        return warn(name, "; ".join(survey.inventory.warnings), "nvidia-smi on the node may say more")
    return ok(name, f"answers, and knows {len(survey.inventory.gpus)} GPUs")


def _cdi(survey: NodeSurvey) -> Check:
    name, where = "CDI specs", " and ".join(survey.cdi_dirs)
    if survey.inventory is None or not survey.cdi_problems:
        return unknown(name, "which GPUs they should name is not known")
    missing = {uuid: why for uuid, why in survey.cdi_problems.items() if why is not None}
    if not missing:
        return ok(name, f"{where} name every GPU")
    cure = (
        "write them with nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml (GPU"
        " Operator: cdi.enabled=true); without, GPUs are injected by volume mounts or device nodes"
    )
    if len(missing) == len(survey.cdi_problems):
        return warn(name, next(iter(missing.values())), cure)
    return fail(name, f"{len(missing)} of {len(survey.cdi_problems)}: {next(iter(missing.values()))}", cure)


def _toolkit(survey: NodeSurvey) -> Check:
    name = "NVIDIA container toolkit"
    if survey.toolkit_problem is not None:
        return unknown(name, survey.toolkit_problem)
    if survey.toolkit is None and not survey.sees_host_etc:
        return unknown(name, "the host's /etc, with its configuration, is not mounted here", _WHOLE_HOST)
    if survey.toolkit is None:
        return warn(
            name, "no configuration was found", "install it, or use --injection=device-nodes where CDI specs and"
            " libraries are provided in another way",
        )  # fmt: skip
    injection = (None if survey.report is None else survey.report.status.node.injection) or ""
    ways = injection.split(",")
    if not survey.toolkit.volume_mounts and Injection.VOLUME_MOUNTS in ways and Injection.CDI not in ways:
        return warn(
            name,
            f"{survey.toolkit.path} does not let mounted paths name GPUs, and the agent names them by {injection}",
            "set accept-nvidia-visible-devices-as-volume-mounts = true there (GPU Operator: toolkit.env), or write CDI"
            " specs with nvidia-ctk cdi generate and enable CDI in the container runtime",
        )
    return ok(name, f"{survey.toolkit.path}, mode {survey.toolkit.mode}")


def _unprivileged(survey: NodeSurvey) -> Check:
    name = "NVIDIA_VISIBLE_DEVICES of pods that ask for nothing"
    if survey.toolkit is None:
        return unknown(name, "the toolkit's configuration would say, and was not seen")
    if not survey.toolkit.unprivileged_envvar:
        return ok(name, "is ignored in containers without privileges")
    return warn(
        name,
        "gives every GPU to a container that only sets it, where the nvidia runtime is the default; CUDA images do",
        f"set accept-nvidia-visible-devices-envvar-when-unprivileged = false in {survey.toolkit.path} (GPU Operator:"
        " toolkit.env), or keep the nvidia runtime for pods that name its RuntimeClass",
    )


def _reload(survey: NodeSurvey) -> Check:
    """systemd, asked to reload its units, gives each container anew what it can find by number, and no more."""
    name = "device nodes by number"
    if survey.unlinked_nodes is None:
        return unknown(name, "who keeps the cgroups cannot be seen")
    if not survey.unlinked_nodes:
        return ok(name, "systemd takes none from a container")
    return warn(
        name,
        f"no link in /dev/char to {', '.join(survey.unlinked_nodes)}: a systemctl daemon-reload may take them from"
        " containers that run",
        "nvidia-ctk system create-dev-char-symlinks --create-all, at each boot; a container that has lost its GPU has"
        " to be restarted",
    )


def _cgroups(survey: NodeSurvey) -> Check:
    name = "cgroups"
    match survey.cgroup:
        case "v2":
            return ok(name, "v2")
        case None:
            return unknown(
                name, "the mount cannot be read", "mount the host's /sys/fs/cgroup and name it --cgroup-root"
            )
        case other:
            return warn(name, other, "driver limits need v2 at /sys/fs/cgroup (systemd.unified_cgroup_hierarchy=1)")


def _dmem(survey: NodeSurvey) -> Check:
    name = "device memory controller"
    kernel = "" if survey.kernel is None else f", kernel {survey.kernel}"
    if survey.controllers is None:
        return unknown(name, "which controllers there are is not known")
    if "dmem" not in survey.controllers:
        return warn(
            name, f"no dmem controller{kernel}", "a kernel from 6.14 has one; without, drivers from r615 keep limits"
            " by themselves, which do not nest",
        )  # fmt: skip
    if survey.pod_controllers is not None and "dmem" not in survey.pod_controllers:
        return warn(
            name, f"dmem is not enabled for pods{kernel}", "write +dmem to cgroup.subtree_control of the kubelet's"
            " cgroup and those above it, so that limits can be set on containers",
        )  # fmt: skip
    return ok(name, f"dmem{kernel}")


def _kubelet(survey: NodeSurvey) -> Check:
    name = "kubelet's plugin socket"
    if survey.kubelet_problem is not None:
        return fail(
            name, survey.kubelet_problem, "mount the host's /var/lib/kubelet/device-plugins at the same path; it does"
            " not follow the kubelet's --root-dir",
        )  # fmt: skip
    if survey.plugin_dir_problem is not None:
        return fail(name, survey.plugin_dir_problem, "run as uid 0, and mount the directory writable")
    return ok(name, "the kubelet listens, and sockets can be made beside it")


def _list(survey: NodeSurvey) -> Check:
    name = "kubelet's pod resources"
    if survey.list_problem is None:
        return ok(name, "can be listed")
    return fail(
        name, survey.list_problem, "mount the directory with the socket, which is below the kubelet's --root-dir, and"
        " name it with --pod-resources-socket",
    )  # fmt: skip


def _checkpoint(survey: NodeSurvey) -> Check:
    name = "kubelet's checkpoint"
    if survey.checkpoint_problem is None:
        return ok(name, "can be read")
    return fail(
        name, survey.checkpoint_problem, "run as uid 0, and mount its directory: --device-plugin-dir, or where"
        " --checkpoint says",
    )  # fmt: skip


def _kubelet_version(survey: NodeSurvey) -> Check:
    name = "kubelet's version"
    version = version_of(survey.kubelet_version)
    if version is None:
        return unknown(name, "only the API server tells it, and was not asked or did not answer")
    if version < OLDEST_KUBELET:
        return fail(name, str(survey.kubelet_version), "pod resources are served from 1.27 on; upgrade the node")
    if version < TESTED_KUBELET:
        return warn(name, str(survey.kubelet_version), "older than what sharer is tested against (1.33)")
    return ok(name, str(survey.kubelet_version))


def _rivals(survey: NodeSurvey) -> Check:
    name = "other plugins for these GPUs"
    ours = set() if survey.report is None else {resource.name for resource in survey.report.status.resources}
    uuids = () if survey.inventory is None else tuple(gpu.uuid for gpu in survey.inventory.gpus)
    offered = sorted(
        resource
        for resource, ids in survey.registered.items()
        if resource not in ours and any(uuid_part(one) in uuids for one in ids)
    )
    found = [*(f"offers {resource}" for resource in offered), *(f"socket {one}" for one in survey.rival_sockets)]
    found += [f"DRA driver {one}" for one in survey.dra_drivers]
    if not found:
        return ok(name, "none was seen")
    return warn(
        name, "; ".join(found), "take the other one off this node: free slices are withheld from GPUs that two offer."
        " With the GPU Operator: the node's label nvidia.com/gpu.deploy.device-plugin=false",
    )  # fmt: skip


def _mps(survey: NodeSurvey) -> Check:
    name = "MPS"
    report = survey.report
    wanted = () if report is None else report.mps or ()
    bad = [f"{one.resource}: {gpu.problem}" for one in wanted for gpu in one.gpus.values() if gpu.problem is not None]
    if bad:
        return fail(name, "; ".join(bad), "see the log of the MPS DaemonSet (sharer mps)")
    if wanted:
        return ok(name, f"serves {', '.join(one.resource for one in wanted)}")
    if survey.mps_processes is None:
        return ok(name, "no policy here wants it; whether it runs all the same is not seen without the host's PIDs")
    if survey.mps_processes:
        found = f"runs, and nobody here wants it; processes: {', '.join(map(str, survey.mps_processes))}"
        return warn(name, found, "stop them: clients that find one join it unasked")
    return ok(name, "not in use")


def _agent(survey: NodeSurvey) -> Check:
    name = "agent"
    report = survey.report
    if report is None:
        return fail(name, survey.report_problem or "it does not answer", "run this where the agent runs, as root")
    policy = report.status.policy
    if policy.in_force is None:
        why = policy.refused or policy.unread or "none was found"
        return fail(name, f"no policy is in force: {why}", "write a policy; sharer policy check says what is wrong")
    if policy.refused is not None:
        return warn(
            name, f"the wanted policy is refused: {policy.refused}", "correct it; the one before stays in force"
        )
    return ok(name, f"version {report.status.agent}, policy {policy.in_force}")


def _slices(survey: NodeSurvey) -> Check:
    name = "slices"
    report = survey.report
    if report is None:
        return unknown(name, "no agent answers")
    sick = [f"{gpu.uuid}: {gpu.reason}" for gpu in report.status.gpus if gpu.health in ("unhealthy", "unknown")]
    if sick:
        return fail(
            name, "; ".join(sick), "after a repair: reset the GPU, or annotate the node with sharer.dev/recover"
        )
    if report.findings:
        found = report.findings[0]
        more = "" if len(report.findings) == 1 else f" (and {len(report.findings) - 1} more in sharer report)"
        return warn(name, f"{found.message}{more}", found.cure)
    if not report.status.resources:
        return warn(name, "none is offered", "sharer report says why for each GPU")
    return ok(name, ", ".join(f"{one.slices} × {one.name}, {one.free} free" for one in report.status.resources))


_CHECKS: tuple[Callable[[NodeSurvey], Check], ...] = (
    _driver, _nvml, _toolkit, _unprivileged, _cdi, _reload, _cgroups, _dmem, _kubelet, _list, _checkpoint,
    _kubelet_version, _rivals, _agent, _slices, _mps,
)  # fmt: skip


def _sources(survey: NodeSurvey) -> Iterator[Check]:
    """How old what the agent knows is."""
    for source in () if survey.report is None else survey.report.sources:
        yield _source(source)


def _source(source: SourceReport) -> Check:
    name = f"source {source.name}"
    age = "never read" if source.age_s is None else f"read {source.age_s:g} s ago"
    if source.problem is not None:
        return warn(name, f"{age}: {source.problem}", "the reason says what is missing; slices come back more slowly")
    if source.age_s is None:
        return unknown(name, age)
    if source.age_s > OLD_S:
        return warn(name, age, "the agent's log says what keeps it")
    return ok(name, age)


def _rights(survey: NodeSurvey) -> Iterator[Check]:
    if survey.rights is None:
        yield unknown("RBAC", survey.rights_problem or "the API server was not asked")
        return
    for right in survey.rights:
        group = f".{right.group}" if right.group else ""
        where = "" if right.namespace is None else f" in namespace {right.namespace}"
        name, what = f"RBAC: {right.purpose}", f"{right.verb} {right.resource}{group}{where}"
        rule = f'{{apiGroups: ["{right.group}"], resources: [{right.resource}], verbs: [{right.verb}]}}'
        match right.allowed:
            case True:
                yield ok(name, what)
            case False if right.optional:
                yield ok(name, f"{what} is not allowed, and needed for nothing else")
            case False:
                yield warn(name, f"{what} is not allowed", f"grant {rule}{where}")
            case None:
                yield unknown(name, f"{what}: could not be asked")
