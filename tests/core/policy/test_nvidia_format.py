"""The NVIDIA plugin's config format: same slices and names as that plugin gives, and no setting dropped in silence."""

from __future__ import annotations

import pytest

from sharer.core.policy.model import (
    Auto,
    ComputePolicy,
    Exclusive,
    Match,
    MemoryPolicy,
    Mig,
    Mps,
    Rule,
    TimeSlicing,
    resource_for,
)
from sharer.core.policy.text import to_yaml
from tests.core.policies import only, read, refusal

WHOLE = Rule(resource=None, sharing=Exclusive(), request_max=None)
SHARED = MemoryPolicy(limit=None)


def config(*entries: str, kind: str = "timeSlicing", switches: str = "", flags: str = "") -> str:
    """A config with these entries of `resources`, each without its braces."""
    resources = ", ".join(f"{{{entry}}}" for entry in entries)
    return f"version: v1\nflags: {{{flags}}}\nsharing:\n  {kind}: {{{switches}resources: [{resources}]}}\n"


GPU4 = "name: nvidia.com/gpu, replicas: 4"


def test_time_slicing_gives_replicas_without_limits_under_the_plain_name() -> None:
    policy = read(config(GPU4))
    assert policy.rules == (
        Rule(
            resource="nvidia.com/gpu",
            sharing=TimeSlicing(slices=4, slice_memory_bytes=None),
            memory=MemoryPolicy(limit=None),
            compute=ComputePolicy(percent=None),
            request_max=None,
        ),
    )
    assert policy.warnings == ()


def test_mps_divides_memory_and_compute_and_gives_one_slice_to_a_container() -> None:
    (rule,) = read(config(GPU4, kind="mps")).rules
    assert rule == Rule(
        resource="nvidia.com/gpu",
        sharing=Mps(slices=4, slice_memory_bytes=None),
        memory=MemoryPolicy(limit=Auto.AUTO, enforce=("driver", "mps", "watch")),
        compute=ComputePolicy(percent=Auto.AUTO),
        request_max=1,
    )


def test_renaming_adds_shared_to_what_is_shared() -> None:
    (rule,) = read(config(GPU4, switches="renameByDefault: true, ")).rules
    assert resource_for(rule, None) == "nvidia.com/gpu.shared"
    mig = config("name: nvidia.com/mig-1g.10gb, replicas: 2", switches="renameByDefault: true, ")
    first, *_ = read(mig).rules
    assert resource_for(first, "1g.10gb") == "nvidia.com/mig-1g.10gb.shared"


def test_a_request_for_more_than_one_is_bounded_only_where_it_says_so() -> None:
    assert read(config(GPU4, switches="failRequestsGreaterThanOne: true, ")).rules[0].request_max == 1
    assert read(config(GPU4, switches="failRequestsGreaterThanOne: false, ")).rules[0].request_max is None
    assert read(config(GPU4, kind="mps", switches="failRequestsGreaterThanOne: true, ")).rules[0].request_max == 1
    assert only(refusal(config(GPU4, kind="mps", switches="failRequestsGreaterThanOne: false, "))) == (
        "sharing.mps.failRequestsGreaterThanOne: a container has one slice at most under mps, because an MPS limit is"
        " one process's; remove this"
    )


def test_without_sharing_every_gpu_is_offered_whole() -> None:
    assert read("version: v1").rules == (WHOLE,)
    assert read("flags: {migStrategy: none}").rules == (WHOLE,)


def test_the_prefix_of_a_resource_may_be_left_out() -> None:
    assert read(config("name: gpu, replicas: 4")) == read(config(GPU4))


def test_one_replica_means_not_shared() -> None:
    """P03: with which the plugin does not start."""
    for kind in ("timeSlicing", "mps"):
        text = config("name: nvidia.com/gpu, replicas: 1", kind=kind, switches="renameByDefault: true, ")
        assert read(text).rules == (WHOLE,)
    assert "expected an integer of 1 or more, found the number 0" in only(
        refusal(config("name: nvidia.com/gpu, replicas: 0"))
    )
    assert only(refusal(config("name: nvidia.com/gpu"))).endswith("replicas: is missing; write replicas: 4")
    assert only(refusal(config("replicas: 4"))).endswith("name: is missing; write name: nvidia.com/gpu")


