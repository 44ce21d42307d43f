"""parallel-ssh as a program: parallel.py HOSTS_FILE PORT USER KEY WARM_RUNS.

Prints the nanoseconds of `true` on every host, first with no connection and then WARM_RUNS times over the connections
that the first run left. Starting Python and importing the package are not counted. It takes any host key.
"""

import sys
import time
from pathlib import Path

from pssh.clients import ParallelSSHClient


def run(client: ParallelSSHClient) -> int:
    """One command everywhere; the nanoseconds until its last exit status is known."""
    begun = time.monotonic_ns()
    outputs = client.run_command("true")
    client.join(outputs)
    elapsed = time.monotonic_ns() - begun
    failed = [output.host for output in outputs if output.exit_code != 0]
    if failed:
        sys.exit(f"true failed on {failed}")
    return elapsed


def main() -> None:
    hosts_file, port, user, key, warm_runs = sys.argv[1:]
    hosts = Path(hosts_file).read_text().split()
    client = ParallelSSHClient(hosts, port=int(port), user=user, pkey=key, pool_size=len(hosts), allow_agent=False)
    for _ in range(1 + int(warm_runs)):
        print(run(client), flush=True)


main()
