from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from partgcd.config.errors import UserError
from partgcd.schedule.counters import check_url, parse_counters, read_counters

PAGE = """# HELP partgcd_images_total Images by outcome.
# TYPE partgcd_images_total counter
partgcd_images_total{outcome="familiar"} 90
partgcd_images_total{outcome="novel",worker="1"} 8
partgcd_images_total{worker="2", outcome="novel"} 2.0
partgcd_images_total{outcome="broken"} 7
partgcd_images_total_created{outcome="novel"} 1.7e9
"""


@pytest.fixture
def url() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(PAGE.encode() if found else b"")

        def log_message(self, *words: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_are_summed_over_workers() -> None:
    assert parse_counters(PAGE) == (100.0, 10.0)
    assert parse_counters("") is None and parse_counters("partgcd_images_total 4\n") is None
    assert parse_counters("<html>{ no = metrics") is None


def test_a_server_is_asked_and_a_missing_one_is_no_error(url: str) -> None:
    assert read_counters(f"{url}/metrics") == (100.0, 10.0)
    assert read_counters(f"{url}/elsewhere") is None
    assert read_counters("http://127.0.0.1:1/metrics") is None


@pytest.mark.parametrize("bad", ["file:///etc/passwd", "localhost:80/metrics", "http://a b", ""])
def test_only_web_addresses(bad: str) -> None:
    with pytest.raises(UserError):
        check_url(bad)