# --- MIG ---


def test_mixed_offers_every_profile_and_shares_those_that_are_listed() -> None:
    """P20: nvidia.com/mig-1g.10gb.me is the profile 1g.10gb+me."""
    entries = ("name: nvidia.com/mig-1g.10gb.me, replicas: 3", "name: nvidia.com/mig-2g.20gb, replicas: 1", GPU4)
    policy = read(config(*entries, flags="migStrategy: mixed"))
    assert policy.rules == (
        Rule(
            match=Match(mig_profile="1g.10gb+me"),
            resource="nvidia.com/mig-1g.10gb.me",
            sharing=Mig(replicas=3),
            memory=SHARED,
            request_max=None,
        ),
        Rule(
            match=Match(mig_profile="2g.20gb"),
            resource="nvidia.com/mig-2g.20gb",
            sharing=Mig(replicas=1),
            request_max=None,
        ),
        Rule(sharing=Mig(replicas=1), request_max=None),
        Rule(
            resource="nvidia.com/gpu",
            sharing=TimeSlicing(slices=4, slice_memory_bytes=None),
            memory=SHARED,
            request_max=None,
        ),
    )
    assert [resource_for(rule, "1g.10gb+me") for rule in policy.rules[::2]] == ["nvidia.com/mig-1g.10gb.me"] * 2
    assert policy.warnings == ()


def test_listed_mig_resources_without_a_mig_strategy_mean_mixed_and_warn() -> None:
    policy = read(config("name: nvidia.com/mig-1g.10gb, replicas: 2"))
    assert [type(rule.sharing) for rule in policy.rules] == [Mig, Mig, Exclusive]
    assert "flags.migStrategy is not set; mixed is assumed" in policy.warnings[0]


@pytest.mark.parametrize("strategy", ["none", "single"])
def test_listed_mig_resources_that_the_strategy_does_not_make_are_refused(strategy: str) -> None:
    text = config("name: nvidia.com/mig-1g.10gb, replicas: 2", flags=f"migStrategy: {strategy}")
    assert only(refusal(text)).endswith(
        f"there is no nvidia.com/mig-1g.10gb with flags.migStrategy: {strategy}; set it to mixed"
    )


def test_single_offers_mig_devices_as_gpus_and_warns_of_the_difference() -> None:
    policy = read(config(GPU4, flags="migStrategy: single", switches="renameByDefault: true, "))
    assert policy.rules == (
        Rule(resource="nvidia.com/gpu.shared", sharing=Mig(replicas=4), memory=SHARED, request_max=None),
    )
    assert "flags.migStrategy: GPUs without MIG mode are not offered" in policy.warnings[0]
    assert read("version: v1\nflags: {migStrategy: single}").rules == (
        Rule(resource="nvidia.com/gpu", sharing=Mig(replicas=1), request_max=None),
    )


def test_mps_on_mig_devices_is_refused() -> None:
    assert "MPS does not share MIG devices" in only(
        refusal(config("name: nvidia.com/mig-1g.10gb, replicas: 2", kind="mps", flags="migStrategy: mixed"))
    )


# --- refused, with the way to say it ---


