"""The questions that gpu-limits.md leaves open, each a function that finds the answer on a node."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pynvml

from sharer.core.quantities import GIB, MIB, format_bytes
from tests.hardware.node import NO_LIMIT, Got, Node, Skipped

Question = Callable[[Node], str]
STEP = 64 * MIB
_ENOUGH = 2 * GIB  # a limit that a context fits into, with room


def what_is_this(node: Node) -> str:
    """GPU, driver, kernel"""
    name, driver = pynvml.nvmlDeviceGetName(node.gpu), pynvml.nvmlSystemGetDriverVersion()
    dmem = "with dmem" if node.has_dmem else "without dmem"
    return f"{name}, {format_bytes(node.total_bytes)}, driver {driver}, kernel {platform.release()} {dmem}"


def can_a_limit_be_set_and_read_back(node: Node) -> str:
    """Can a limit be set and read back?"""
    with node.cgroup("a") as cgroup:
        code = node.set(cgroup, 0, _ENOUGH)
        if code != 0:
            raise Skipped(f"no: NVML error {code}")
        return _told(node.get(cgroup))


def which_backend(node: Node) -> str:
    """Which backend? (dmem: there is a file dmem.max)"""
    with node.cgroup("a") as cgroup:
        node.set(cgroup, 0, _ENOUGH)
        file = cgroup / "dmem.max"
        return f"dmem; dmem.max says {file.read_text().split()}" if file.exists() else "misc: there is no file dmem.max"


def what_says_the_getter_without_a_limit(node: Node) -> str:
    """What does the getter say where no limit was set?"""
    with node.cgroup("a") as cgroup:
        return _told(node.get(cgroup))


def what_says_it_without_the_controller(node: Node) -> str:
    """And where the cgroup above did not enable dmem?"""
    if not node.has_dmem:
        raise Skipped("this kernel has no dmem controller")
    with node.cgroup("a", "b") as cgroup:
        (cgroup.parent / "cgroup.subtree_control").write_text("-dmem")
        return f"set: NVML error {node.set(cgroup, 0, _ENOUGH)}; get: {_told(node.get(cgroup))}"


def is_a_request_of_zero_taken(node: Node) -> str:
    """Is a soft limit of 0 taken with a hard one? (request 0)"""
    with node.cgroup("a") as cgroup:
        return f"NVML error {node.set(cgroup, 0, _ENOUGH)}; then {_told(node.get(cgroup))}"


def does_the_hook_take_a_request_of_zero(node: Node) -> str:
    """Does the toolkit's hook take NVIDIA_GPU_MEMORY_REQUEST=0?"""
    hook = shutil.which("nvidia-cdi-hook") or shutil.which("nvidia-ctk")
    if hook is None:
        raise Skipped("NVIDIA's container toolkit is not installed")
    with node.cgroup("a") as cgroup, subprocess.Popen(["sleep", "60"]) as process:
        try:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            bundle = Path("/run") / f"sharer-hardware-{os.getpid()}"
            bundle.mkdir()
            env = ["NVIDIA_GPU_MEMORY_REQUEST=0", f"NVIDIA_GPU_MEMORY_LIMIT={_ENOUGH // MIB}"]
            config = {"ociVersion": "1.1.0", "root": {"path": str(bundle)}, "process": {"env": env}}
            (bundle / "config.json").write_text(json.dumps(config))
            state = {
                "ociVersion": "1.1.0", "id": "sharer", "status": "creating", "pid": process.pid, "bundle": str(bundle),
            }  # fmt: skip
            command = [hook, *(["hook"] if hook.endswith("ctk") else []), "apply-cuda-memory-limits"]
            done = subprocess.run(
                command, input=json.dumps(state), capture_output=True, text=True, check=False, timeout=30
            )
            shutil.rmtree(bundle)
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            return f"exit {done.returncode} {said}; then {_told(node.get(cgroup))}"
        finally:
            process.kill()


def what_is_the_smallest_limit(node: Node) -> str:
    """What is the smallest hard limit, and are limits rounded?"""
    with node.cgroup("a") as cgroup:
        answers = []
        for amount in (0, 1, 4095, 4096, 65536, MIB - 1, MIB, 2 * MIB + 1, 64 * MIB, _ENOUGH + 1):
            code = node.set(cgroup, 0, amount)
            found = node.get(cgroup).hard_bytes
            answers.append(f"{amount}: " + (f"error {code}" if code else "taken" if found == amount else f"-> {found}"))
        return ", ".join(answers)


