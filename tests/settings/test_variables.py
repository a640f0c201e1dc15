"""Settings by variables: a misspelt one is not silently ignored, and what Kubernetes adds is none of ours."""

from __future__ import annotations

import pytest

from sharer.settings import read_settings

SERVICE = "SHARER_AGENT"  # of a Service called sharer-agent, in every pod of its namespace
LINKS = {
    f"{SERVICE}_SERVICE_HOST": "10.0.0.1",
    f"{SERVICE}_SERVICE_PORT": "9465",
    f"{SERVICE}_SERVICE_PORT_HTTP": "9465",
    f"{SERVICE}_PORT": "tcp://10.0.0.1:9465",
    f"{SERVICE}_PORT_9465_TCP": "tcp://10.0.0.1:9465",
    f"{SERVICE}_PORT_9465_TCP_PROTO": "tcp",
    f"{SERVICE}_PORT_9465_TCP_PORT": "9465",
    f"{SERVICE}_PORT_9465_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("SHARER_AGENT_POLCY", "SHARER_AGENT_POLICY"), ("SHARER_AGENT_HTTP_PORT", "SHARER_AGENT_HTTP")],
)
def test_a_misspelt_variable_is_refused_with_the_one_that_was_meant(
    misspelt: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """P01: the rest of it; a policy that is never read offers nothing, and nobody knows why."""
    with pytest.raises(SystemExit):
        read_settings([], {misspelt: "x"})
    assert f"the variable {misspelt} is not known; did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sharer-agent", "sharer-agent-http", "sharer-agent-metrics"])
def test_the_variables_of_a_service_with_our_name_change_nothing(name: str) -> None:
    """Neighbour of P01: they begin like ours, and would be taken for misspelt ones."""
    prefix = name.upper().replace("-", "_")
    links = {variable.replace(SERVICE, prefix, 1): value for variable, value in LINKS.items()}
    assert read_settings([], links) == read_settings([], {})
