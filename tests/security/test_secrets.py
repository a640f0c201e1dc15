"""A token is in the header of a request and nowhere else: in no message, in no log, in no page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharer.adapters.kube.access import Kubeconfig
from sharer.adapters.kube.errors import ApiError
from sharer.core.holders.observations import ApiTroubleKind
from sharer.simulation.apiserver import NODE, ApiServer, node_object
from tests.adapters.kube.lab import KubeLab

SECRET = "eyJhbGciOi-secret"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[KubeLab]:
    with ApiServer().start() as server, contextlib.closing(KubeLab(tmp_path, server)) as lab:
        server.put(NODE, node_object("node-1", uid="n1"))
        yield lab


@pytest.mark.parametrize("written", [f"{SECRET}\n", f"{SECRET}\r\n", f" {SECRET} "])
def test_the_line_end_of_a_token_s_file_is_no_part_of_it(lab: KubeLab, written: str) -> None:
    """P35: as kubectl reads it, so that what `echo` has written works."""
    lab.server.accept_tokens(SECRET)
    assert lab.client(token=written).node("node-1").uid == "n1"


@pytest.mark.parametrize(
    "written", [f"{SECRET}\nx", f"{SECRET}\x00", f"{SECRET}é", f"{SECRET}→", f"a\r\nX-A: {SECRET}"]
)
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(
    lab: KubeLab, written: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P35: http.client would say the whole header, and a thread's boundary log it."""
    with pytest.raises(ApiError, match="its token has a character that no HTTP header can carry") as refused:
        lab.client(token=written).node("node-1")
    assert refused.value.kind is ApiTroubleKind.UNAUTHORIZED
    assert SECRET not in f"{refused.value}{refused.value.__cause__}{caplog.text}"
    assert lab.server.requests() == ()


@pytest.mark.parametrize(
    "text",
    [
        f'users: [{{name: me, user: {{token: "{SECRET}',
        f"{{apiVersion: v1, kind: Config, users: {SECRET}}}",
        f'{{apiVersion: v1, kind: Config, users: [{{name: me, user: {{token: "{SECRET}"}}}}]}}',
        f"token: {SECRET}\n\tx: y",
        f"token: {SECRET}\x01",
    ],
)
def test_a_damaged_kubeconfig_is_told_without_what_is_in_it(lab: KubeLab, tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged"
    path.write_text(text)
    with pytest.raises(ApiError) as refused:
        lab.connect(Kubeconfig(path=path)).node("node-1")
    assert str(path) in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_refusal_of_the_api_server_tells_no_token(lab: KubeLab) -> None:
    lab.server.accept_tokens("another")
    with pytest.raises(ApiError) as refused:
        lab.client(token=SECRET).node("node-1")
    assert SECRET not in str(refused.value)
