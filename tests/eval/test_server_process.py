"""A server in a process of its own: it gets the settings, is waited for, and is gone afterwards. The process stands in
for `hypic serve`, whose command line is held to the same words."""

from pathlib import Path

import httpx
import pytest

from hypic.config import ClusterConfig, EngineConfig, ServerConfig
from hypic.errors import HypicError
from hypic.eval import server_process
from hypic.eval.cli import main
from hypic.eval.server_process import check_serving, serving
from hypic.router import app

LISTENS = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Health.asked += 1
        self.send_response(200 if Health.asked > 1 else 503)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv[1:]).encode())
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def test_it_is_ready_when_it_says_so_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_SERVE", LISTENS)
    with serving(EngineConfig(threads=3), ClusterConfig()) as served:
        url = served.url
        check_serving(url)
        words = httpx.get(url).text
    assert words.startswith("serve --port ")
    assert words.endswith("--threads 3"), "defaults are left out"
    with pytest.raises(HypicError, match="no server answers"):
        check_serving(url)


def test_one_that_ends_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_SERVE", "raise SystemExit('there is no model here')")
    with pytest.raises(HypicError, match="status 1: there is no model here"), serving(EngineConfig(), ClusterConfig()):
        pass


def test_hypic_serve_understands_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineConfig(model=Path("elsewhere"), threads=2, cache_bytes=5, cache_policy="lru")
    cluster = ClusterConfig(scatter_workers=0, placement="local")
    taken: list[object] = []
    monkeypatch.setattr(app, "serve_forever", lambda *configs: taken.extend(configs))
    with pytest.raises(SystemExit) as ended:
        main(server_process.serve_command(engine, cluster, 8123))
    assert ended.value.code == 0
    assert taken == [engine, cluster, ServerConfig(port=8123)]
