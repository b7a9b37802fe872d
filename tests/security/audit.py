"""Look up the installed packages in a vulnerability database, and say so if none can be reached.

python -m tests.security.audit     exits with 1 if a package has a known vulnerability
"""

import json
import subprocess
import sys
from typing import Any

COMMAND = (sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--timeout", "15", "--format", "json")


def summary(packages: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return the lines to print, and the exit code."""
    audited = [each for each in packages if "skip_reason" not in each]
    found = [
        f"{each['name']} {each['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'no version yet'}"
        for each in audited
        for one in each["vulns"]
    ]
    if not audited:
        return [f"No vulnerability database could be reached: none of {len(packages)} packages was audited."], 0
    return [*found, f"{len(audited)} of {len(packages)} packages audited, {len(found)} known vulnerabilities."], int(
        bool(found)
    )


def main() -> int:
    """Run pip-audit and print what it found."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = done.stderr.strip().splitlines()
        print(f"No vulnerability database could be reached ({said[-1] if said else 'pip-audit printed nothing'}).")
        return 0
    lines, code = summary(packages)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