def may_it_exceed_the_gpu(node: Node) -> str:
    """May a hard limit be all the GPU has, or more?"""
    with node.cgroup("a") as cgroup:
        return ", ".join(f"total{extra:+d}: error {node.set(cgroup, 0, node.total_bytes + extra)}" for extra in (0, 1))


def may_anybody_read(node: Node) -> str:
    """What may a user without rights do?"""
    with node.cgroup("a") as cgroup:
        node.set(cgroup, 0, _ENOUGH)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            os.write(writing, f"get: error {node.get(cgroup).code}, set: error {node.set(cgroup, 0, GIB)}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            return answer.read()


def what_say_mig_handles(node: Node) -> str:
    """What is answered for a MIG device?"""
    try:
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(node.gpu, 0)
    except pynvml.NVMLError as error:
        raise Skipped(f"GPU 0 has no MIG device ({error})") from None
    with node.cgroup("a") as cgroup:
        return f"MIG: error {node.set(cgroup, 0, GIB, mig)}, its GPU: error {node.set(cgroup, 0, GIB)}"


def what_becomes_of_limits_of_removed_cgroups(node: Node) -> str:
    """Is the limit of a removed cgroup gone, also for a new one of that name?"""
    with node.cgroup("a") as cgroup:
        node.set(cgroup, 0, _ENOUGH)
        cgroup.rmdir()
        gone = _told(node.get(cgroup))
        cgroup.mkdir()
        return f"removed: {gone}; made again: {_told(node.get(cgroup))}"


def what_becomes_of_reservations(node: Node) -> str:
    """What stays reserved above a cgroup that is removed with a soft limit, and can it be taken back there?"""
    with node.cgroup("a", "b", "c") as leaf:
        b, a = leaf.parent, leaf.parent.parent

        def above() -> str:
            return " / ".join(format_bytes(node.get(path).soft_bytes) for path in (b, a, node.top))

        node.set(leaf, GIB, _ENOUGH)
        with_leaf = above()
        leaf.rmdir()
        after = above()
        code = node.set(b, 0, NO_LIMIT)
        taken_back = above()
        node.set(a, 0, NO_LIMIT)
        return (
            f"with it: {with_leaf}; removed: {after}; cleared one above (error {code}): {taken_back}; then: {above()}"
        )


def how_long_does_a_call_take(node: Node) -> str:
    """How long do set and get take? How many cgroups may have limits?"""
    with node.cgroup("a") as cgroup:
        sets, gets = [], []
        for number in range(200):
            begun_s = time.perf_counter()
            node.set(cgroup, 0, _ENOUGH + number * MIB)
            sets.append(time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            node.get(cgroup)
            gets.append(time.perf_counter() - begun_s)
    codes = []
    for number in range(500):
        (node.top / f"n{number}").mkdir()
        codes.append(node.set(node.top / f"n{number}", 0, _ENOUGH))
    refused = len([code for code in codes if code])
    return (
        f"set {statistics.median(sets) * 1e6:.0f} µs (worst {max(sets) * 1e6:.0f}), get"
        f" {statistics.median(gets) * 1e6:.0f} µs (worst {max(gets) * 1e6:.0f}); 500 cgroups, {refused} refused"
    )


def what_does_a_context_take(node: Node) -> str:
    """How much does a context take, and what does a program see, without a limit?"""
    with node.cgroup("a") as cgroup, node.program(cgroup) as program:
        made = program.ask("context")
        return f"{made}; used {format_bytes(node.get(cgroup).used_bytes)}; sees {_seen(program.ask('info'))}"


def what_holds_a_limit_on_the_leaf(node: Node) -> str:
    """Limit 2 GiB on the leaf: what does a program see, and get?"""
    with node.cgroup("a", "b") as leaf:
        node.set(leaf, 0, _ENOUGH)
        return _filled(node, leaf)


def what_holds_a_limit_above(node: Node) -> str:
    """Limit 2 GiB on the cgroup above only: what does a program see, and get?"""
    with node.cgroup("a", "b") as leaf:
        node.set(leaf.parent, 0, _ENOUGH)
        return _filled(node, leaf)


def what_fits_beside_a_context(node: Node) -> str:
    """Under which limit can a context still be made?"""
    answers = []
    for amount in (64, 128, 256, 384, 512, 600, 768, 1024):
        with node.cgroup("a") as cgroup:
            node.set(cgroup, 0, amount * MIB)
            with node.program(cgroup) as program:
                answers.append(f"{amount} MiB: {program.ask('context')}")
    return ", ".join(answers)


def what_of_a_limit_below_the_present_use(node: Node) -> str:
    """A limit below what is used already: is it taken, does the program live, and allocate?"""
    with node.cgroup("a") as cgroup, node.program(cgroup) as program:
        program.ask("context")
        program.ask(f"alloc {_ENOUGH}")
        code = node.set(cgroup, 0, GIB)
        after = f"error {code}, then {_told(node.get(cgroup))}; writes: {program.ask('touch')}"
        more = program.ask(f"alloc {STEP}")
        program.ask("free")
        return f"{after}; allocates: {more}; after freeing: {program.ask(f'alloc {STEP}')}"


def is_managed_memory_held(node: Node) -> str:
    """Managed memory above the limit: is it held, is it counted?"""
    with node.cgroup("a") as cgroup:
        node.set(cgroup, 0, _ENOUGH)
        with node.program(cgroup) as program:
            program.ask("context")
            before, amount = node.get(cgroup).used_bytes, _ENOUGH + GIB
            answer = program.ask(f"managed {amount}")
            counted = format_bytes(node.get(cgroup).used_bytes - before)
            return f"{answer}; counted {counted} of {format_bytes(amount)}"


def do_two_processes_share_a_limit(node: Node) -> str:
    """Do two processes in one cgroup share its limit?"""
    with node.cgroup("a") as cgroup:
        node.set(cgroup, 0, 4 * GIB)
        with node.program(cgroup) as one, node.program(cgroup) as other:
            made = [one.ask("context"), other.ask("context")]
            both = [program.ask(f"alloc {2 * GIB}") for program in (one, other)]
            return f"contexts {made}; 2 GiB each of 4: {both}; used {format_bytes(node.get(cgroup).used_bytes)}"


def what_of_a_process_that_is_moved(node: Node) -> str:
    """A process moved into a cgroup after it has allocated: is its use counted there?"""
    with node.cgroup("a") as cgroup, node.cgroup("z") as other, node.program(cgroup) as program:
        program.ask("context")
        program.ask(f"alloc {GIB}")
        (other / "cgroup.procs").write_text((cgroup / "cgroup.procs").read_text())
        node.set(other, 0, _ENOUGH)
        return f"left {format_bytes(node.get(cgroup).used_bytes)}, new {format_bytes(node.get(other).used_bytes)}"


QUESTIONS: tuple[Question, ...] = (
    what_is_this, can_a_limit_be_set_and_read_back, which_backend, what_says_the_getter_without_a_limit,
    what_says_it_without_the_controller, is_a_request_of_zero_taken, does_the_hook_take_a_request_of_zero,
    what_is_the_smallest_limit, may_it_exceed_the_gpu, may_anybody_read, what_say_mig_handles,
    what_becomes_of_limits_of_removed_cgroups, what_becomes_of_reservations, how_long_does_a_call_take,
    what_does_a_context_take, what_holds_a_limit_on_the_leaf, what_holds_a_limit_above, what_fits_beside_a_context,
    what_of_a_limit_below_the_present_use, is_managed_memory_held, do_two_processes_share_a_limit,
    what_of_a_process_that_is_moved,
)  # fmt: skip


def _told(got: Got) -> str:
    if got.code != 0:
        return f"error {got.code}"
    hard = "none" if got.hard_bytes is None else format_bytes(got.hard_bytes)
    return f"hard {hard}, soft {format_bytes(got.soft_bytes)}, used {format_bytes(got.used_bytes)}"


def _seen(answer: str) -> str:
    numbers = answer.split()
    if len(numbers) != 2 or not all(map(str.isdigit, numbers)):
        return answer
    return f"{format_bytes(int(numbers[0]))} free of {format_bytes(int(numbers[1]))}"


def _filled(node: Node, leaf: Path) -> str:
    with node.program(leaf) as program:
        made, seen = program.ask("context"), _seen(program.ask("info"))
        allocated, _, error = program.ask(f"fill {STEP}").partition(" ")
        used = format_bytes(node.get(leaf).used_bytes)
        return f"context {made}, sees {seen}, gets {format_bytes(int(allocated))} until {error}, used {used}"
