"""Decisions about a daemon, from looks at it and the time. What real processes do is in tests/flows."""

from __future__ import annotations

from dataclasses import replace

from sharer.core.mps import supervision as sup
from sharer.core.mps.daemon import Abilities, Launch, LogSigns, Look, MpsClient
from sharer.core.mps.state import MpsInterface, MpsState
from sharer.core.mps.supervision import Act, Watch

LAUNCH = Launch(gpus=("GPU-a", "GPU-b"), user_id=None)
GONE = Look(running=False)
UP = Look(
    running=True, interface=MpsInterface.LEGACY, gpus=LAUNCH.gpus, server="ACTIVE", ready=True, clients=()
)  # fmt: skip
V3_TOO = Abilities(namespaces=True, no_namespaces_reason=None, many_users=True)
LEGACY_ONLY = Abilities(namespaces=False, no_namespaces_reason="too old", many_users=True)


def client(pid: int, *gpus: str, alive: bool = True) -> MpsClient:
    return MpsClient(pid=pid, gpus=gpus, server=7, alive=alive)


class Story:
    """A daemon's life as it is seen."""

    def __init__(self, abilities: Abilities | None = None) -> None:
        self.abilities = abilities or LEGACY_ONLY
        self.watch, self.now_s, self.look = Watch(), 0.0, GONE

    def see(self, look: Look, after_s: float = 1.0, *, wanted: bool = True, launch: Launch = LAUNCH) -> Act:
        self.now_s += after_s
        self.look = look
        self.watch = sup.seen(self.watch, look, wanted=wanted, now_s=self.now_s)
        interface = sup.interface_for(self.watch, self.abilities)
        act = sup.next_act(self.watch, look, launch, interface, wanted=wanted, refused=False, now_s=self.now_s)
        if act is Act.START:
            self.watch = sup.started(self.watch, interface)
        if act is Act.SERVE:
            self.watch = sup.served(self.watch)
        return act

    def state(self) -> MpsState:
        reason = sup.why_legacy(self.watch, self.abilities)
        return sup.state_of(
            self.watch, self.look, LAUNCH, resource="r", trouble=None, legacy_reason=reason,
            now_s=self.now_s, wall_s=self.now_s,
        )  # fmt: skip


def test_a_daemon_that_is_wanted_is_started_and_told_to_serve() -> None:
    story = Story()
    assert story.see(GONE) is Act.START
    assert story.see(replace(UP, server=None, ready=False, unlike="not told")) is Act.SERVE
    assert story.see(UP) is Act.NOTHING


def test_it_serves_once_its_server_has_stayed_for_a_moment() -> None:
    story = Story()
    story.see(GONE)
    story.see(UP)
    problem = story.state().problem
    assert problem is not None
    assert "just come up" in problem
    story.see(UP, sup.SETTLE_S)
    assert story.state().problem is None


