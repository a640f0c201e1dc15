"""The API server beside a node, and what befalls it."""

from __future__ import annotations

from pathlib import Path

from sharer.simulation.apiserver import NODE, ApiServer, Ending, Fail, node_object
from tests.faults.steps import ApiTrouble

_FOLLOWED = ("pods", "nodes")  # by an agent


class NodeApi:
    """An API server that knows this node. The agent has no part in its troubles."""

    def __init__(self, server: ApiServer, folder: Path, node_name: str) -> None:
        self.server = server
        self.kubeconfig = folder / "kubeconfig"
        self.is_away = False  # for the agent: it is down, or refuses
        self.was_forbidden = False  # anything, ever
        self._node_name, self._is_down = node_name, False
        self.label(held=False)
        self.kubeconfig.write_text(
            "{apiVersion: v1, kind: Config, current-context: here,"
            " contexts: [{name: here, context: {cluster: here, user: me}}], users: [{name: me, user: {}}],"
            f' clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}]}}\n'
        )

    def label(self, *, held: bool) -> None:
        """The Node, with the label that holds its policy or without."""
        self.server.put(NODE, node_object(self._node_name, labels={"sharer.dev/hold": ""} if held else {}))

    def trouble(self, trouble: ApiTrouble) -> None:
        """Let this happen."""
        server = self.server
        match trouble:
            case ApiTrouble.EXPIRED:
                server.expire_history()
                server.interrupt_watches(Ending.CLEAN)
            case ApiTrouble.THROTTLED:
                server.fail_next(Fail(code=429, retry_after_s=1), times=3)
                server.interrupt_watches(Ending.CLEAN)
            case ApiTrouble.CUT:
                server.interrupt_watches(Ending.CUT)
            case ApiTrouble.RESET:
                server.interrupt_watches(Ending.RESET)
            case ApiTrouble.UNKNOWN:
                server.accept_tokens("another")
                server.interrupt_watches(Ending.CLEAN)
                self.is_away = True
            case ApiTrouble.FORBIDDEN:
                for what in _FOLLOWED:
                    server.forbid("list", what)
                    server.forbid("watch", what)
                server.interrupt_watches(Ending.CLEAN)
                self.is_away = self.was_forbidden = True
            case ApiTrouble.AWAY:
                server.stop()
                self.is_away = self._is_down = True
            case ApiTrouble.BACK:
                self._come_back()

    def _come_back(self) -> None:
        if self._is_down:
            self.server.start()
        self.server.accept_tokens()
        for what in _FOLLOWED:
            self.server.allow("list", what)
            self.server.allow("watch", what)
        self.is_away = self._is_down = False
