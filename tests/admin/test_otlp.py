"""What the server sends over OTLP is what Prometheus would scrape; a real exporter, and a collector that keeps it."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.admin.watch.metrics import JobCollector
from spark_throttle.admin.watch.otlp import MetricsSender
from tests.admin.conftest import ServedApp
from tests.admin.job_world import World
from tests.admin.server_process import server_process


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    made = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    made.create("ann", "admin")
    return made


@contextmanager
def collector() -> Iterator[tuple[str, queue.Queue[Any]]]:
    """Yield the address of a collector, and what it was sent."""
    sent = queue.Queue[Any]()

    class Kept(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.put((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Kept) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


def metrics_in(request: Any) -> Iterator[Any]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def samples_of(metrics: Iterator[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return what was sent as Prometheus would write it: histograms by bounds, each with all below."""
    found = {}
    for metric in metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = {each.key: each.value.string_value for each in point.attributes}
            if kind == "histogram":
                assert [point.HasField(name) for name in ("min", "max")] == [False, False]
                bounds, below = [*map(str, point.explicit_bounds), "+Inf"], 0
                for bound, count in zip(bounds, point.bucket_counts, strict=True):
                    below += count
                    found[f"{metric.name}_bucket", frozenset({**labels, "le": bound}.items())] = float(below)
                found[f"{metric.name}_count", frozenset(labels.items())] = float(point.count)
                found[f"{metric.name}_sum", frozenset(labels.items())] = point.sum
            else:
                name = f"{metric.name}_total" if kind == "sum" else metric.name
                found[name, frozenset(labels.items())] = float(getattr(point, point.WhichOneof("value")))
    return found


def test_what_is_sent_is_what_prometheus_would_scrape(
    serve: Callable[..., ServedApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(serve, tmp_path)
    world.run(4)
    with collector() as (address, sent):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        MetricsSender(JobCollector(world.watch, world.store)).send()
        path, request = sent.get(timeout=20)
    scraped = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(world.client.get("/metrics").text)
        for sample in family.samples
    }
    assert path == "/v1/metrics"
    assert len(scraped) > 100
    assert samples_of(metrics_in(request)) == scraped


@pytest.mark.slow
def test_server_sends_at_each_interval(tmp_path: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, sent):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        with server_process(tmp_path, tokens, "--otlp") as server:
            times_ns = [next(metrics_in(sent.get(timeout=20)[1])).gauge.data_points[0].time_unix_nano for _ in "12"]
            assert times_ns[1] - times_ns[0] >= 200_000_000
            server.process.terminate()
            server.process.wait(timeout=20)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_server_sends_once_more_at_its_end(tmp_path: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, sent):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        with server_process(tmp_path, tokens, "--otlp") as server:
            server.process.terminate()
            server.process.wait(timeout=20)
        assert sent.get(timeout=20)[0] == "/v1/metrics"
        assert sent.empty()


@pytest.mark.slow
def test_collector_that_is_gone_costs_a_line_in_the_log_and_nothing_else(
    tmp_path: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    with server_process(tmp_path, tokens, "--otlp") as server:
        while "took no metrics" not in server.log.read_text():
            assert server.process.poll() is None
            select.select([], [], [], 0.05)
        server.process.terminate()
        assert server.process.wait(timeout=20) in {0, -15}


def test_metrics_over_otlp_need_their_extra_and_say_so(tokens: TokenFile) -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from spark_throttle.command_line import main; main()"
    command = ["serve", "--store", "memory:", "--tokens", str(tokens.path), "--otlp"]
    ran = subprocess.run(
        [sys.executable, "-c", hidden, *command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
        timeout=60,
    )
    assert ran.returncode == 3
    assert "install spark-throttle[otlp]" in ran.stderr