def test_a_daemon_that_an_earlier_supervisor_left_serving_serves_at_once() -> None:
    story = Story()
    story.see(UP)
    assert story.state().problem is None


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_minute() -> None:
    story, pauses = Story(), []
    for _ in range(9):
        assert story.see(GONE, 1000) is Act.START
        assert story.see(GONE) is Act.NOTHING
        pauses.append(story.watch.retry_at_s - story.now_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_what_is_said_of_a_failure_does_not_change_while_it_waits() -> None:
    story = Story()
    story.see(GONE)
    story.see(replace(GONE, signs=LogSigns(first_error="no such device")))
    said = story.state().problem
    assert said is not None
    assert "no such device" in said
    story.see(GONE, 0.5)
    assert story.state().problem == said


def test_failures_are_over_when_it_has_stayed_up() -> None:
    story = Story()
    story.see(GONE)
    story.see(GONE)
    assert story.watch.failures == 1
    story.see(UP, 5)
    story.see(UP, sup.STAYS_UP_S)
    assert story.watch.failures == 0


def test_a_server_that_is_gone_again_is_a_failure_of_the_daemon() -> None:
    story = Story()
    story.see(UP)
    lost = replace(UP, server=None, ready=False, clients=(), signs=LogSigns(first_error="no CUDA-capable device"))
    assert story.see(lost) is Act.NOTHING
    assert story.watch.failures == 1
    assert "no CUDA-capable device" in (story.state().problem or "")
    assert story.see(lost, 2) is Act.SERVE


def test_silence_is_told_at_once_and_ended_after_some_time() -> None:
    story = Story()
    story.see(UP, 10)
    silent = replace(UP, server=None, ready=False, clients=None, silence="'ps' was not answered within 4 s")
    assert story.see(silent) is Act.NOTHING
    assert "'ps' was not answered" in (story.state().problem or "")
    assert story.see(silent, sup.HANG_S) is Act.KILL


def test_a_daemon_that_hangs_again_and_again_is_restarted_with_longer_and_longer_pauses() -> None:
    story, pauses = Story(), []
    silent = Look(running=True, interface=MpsInterface.LEGACY, gpus=LAUNCH.gpus, silence="no answer")
    for _ in range(3):
        assert story.see(GONE, 1000) is Act.START
        story.see(silent)
        assert story.see(silent, sup.HANG_S) is Act.KILL
        story.watch = sup.killed(story.watch, silent, story.now_s)
        pauses.append(story.watch.retry_at_s - story.now_s)
        story.look = GONE
        assert "no answer" in (story.state().problem or "")
    assert pauses == [1, 2, 4]


def fail_to_start(story: Story, error: str) -> None:
    """One more start of the daemon that comes to nothing."""
    assert story.see(GONE, 1000) is Act.START
    story.see(replace(GONE, signs=LogSigns(first_error=error)))


def test_mps_v3_is_used_where_it_is_there_until_it_failed_twice() -> None:
    story = Story(V3_TOO)
    assert sup.interface_for(story.watch, LEGACY_ONLY) is MpsInterface.LEGACY
    assert sup.interface_for(story.watch, V3_TOO) is MpsInterface.NAMESPACES
    fail_to_start(story, "bad option")
    fail_to_start(story, "bad option")
    assert sup.interface_for(story.watch, V3_TOO) is MpsInterface.LEGACY
    story.see(GONE, 1000)
    story.see(UP)
    assert "bad option" in (story.state().interface_reason or "")


def test_why_a_driver_has_no_mps_v3_is_told_while_the_legacy_interface_is_used() -> None:
    story = Story(LEGACY_ONLY)
    story.see(UP)
    assert story.state().interface_reason == "too old"


def test_mps_v3_is_tried_again_where_the_legacy_interface_fares_no_better() -> None:
    """The GPU was gone, which says nothing against v3."""
    story, used = Story(V3_TOO), []
    for _ in range(6):
        used.append(sup.interface_for(story.watch, V3_TOO))
        fail_to_start(story, "no such device")
    v2, v3 = MpsInterface.LEGACY, MpsInterface.NAMESPACES
    assert used == [v3, v3, v2, v3, v3, v2]


def test_mps_v3_that_has_served_is_never_given_up_because_containers_have_its_directories() -> None:
    story = Story(V3_TOO)
    story.see(GONE)
    story.see(replace(UP, interface=MpsInterface.NAMESPACES))
    story.see(replace(UP, interface=MpsInterface.NAMESPACES), sup.SETTLE_S)
    for _ in range(5):
        story.see(replace(GONE, signs=LogSigns(first_error="no such device")))
        assert story.see(GONE, 1000) is Act.START
        assert story.watch.interface is MpsInterface.NAMESPACES


def test_a_legacy_daemon_that_served_stays_one_for_the_same_reason() -> None:
    story = Story(V3_TOO)
    story.see(UP)
    assert "containers were given" in (story.state().interface_reason or "")
    story.see(GONE)
    assert story.see(GONE, 1000) is Act.START
    assert story.watch.interface is MpsInterface.LEGACY


def test_a_daemon_of_mps_v3_whose_server_never_comes_up_is_replaced_by_a_legacy_one() -> None:
    """It runs and answers, and refuses to make its server: only another daemon helps."""
    story = Story(V3_TOO)
    assert story.see(GONE) is Act.START
    serverless = Look(running=True, interface=MpsInterface.NAMESPACES, gpus=LAUNCH.gpus, clients=())
    for _ in range(sup.V3_TRIES):
        assert story.see(serverless, 20) is Act.SERVE
        story.watch = sup.failed(story.watch, "unknown command", story.now_s)
    assert story.see(serverless) is Act.STOP
    story.watch = sup.stopped(story.watch)
    assert story.see(GONE, 1000) is Act.START
    assert story.watch.interface is MpsInterface.LEGACY


def test_a_server_that_was_there_for_a_moment_has_not_served() -> None:
    """It cannot use its GPUs; so MPS v3 is given up all the same."""
    story = Story(V3_TOO)
    story.see(GONE)
    up = replace(UP, interface=MpsInterface.NAMESPACES)
    for _ in range(sup.V3_TRIES):
        story.see(up)
        story.see(replace(up, server=None, ready=False), 0.3)
    assert sup.interface_for(story.watch, V3_TOO) is MpsInterface.LEGACY


def test_a_dead_client_that_is_never_taken_off_the_list_is_its_gpu_s_trouble_alone() -> None:
    story = Story()
    lingers = replace(UP, clients=(client(1, "GPU-a", alive=False), client(2, "GPU-b")))
    story.see(lingers, 10)
    story.see(lingers, sup.LINGER_S)
    story.watch = sup.asked(story.watch, client(1), came_back=True)
    assert story.see(lingers, sup.WEDGED_S) is Act.NOTHING, "a restart would end the client on the other GPU"
    state = story.state()
    assert state.problem is None
    assert state.gpus["GPU-b"].problem is None
    assert sup.CURE in (state.gpus["GPU-a"].problem or "")
    assert story.see(replace(lingers, clients=(client(1, "GPU-a", alive=False),))) is Act.KILL


def test_nothing_wanted_ends_it_after_a_while_and_not_while_clients_live() -> None:
    story = Story()
    busy = replace(UP, clients=(client(1, "GPU-a"),))
    story.see(busy)
    assert story.see(busy, 5, wanted=False) is Act.NOTHING
    assert story.see(busy, 1000, wanted=False) is Act.NOTHING
    assert [warning for warning in story.state().warnings if "nothing of it is wanted" in warning]
    assert story.see(UP, wanted=False) is Act.STOP


def test_a_short_time_of_not_being_wanted_ends_nothing() -> None:
    story = Story()
    story.see(UP)
    assert story.see(UP, 1, wanted=False) is Act.NOTHING
    assert story.see(UP, sup.STOP_AFTER_S - 1, wanted=False) is Act.NOTHING
    assert story.see(UP, 0) is Act.NOTHING
    assert story.see(UP, 5, wanted=False) is Act.NOTHING


def test_another_gpu_waits_until_the_clients_on_the_others_have_ended() -> None:
    story = Story()
    old = replace(UP, gpus=("GPU-a",), clients=(client(1, "GPU-a"),))
    assert story.see(old) is Act.NOTHING
    story.see(old, sup.SETTLE_S)
    state = story.state()
    assert state.problem is None
    assert state.gpus["GPU-a"].problem is None
    assert "without this GPU" in (state.gpus["GPU-b"].problem or "")
    assert story.see(replace(old, clients=())) is Act.STOP


def test_a_gpu_that_it_need_not_serve_is_let_go_when_it_is_idle_for_a_while() -> None:
    story = Story()
    only_a = replace(LAUNCH, gpus=("GPU-a",))
    assert story.see(UP, launch=only_a) is Act.NOTHING
    assert story.see(UP, sup.IDLE_S, launch=only_a) is Act.STOP


def test_dead_clients_that_linger_make_their_gpu_unhealthy_and_are_ended_once() -> None:
    story = Story()
    lingers = replace(UP, clients=(client(1, "GPU-a", alive=False), client(2, "GPU-b")))
    story.see(lingers, 10)
    assert story.see(lingers, 1) is Act.NOTHING
    assert story.see(lingers, sup.LINGER_S) is Act.END_CLIENTS
    (dead,) = sup.to_end(story.watch, story.look, story.now_s)
    story.watch = sup.asked(story.watch, dead, came_back=True)
    gpus = story.state().gpus
    assert "1" in (gpus["GPU-a"].problem or "")
    assert (gpus["GPU-a"].clients, gpus["GPU-b"].clients) == (0, 1)
    assert gpus["GPU-b"].problem is None
    assert story.see(lingers) is Act.NOTHING
    story.see(replace(UP, clients=(client(2, "GPU-b"),)))
    assert story.state().gpus["GPU-a"].problem is None


def test_a_daemon_that_does_not_come_back_from_ending_a_client_is_wedged() -> None:
    story = Story()
    lingers = replace(UP, clients=(client(1, "GPU-a", alive=False), client(2, "GPU-b")))
    story.see(lingers)
    story.see(lingers, sup.LINGER_S)
    story.watch = sup.asked(story.watch, lingers.clients[0] if lingers.clients else client(1), came_back=False)
    problem = story.state().problem or ""
    assert "process 1" in problem
    assert sup.CURE in problem
    assert story.see(lingers) is Act.NOTHING, "it would end the client that lives"
    assert story.see(replace(UP, clients=(client(1, "GPU-a", alive=False),))) is Act.KILL


def test_clients_that_failed_together_and_one_that_is_not_let_in_are_a_wedge() -> None:
    story = Story()
    story.see(replace(UP, clients=(client(1, "GPU-a"),)))
    story.see(replace(UP, clients=(client(2, "GPU-a"),), signs=LogSigns(fatal="fatal exception")), sup.SETTLE_S)
    assert story.state().problem is None
    assert [warning for warning in story.state().warnings if "fatal exception" in warning and sup.CURE in warning]
    waits = replace(UP, clients=(client(2, "GPU-a"),), signs=LogSigns(newcomers=(3,)))
    story.see(waits)
    story.see(waits, sup.WEDGED_S)
    assert "failed together" in (story.state().problem or "")


def test_a_process_that_is_not_let_in_is_only_a_sign() -> None:
    story = Story()
    waits = replace(UP, signs=LogSigns(newcomers=(3,)))
    story.see(waits)
    story.see(waits, sup.WEDGED_S)
    state = story.state()
    assert state.problem is None
    assert [warning for warning in state.warnings if "process 3" in warning]


def test_the_signs_of_a_fault_are_forgotten_after_a_while() -> None:
    story = Story()
    story.see(replace(UP, signs=LogSigns(fatal="fatal exception")))
    story.see(UP, sup.SIGN_LASTS_S)
    assert not story.state().warnings


def test_a_server_that_waits_for_its_clients_to_end_is_not_hurried() -> None:
    story = Story()
    faulty = replace(UP, server="FAULT", ready=False, clients=(client(1, "GPU-a"),))
    story.see(faulty)
    assert story.see(faulty, sup.INIT_PATIENCE_S) is Act.NOTHING
    assert "FAULT" in (story.state().problem or "")
    assert story.see(replace(faulty, clients=())) is Act.KILL
    assert sup.killed(story.watch, story.look, story.now_s).failures == 1


def test_a_daemon_that_does_not_tell_its_clients_is_taken_to_have_some() -> None:
    story = Story()
    story.see(replace(UP, clients=None))
    assert story.see(replace(UP, clients=None), 1000, wanted=False) is Act.NOTHING
    assert story.see(replace(UP, clients=None), 1000, wanted=False) is Act.NOTHING


def test_containers_share_memory_with_the_daemon_only_in_the_legacy_interface() -> None:
    story = Story()
    story.see(UP)
    assert story.state().shared_memory == "/dev/shm"
    story.see(replace(UP, interface=MpsInterface.NAMESPACES))
    assert story.state().shared_memory is None
