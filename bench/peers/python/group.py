"""trunkline.Group as a program: group.py SSH_CONFIG HOSTS_FILE WARM_RUNS.

Prints the nanoseconds of `true` on every host, first with no connection and then WARM_RUNS times over the connections
that the first run left. Starting Python and importing the package are not counted.
"""

import sys
import time

import trunkline


def run(group: trunkline.Group) -> int:
    """One command everywhere; the nanoseconds until its last exit status is known."""
    begun = time.monotonic_ns()
    results = group.run("true").wait()
    elapsed = time.monotonic_ns() - begun
    failed = [result.host for result in results if not result.ok]
    if failed:
        sys.exit(f"true failed on {failed}")
    return elapsed


def main() -> None:
    config, hosts_file, warm_runs = sys.argv[1:]
    with trunkline.Group(f"@{hosts_file}", config=config, daemon=False) as group:
        for _ in range(1 + int(warm_runs)):
            print(run(group), flush=True)


main()
