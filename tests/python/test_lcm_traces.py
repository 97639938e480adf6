"""Traces of reconciles in a Python process, exported over a socket."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lcm.testing import FakeCloud

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"


@contextmanager
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """Receive OTLP over HTTP: its URL, and the bodies of the requests."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_python(script: str, cloud: FakeCloud, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **cloud.env, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


SCRIPT = """
    import json, logging
    import lcm

    class Show(logging.Handler):
        def emit(self, record):
            print(json.dumps([record.getMessage(), getattr(record, "trace_id", None)]))

    logging.getLogger("lcm.reconcile").addHandler(Show())
    logging.getLogger("lcm.reconcile").setLevel("INFO")
    worker = {"id": "w-1", "status": "stopped", "ec2_instance_id": INSTANCE}
    %s
"""


def script(cloud: FakeCloud, last: str) -> str:
    instance = cloud.run()
    cloud.advance(60)
    cloud.add_worker(id="w-1", status="stopped", ec2_instance_id=instance.id)
    return textwrap.dedent(SCRIPT).replace("INSTANCE", repr(instance.id)) % textwrap.dedent(last)


IN_A_TRACE = f"""
from opentelemetry import context, trace
parent = trace.SpanContext(0x{TRACE}, 0x{CALLER}, is_remote=False, trace_flags=trace.TraceFlags(1))
context.attach(trace.set_span_in_context(trace.NonRecordingSpan(parent)))
"""


def test_reconcile_continues_the_trace_of_its_caller() -> None:
    last = f"{IN_A_TRACE}lcm.reconcile(worker)"
    with FakeCloud() as cloud, receiver() as (url, bodies):
        shown = run_python(script(cloud, last), cloud, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    sent = b"".join(bodies)
    assert bytes.fromhex(TRACE) in sent and bytes.fromhex(CALLER) in sent
    assert b"control-plane " in sent and b"ec2 DescribeInstances" in sent and b"unexpected_restart" in sent
    assert f'"{TRACE}"]' in shown, shown


def test_discovery_continues_the_trace_of_its_caller() -> None:
    last = f"{IN_A_TRACE}lcm.collect_orphans()"
    with FakeCloud() as cloud, receiver() as (url, bodies):
        run_python(script(cloud, last), cloud, OTEL_EXPORTER_OTLP_ENDPOINT=url)
    sent = b"".join(bodies)
    assert bytes.fromhex(TRACE) in sent and bytes.fromhex(CALLER) in sent and b"ec2 DescribeInstances" in sent


def test_traces_are_off_without_variables() -> None:
    last = """
import threading
lcm.reconcile(worker)
from pathlib import Path
print(sorted({(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}))
"""
    with FakeCloud() as cloud:
        shown = run_python(script(cloud, last), cloud)
    assert "null]" in shown and "lcm-traces" not in shown and "OpenTelemetry" not in shown, shown


def test_invalid_variables_are_a_warning() -> None:
    last = """
logging.getLogger("lcm.traces").addHandler(Show())
lcm.reconcile(worker)
"""
    with FakeCloud() as cloud:
        shown = run_python(script(cloud, last), cloud, OTEL_TRACES_EXPORTER="console")
    assert "OTEL_TRACES_EXPORTER='console' is not accepted; accepted: otlp, none" in shown, shown
