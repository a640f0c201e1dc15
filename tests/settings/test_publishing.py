"""The flags about what is served and written, and by which labels we are paused."""

from __future__ import annotations

import pytest

from sharer.settings import read_settings


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        (":9400", ("", 9400)),
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("[::1]:0", ("::1", 0)),
        ("[::]:9400", ("::", 9400)),
    ],
)
def test_http_is_off_or_an_address_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert read_settings(["--http", text], {}).http == address
    assert read_settings([], {"SHARER_AGENT_HTTP": text}).http == address


@pytest.mark.parametrize("text", ["9400", "::1:9400", "[::1]", "localhost:", ":http", ":70000", "on", "", ":-1"])
def test_any_other_address_is_refused_with_examples(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings([f"--http={text}"], {})
    assert ended.value.code == 2
    assert "such as :9400, 127.0.0.1:9400 or [::1]:9400" in capsys.readouterr().err


def test_nothing_is_served_or_written_to_the_node_unless_asked_for() -> None:
    assert (read_settings([], {}).http, read_settings([], {}).node_labels) == (None, False)
    assert read_settings(["--node-labels=on"], {}).node_labels
    with pytest.raises(SystemExit):
        read_settings(["--node-labels=yes"], {})


def test_pausing_labels_are_the_gpu_operator_s_or_others_or_none() -> None:
    operators = [f"nvidia.com/gpu.deploy.{what}" for what in ("client", "device-plugin", "gpu-feature-discovery")]
    assert list(read_settings([], {}).pause_label) == operators
    assert read_settings(["--pause-label=a/b, c"], {}).pause_label == ("a/b", "c")
    assert read_settings(["--pause-label=off"], {}).pause_label == ()
