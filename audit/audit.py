"""Hold requirements.lock against the known holes that OSV (https://osv.dev) lists: `make audit`.

Exit codes: 0: none, or none beyond those of accepted.txt; also where nobody could be asked, which is said.
1: there are some. 2: accepted.txt is wrong.

Of pip-audit's sources OSV is asked: a mirror of PyPI answers that it knows nothing, which pip-audit takes for
"nothing known". For the same reason OSV is first asked about a version that is known to have holes.
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
KNOWN_TO_HAVE_HOLES = {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "2.4.1"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for known holes in the locked packages.")
    parser.add_argument("--lock", type=Path, default=FOLDER.parent / "requirements.lock")
    parser.add_argument("--accepted", type=Path, default=FOLDER / "accepted.txt")
    parser.add_argument("--osv-url", default=OSV)
    given = parser.parse_args()
    try:
        accepted = read_accepted(given.accepted)
    except ValueError as error:
        print(f"audit: {error}", file=sys.stderr)
        sys.exit(2)
    obstacle = what_is_missing(given.osv_url)
    found = None if obstacle else ask(given.lock, given.osv_url)
    if isinstance(found, list):
        sys.exit(tell(found, accepted))
    print(f"audit: left out, as {obstacle or found}; no known hole was looked for in {given.lock.name}")


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


def what_is_missing(url: str) -> str:
    """Why nobody can be asked; empty where somebody can."""
    if importlib.util.find_spec("pip_audit") is None:
        return "pip-audit is not installed"
    request = urllib.request.Request(url, json.dumps(KNOWN_TO_HAVE_HOLES).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            knows = bool(json.load(answer).get("vulns"))
    except (OSError, ValueError, AttributeError) as error:
        return f"{url} does not answer ({error})"
    return "" if knows else f"{url} does not know the holes of jinja2 2.4.1"


def ask(lock: Path, url: str) -> list[dict[str, Any]] | str:
    """What pip-audit says of each package; a text where it came to no end."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", url, "--format", "json"]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return f"pip-audit failed ({(done.stderr.strip().splitlines() or ['no reason given'])[-1]})"
    return packages


def tell(packages: list[dict[str, Any]], accepted: dict[str, str]) -> int:
    """Print what was found; returns 1 for a hole that is not accepted."""
    bad = 0
    for package in packages:
        if "skip_reason" in package:
            print(f"audit: {package['name']} was not looked up: {package['skip_reason']}")
        for hole in package.get("vulns", []):
            reasons = [accepted[each] for each in (hole["id"], *hole["aliases"]) if each in accepted]
            mended = ", ".join(hole["fix_versions"]) or "no version yet"
            what = f"{package['name']} {package['version']}: {hole['id']}, mended in {mended}"
            print(f"audit: {what}; " + (f"accepted: {reasons[0]}" if reasons else "not accepted"))
            bad += not reasons
    num_holes = sum(len(package.get("vulns", [])) for package in packages)
    print(f"audit: {len(packages)} packages, {num_holes} known holes, {bad} of them not accepted")
    return int(bad > 0)


if __name__ == "__main__":
    main()
