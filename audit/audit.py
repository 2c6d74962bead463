"""Check requirements.lock against the known vulnerabilities in OSV (https://osv.dev): `make audit`.

Exit codes: 0 if every known vulnerability is in accepted.txt, and also, with a message, if OSV cannot be
asked; 1 if one is not accepted; 2 if accepted.txt is wrong.

pip-audit asks OSV here, not PyPI: a mirror of PyPI may know of no vulnerabilities, which pip-audit takes for
"none". For the same reason this script first asks about a version that is known to be vulnerable.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
OSV = "https://api.osv.dev/v1/query"
KNOWN_VULNERABLE = {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "2.4.1"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for known vulnerabilities in the locked packages.")
    parser.add_argument("--lock", type=Path, default=FOLDER.parent / "requirements.lock")
    parser.add_argument("--accepted", type=Path, default=FOLDER / "accepted.txt")
    parser.add_argument("--osv-url", default=OSV)
    given = parser.parse_args()
    try:
        accepted = read_accepted(given.accepted)
    except ValueError as error:
        print(f"audit: {error}", file=sys.stderr)
        sys.exit(2)
    obstacle = why_not(given.osv_url)
    found = None if obstacle else run_pip_audit(given.lock, given.osv_url)
    if isinstance(found, list):
        sys.exit(report(found, accepted))
    print(f"audit: skipped, {given.lock.name} was not checked: {obstacle or found}")


def read_accepted(file: Path) -> dict[str, str]:
    """Id -> reason. Raises ValueError for a line without a reason."""
    accepted = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            identifier, _, reason = line.strip().partition(" ")
            if not reason:
                raise ValueError(f"{file}, line {number}: {identifier} has no reason")
            accepted[identifier] = reason
    return accepted


def why_not(url: str) -> str:
    """Why OSV cannot be asked; empty if it can."""
    if importlib.util.find_spec("pip_audit") is None:
        return "pip-audit is not installed"
    request = urllib.request.Request(url, json.dumps(KNOWN_VULNERABLE).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            knows = bool(json.load(answer).get("vulns"))
    except (OSError, ValueError, AttributeError) as error:
        return f"{url} does not answer ({error})"
    return "" if knows else f"{url} does not know the vulnerabilities of jinja2 2.4.1"


def run_pip_audit(lock: Path, url: str) -> list[dict[str, Any]] | str:
    """pip-audit's findings, package by package; a message if it fails."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", url, "--format", "json"]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return f"pip-audit failed ({(done.stderr.strip().splitlines() or ['no reason given'])[-1]})"
    return packages


def report(packages: list[dict[str, Any]], accepted: dict[str, str]) -> int:
    """Print the findings; return 1 if a vulnerability is not accepted, else 0."""
    num_rejected = 0
    for package in packages:
        if "skip_reason" in package:
            print(f"audit: {package['name']} was not checked: {package['skip_reason']}")
        for each in package.get("vulns", []):
            reasons = [accepted[name] for name in (each["id"], *each["aliases"]) if name in accepted]
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            what = f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}"
            print(f"audit: {what}; " + (f"accepted: {reasons[0]}" if reasons else "not accepted"))
            num_rejected += not reasons
    num_known = sum(len(package.get("vulns", [])) for package in packages)
    counts = f"{num_known} known vulnerabilities, {num_rejected} of them not accepted"
    print(f"audit: {len(packages)} packages, {counts}")
    return int(num_rejected > 0)


if __name__ == "__main__":
    main()
