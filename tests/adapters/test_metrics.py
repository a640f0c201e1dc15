"""The text that is scraped."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from sharer.adapters.metrics import CONTENT_TYPE, Exposition
from sharer.core.known import Known
from sharer.core.tell.figures import Moment, Tallies, figures
from sharer.core.tell.metrics import KUBELET_SECONDS, METRICS, POLICY_INFO, SLICES, Durations, Figure, Histogram, Labels
from tests.core.nodes import ABOUT


def parsed(*given: Figure | Histogram) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name, each by its sorted labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(Exposition(lambda: given).text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_values_come_out_with_their_labels() -> None:
    figure = Figure(metric=SLICES, values={("a.b/c", "GPU-1", "held"): 3.0})
    labels = (("gpu", "GPU-1"), ("resource", "a.b/c"), ("state", "held"))
    assert parsed(figure)["sharer_slices"] == {labels: 3.0}


def test_what_people_may_write_into_a_label_is_escaped() -> None:
    figure = Figure(metric=POLICY_INFO, values={('"\\\n}', "é"): 1.0})
    assert parsed(figure)["sharer_policy_info"] == {(("in_force", "é"), ("wanted", '"\\\n}')): 1.0}


def test_a_histogram_adds_up_its_buckets() -> None:
    durations: dict[Labels, Durations] = {("Allocate",): Durations(counts=(2, 1, 4), sum_s=5.5)}
    found = parsed(Histogram(metric=KUBELET_SECONDS, bounds_s=(0.0005, 2.5), durations=durations))
    buckets = {dict(labels)["le"]: value for labels, value in found["sharer_kubelet_request_seconds_bucket"].items()}
    assert buckets == {"0.0005": 2.0, "2.5": 3.0, "+Inf": 7.0}
    assert found["sharer_kubelet_request_seconds_count"] == {(("method", "Allocate"),): 7.0}
    assert found["sharer_kubelet_request_seconds_sum"] == {(("method", "Allocate"),): 5.5}


def test_an_agent_that_knows_nothing_yet_has_every_metric_and_its_own_process() -> None:
    given = figures(Known(), ABOUT, Tallies(bounds_s=(1.0,)), Moment(now_s=2.0, started_s=1.0))
    text = Exposition(lambda: given).text().decode()
    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.meaning}\n# TYPE {metric.name} {metric.kind.value}\n" in text
    assert "process_resident_memory_bytes" in text
    assert CONTENT_TYPE.startswith("text/plain; version=")


def test_figures_are_made_at_a_scrape_and_not_before() -> None:
    made: list[int] = []

    def make() -> Iterator[Figure]:
        made.append(1)
        yield Figure(metric=SLICES, values={})

    exposition = Exposition(make)
    assert made == []
    exposition.text()
    exposition.text()
    assert len(made) == 2