def test_four_mistakes_that_the_plugin_swallows_have_four_messages() -> None:
    """P01: sharing switches in `flags`, wrong letter case, invented keys of `devices`, replicas without resources."""
    in_flags = refusal(
        config(GPU4, flags="migStrategy: none, renameByDefault: true, failRequestsGreaterThanOne: false")
    )
    wrong_case = refusal("version: v1\nsharing: {TimeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
    invented = refusal(config("name: nvidia.com/gpu, replicas: 4, devices: {names: [a, b]}"))
    no_resources = refusal("version: v1\nsharing: {timeSlicing: {replicas: 4}}")
    home = "unknown key; it belongs under sharing.timeSlicing or under sharing.mps. Known here: "
    assert [problem.split(": ", 1)[1][: len(home) + 40].split(home)[0] for problem in in_flags] == [
        "flags.renameByDefault: ",
        "flags.failRequestsGreaterThanOne: ",
    ]
    assert only(wrong_case) == (
        "sharing.TimeSlicing: unknown key; letter case counts, write 'timeSlicing'. Known here: mps, timeSlicing"
    )
    assert only(invented) == (
        "sharing.timeSlicing.resources[0].devices: expected all, found a mapping with 'names'; devices has no keys in"
        " the NVIDIA plugin"
    )
    assert [problem.split(": ", 1)[1] for problem in no_resources] == [
        "sharing.timeSlicing.resources: is missing; write a list of entries with name and replicas",
        "sharing.timeSlicing.replicas: unknown key; it belongs under sharing.timeSlicing.resources[]."
        " Known here: failRequestsGreaterThanOne, renameByDefault, resources",
    ]


def test_a_config_in_the_wrong_letter_case_is_still_known_as_one() -> None:
    """P01."""
    problems = refusal("Version: v1\nSharing: {}")
    assert [problem.split("; ")[1].split(".")[0] for problem in problems] == [
        "letter case counts, write 'version'",
        "letter case counts, write 'sharing'",
    ]


@pytest.mark.parametrize("replicas", ['"4"', "4.0", "true", "null", "[4]", "0x4", "010", "1_0", "1e1"])
def test_replicas_are_a_plain_decimal_integer(replicas: str) -> None:
    """P02."""
    problem = only(refusal(config(f"name: nvidia.com/gpu, replicas: {replicas}")))
    assert problem.startswith("sharing.timeSlicing.resources[0].replicas: expected an integer of 1 or more, found ")


def test_a_list_of_devices_is_a_list_in_every_form_that_the_plugin_ignores() -> None:
    """P02: their own plugin shares every GPU whatever stands here."""
    assert read(config(f"{GPU4}, devices: all")) == read(config(GPU4))
    for devices, cure in (
        ("[0, 1]", "match: {uuid: [GPU-…]}"),
        ("[GPU-5a3fc4a0-1f0e-4c5e-9d2b-7e6f1a2b3c4d]", "match: {uuid: [GPU-…]}"),
        ("2", "with match in sharer's own format"),
        ('"2"', "expected all, found the quoted text '2'"),
        ("some", "expected all, found the text 'some'"),
    ):
        assert cure in only(refusal(config(f"{GPU4}, devices: {devices}")))


def test_a_new_name_is_refused_unless_it_is_the_one_that_is_given_anyway() -> None:
    assert read(config(f"{GPU4}, rename: gpu")) == read(config(GPU4))
    renamed = config(f"{GPU4}, rename: nvidia.com/gpu.shared", switches="renameByDefault: true, ")
    assert read(renamed) == read(config(GPU4, switches="renameByDefault: true, "))
    assert only(refusal(config(f"{GPU4}, rename: nvidia.com/gpu.quarter"))) == (
        "sharing.timeSlicing.resources[0].rename: the NVIDIA plugin ignores this and offers nvidia.com/gpu; remove it"
        " to keep that name, or write a rule with resource: nvidia.com/gpu.quarter in sharer's own format"
    )


def test_names_of_ones_own_are_refused_unless_they_are_the_plugins() -> None:
    assert read('version: v1\nresources: {gpus: [{pattern: "*", name: gpu}]}').rules == (WHOLE,)
    for resources in (
        'gpus: [{pattern: "*A100*", name: gpu}]',
        'gpus: [{pattern: "*", name: a100}]',
        'mig: [{pattern: "*", name: gpu}]',
    ):
        assert "write rules with match.product and resource" in only(
            refusal(f"version: v1\nresources: {{{resources}}}")
        )


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu.shared", "nvidia.com/a100", "example.com/gpu", "nvidia.com/mig-1g", "mig-1c.2g.20gb"]
)
def test_a_resource_that_the_plugin_does_not_make_is_refused(name: str) -> None:
    problem = only(refusal(config(f"name: {name}, replicas: 4")))
    assert "no GPU has the resource" in problem
    assert ("set renameByDefault: true" in problem) == name.endswith(".shared")


