"""What is scraped, in Prometheus' text format, made anew at each scrape.

Importing this module imports `prometheus_client`: some 5 MiB and 60 ms (DESIGN §10). So it is imported at the first
scrape, on the thread that serves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from sharer.core.tell.metrics import Figure, Histogram, MetricKind

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition(Collector):
    """The text. For one thread."""

    def __init__(self, figures: Callable[[], Iterable[Figure | Histogram]]) -> None:
        """`figures` is called at each scrape; this process's own memory, CPU time and files are added."""
        self._figures = figures
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Everything, as it is now."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Family]:
        """Nothing: the registry would work out a whole scrape only to learn the names."""
        yield from ()

    def collect(self) -> Iterator[Family]:
        """For the library."""
        for figure in self._figures():
            yield _histogram(figure) if isinstance(figure, Histogram) else _values(figure)


def _values(figure: Figure) -> Family:
    metric = figure.metric
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in figure.values.items():
        family.add_metric(labels, value)
    return family


def _histogram(figure: Histogram) -> Family:
    metric = figure.metric
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    bounds = [*(f"{bound_s:g}" for bound_s in figure.bounds_s), "+Inf"]
    for labels, durations in figure.durations.items():
        buckets = list(zip(bounds, map(float, accumulate(durations.counts)), strict=True))
        family.add_metric(labels, buckets, durations.sum_s)
    return family
