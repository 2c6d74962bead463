"""`make audit` with a local stand-in for OSV: a vulnerability fails it, an OSV that is away does not."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VULNERABILITY = {
    "id": "GHSA-made-upxx-hole", "aliases": ["CVE-2026-99999"], "summary": "made up", "details": "made up",
    "published": "2026-01-01T00:00:00Z", "modified": "2026-01-01T00:00:00Z",
    "affected": [{"package": {"name": "jinja2", "ecosystem": "PyPI"},
                  "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.0"}]}]}],
}  # fmt: skip


@pytest.fixture
def osv() -> Iterator[str]:
    """An OSV that knows one vulnerability, in jinja2 before 3.0; none below the path `silent`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            old = asked["package"]["name"] == "jinja2" and asked["version"].startswith("2.")
            content = json.dumps(
                {"vulns": [VULNERABILITY]} if old and "silent" not in self.path else {}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/query"
    server.shutdown()
    server.server_close()


def audit(tmp_path: Path, lock: str, url: str, accepted: str = "") -> tuple[int, str]:
    (tmp_path / "lock").write_text(lock, encoding="utf-8")
    (tmp_path / "accepted").write_text(accepted, encoding="utf-8")
    command = [sys.executable, "audit/audit.py", "--lock", str(tmp_path / "lock"), "--osv-url", url]
    done = subprocess.run(
        [*command, "--accepted", str(tmp_path / "accepted")],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "pip-audit is not installed" in done.stdout:
        pytest.skip("pip-audit is not installed (make audit)")
    return done.returncode, done.stdout + done.stderr


def test_a_known_vulnerability_fails_and_is_named_with_the_fixed_version(tmp_path, osv):
    code, said = audit(tmp_path, "jinja2==2.4.1\nmarkupsafe==3.0.2\n", osv)
    assert code == 1
    assert "jinja2 2.4.1: CVE-2026-99999, fixed in 3.0; not accepted" in said
    assert "2 packages, 1 known vulnerabilities, 1 of them not accepted" in said


@pytest.mark.parametrize("name", ["GHSA-made-upxx-hole", "CVE-2026-99999"])
def test_a_vulnerability_accepted_with_a_reason_does_not_fail(tmp_path, osv, name):
    code, said = audit(tmp_path, "jinja2==2.4.1\n", osv, f"# ours\n{name} templates are our own\n")
    assert code == 0
    assert "accepted: templates are our own" in said


def test_a_vulnerability_cannot_be_accepted_without_a_reason(tmp_path, osv):
    code, said = audit(tmp_path, "jinja2==2.4.1\n", osv, "GHSA-made-upxx-hole\n")
    assert code == 2
    assert "line 1: GHSA-made-upxx-hole has no reason" in said


def test_packages_without_a_vulnerability_pass(tmp_path, osv):
    assert audit(tmp_path, "jinja2==3.1.6\n", osv) == (
        0, "audit: 1 packages, 0 known vulnerabilities, 0 of them not accepted\n"
    )  # fmt: skip


def test_an_osv_that_does_not_answer_is_reported(tmp_path):
    code, said = audit(tmp_path, "jinja2==2.4.1\n", "http://127.0.0.1:9/query")
    assert code == 0
    assert "skipped, lock was not checked: http://127.0.0.1:9/query does not answer" in said


def test_an_osv_that_knows_nothing_is_not_good_news(tmp_path, osv):
    code, said = audit(tmp_path, "jinja2==2.4.1\n", f"{osv}/silent")
    assert code == 0
    assert "skipped, lock was not checked" in said
    assert "does not know the vulnerabilities of jinja2 2.4.1" in said
