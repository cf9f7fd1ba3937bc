"""python .ci/check_skips.py REPORT.xml ...: fails if more tests were skipped than stated here, kind by kind.

A test that is skipped proves nothing, and nobody sees it go. REPORT.xml is what `pytest --junitxml` writes; several
are counted as one.
"""

import os
import re
import sys
from collections import Counter
from xml.etree import ElementTree

# Kind: (what its reason says, at most so many).
ALLOWED = {
    # A GPU's test whose twin on the CPU passed is not counted: the same lines ran in the interpreter.
    "gpu without a twin": (r"no GPU", 6),  # five training shapes, and a second GPU
    "data": (r"SCM_FAST_DATA is not set", 0 if os.environ.get("SCM_FAST_DATA") else 12),
    "chromium": (r"chromium", 0),
    "docker": (r"docker does not run", 1),
    "namespaces": (r"network namespaces", 1),
}


def skipped_by_kind(reports: list[str]) -> dict[str, list[str]]:
    """Names of skipped tests; the kind of a reason that is none of ALLOWED is the reason."""
    cases = {
        f"{case.get('classname')}::{case.get('name')}": case
        for report in reports
        for case in ElementTree.parse(report).iter("testcase")
    }
    passed = {name for name, case in cases.items() if len(case) == 0 or case[0].tag.startswith("system")}
    found: dict[str, list[str]] = {}
    for name, case in cases.items():
        for skip in case.iter("skipped"):
            reason = f"{skip.get('message')} {skip.text}"
            kind = next((k for k, (said, _) in ALLOWED.items() if re.search(said, reason)), reason)
            if kind != "gpu without a twin" or name.replace("cuda", "cpu") not in passed:
                found.setdefault(kind, []).append(name)
    return found


def main(reports: list[str]) -> int:
    found = skipped_by_kind(reports)
    counts = Counter({kind: len(names) for kind, names in found.items()})
    print("skipped:", ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "none")
    status = 0
    for kind, names in found.items():
        most = ALLOWED[kind][1] if kind in ALLOWED else 0
        if len(names) > most:
            status = 1
            print(f"{len(names)} tests skipped, at most {most} may be ({kind}):", *names, sep="\n  ")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