def test_a_resource_is_listed_once() -> None:
    assert only(refusal(config(GPU4, "name: gpu, replicas: 2"))) == (
        "sharing.timeSlicing.resources[1].name: nvidia.com/gpu is already listed at sharing.timeSlicing.resources[0];"
        " keep one of the two"
    )


def test_both_ways_of_sharing_at_once_are_refused() -> None:
    both = "version: v1\nsharing:\n" + "".join(
        f"  {kind}: {{resources: [{{{GPU4}}}]}}\n" for kind in ("timeSlicing", "mps")
    )
    assert "timeSlicing and mps exclude each other" in only(refusal(both))


def test_more_replicas_than_the_kubelet_can_receive_are_refused() -> None:
    """P04: 16,384 are what somebody really has."""
    assert read(config("name: nvidia.com/gpu, replicas: 16384"))
    assert "the kubelet receives at most 4194304" in only(refusal(config("name: nvidia.com/gpu, replicas: 65536")))


def test_the_two_formats_do_not_mix() -> None:
    assert "rules: unknown key; it belongs to sharer's own format" in only(refusal("version: v1\nrules: []"))
    assert "'v2' is unknown; allowed: v1" in only(refusal("version: v2"))


# --- settings without meaning here ---


def test_each_flag_is_accepted_with_one_warning_that_names_our_setting() -> None:
    text = """
version: v1
flags:
  migStrategy: none
  failOnInitError: true
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: "/"
  nvidiaDevRoot: /
  gdrcopyEnabled: false
  gdsEnabled: false
  mofedEnabled: false
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: envvar
    deviceIDStrategy: uuid
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    kubeletSocket: /var/lib/kubelet/device-plugins/kubelet.sock
    cdiFeatureFlags: [a]
  gfd: {oneshot: false, noTimestamp: false, sleepInterval: 60s, outputFile: a, machineTypeFile: b}
imex: {channelIDs: [0], required: false}
"""
    policy = read(text)
    assert policy.rules == (WHOLE,)
    paths = [warning.split(": ")[1] for warning in policy.warnings]
    assert len(paths) == len(set(paths)) == 9 + 8 + 1 + 1
    assert (
        "flags.plugin.deviceListStrategy: has no effect in a policy; it is a setting of the agent: --injection"
        in (policy.warnings[10].split(": ", 1)[1])
    )


def test_flags_are_checked_like_everything_else() -> None:
    """P01, P02."""
    assert only(refusal("version: v1\nflags: {failOnInitError: yes}")) == (
        "flags.failOnInitError: expected true or false, found yes, which is a boolean to some YAML parsers"
    )
    assert "did you mean 'passDeviceSpecs'?" in only(refusal("version: v1\nflags: {plugin: {passDeviceSpec: true}}"))
    assert "'Mixed' is unknown; did you mean 'mixed'?" in only(refusal("version: v1\nflags: {migStrategy: Mixed}"))
    assert "flags.gfd.oneShot: unknown key; letter case counts, write 'oneshot'." in only(
        refusal("version: v1\nflags: {gfd: {oneShot: true}}")
    )


# --- conversion ---


@pytest.mark.parametrize(
    "text",
    [
        "version: v1",
        config(GPU4),
        config(GPU4, kind="mps", switches="renameByDefault: true, "),
        config(GPU4, flags="migStrategy: single"),
        config(
            GPU4,
            "name: nvidia.com/mig-1g.10gb, replicas: 2",
            "name: nvidia.com/mig-1g.10gb.me, replicas: 3",
            flags="migStrategy: mixed",
            switches="renameByDefault: true, failRequestsGreaterThanOne: true, ",
        ),
    ],
)
def test_a_config_converted_to_our_format_says_the_same(text: str) -> None:
    assert read(to_yaml(read(text))) == read(text)
