"""Three demo servers on which the service nginx fails, each for a reason of its own, and the rules of the guide.

Each server sees files of its own at /etc/nginx and /var/log, and a systemctl and a journalctl of its own: stock sshd in a mount
namespace. All else is this machine's.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

from bed import PROGRAMS, Bed

ROOT = Path(__file__).resolve().parents[2]

SYSTEMCTL = """#!/bin/sh
# systemctl, as far as a service of this kind needs it.
conf=/etc/nginx/nginx.conf state={state}
fail() {{
    echo "$1" >> /var/log/nginx/error.log
    echo "nginx[17]: $1" >> "$state/journal"
    rm -f "$state/active"
    echo "Job for nginx.service failed because the control process exited with error code." >&2
    exit 1
}}
[ "$2" = nginx ] || {{ echo "Unit $2.service could not be found." >&2; exit 4; }}
case $1 in
status)
    [ -e "$state/active" ] && {{ echo "nginx.service - a demo"; echo "   Active: active (running)"; exit 0; }}
    echo "nginx.service - a demo"; echo "   Active: failed (Result: exit-code)"; exit 3 ;;
restart | reload)
    [ "$(id -u)" = 0 ] || {{ echo "Access denied" >&2; exit 4; }}
    bad=$(grep -nvE '^ *(listen [0-9]+;|root /[a-z/]+;|#.*|[{{}}]|server [{{])? *$' "$conf" | head -n 1)
    [ -z "$bad" ] || fail "[emerg] unknown directive in $conf:${{bad%%:*}}"
    [ ! -e "$state/full" ] || fail "[emerg] open() /var/lib/nginx/cache failed (28: No space left on device)"
    touch "$state/active"
    echo "nginx[18]: started" >> "$state/journal"
    echo "GET / 200" >> /var/log/nginx/access.log ;;
*) exit 1 ;;
esac
"""

JOURNALCTL = """#!/bin/sh
# journalctl -u nginx -n LINES --no-pager
[ "$2" = nginx ] && exec tail -n "$4" {state}/journal
"""

GOOD = "server {\n    listen 8080;\n    root /srv/www;\n}\n"
# What is wrong with each: two with their configuration, the third with its disk.
CONFIGURATIONS = {"web1": GOOD.replace("listen", "lissten"), "web2": GOOD.replace("8080;", "8080"), "db1": GOOD}


def rules_of_the_guide() -> str:
    """The first block of the page on agents."""
    text = (ROOT / "docs/guide/mcp.md").read_text()
    block = re.search(r"^ *```toml\n(.*?)^ *```", text, re.S | re.M)
    assert block
    return block[1]


class Demo(Bed):
    """A bed whose hosts are web1, web2 and db1."""

    def __init__(self) -> None:
        super().__init__(servers=1, rules=rules_of_the_guide())
        self.demos = []
        hosts = []
        for name, configuration in CONFIGURATIONS.items():
            root = self.place.parent / name
            for directory in ("nginx", "log/nginx", "log/private", "sbin", "state"):
                (root / directory).mkdir(parents=True)
            (root / "nginx/nginx.conf").write_text(configuration)
            (root / "log/private/secret").write_text("secret\n")
            (root / "log/nginx/access.log").write_text("GET / 200\n" * 3)
            if name == "db1":
                (root / "state/full").touch()
            for program, text in [("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)]:
                (root / "sbin" / program).write_text(text.format(state=root / "state"))
                (root / "sbin" / program).chmod(0o755)
            words = [shlex.quote(str(word)) for word in (root / "nginx", root / "log", root / "sbin", PROGRAMS / "trunkline-testbed")]
            script = (
                "mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work && "
                "mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc && "
                f"mkdir -p /etc/nginx && mount --bind {words[0]} /etc/nginx && mount --bind {words[1]} /var/log && "
                f"mount --bind {words[2]} /usr/local/sbin && /usr/local/sbin/systemctl restart nginx 2>/dev/null; "
                f"exec {words[3]} --alias {name}-"
            )
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
            demo = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.demos.append(demo)
            assert demo.stdout is not None
            about = json.loads(demo.stdout.readline())
            hosts.append(Path(about["ssh_config"]).read_text().replace(f"{name}-1", name))
        config = self.place.parent / "ssh_config"
        config.write_text("\n".join(hosts))
        self.rules(f"ssh_config = {json.dumps(str(config))}\n{rules_of_the_guide()}")

    def __exit__(self, *error: object) -> None:
        for demo in self.demos:
            demo.communicate()
        super().__exit__(*error)

    def file(self, host: str, path: str) -> Path:
        """What a server has at a path, from here."""
        return self.place.parent / host / path


# What a client does, step by step: what it calls, what the answer has in it (`denied`: it is an error), and what is kept of it for
# later steps, where "$name" stands for it.
ALL = ["web1", "web2", "db1"]
CONF = "/etc/nginx/nginx.conf"
JOURNAL = "journalctl -u nginx -n 20 --no-pager"
STEPS = [
    {"tool": "hosts", "has": ["web1", "web2", "db1", "allow run: systemctl status *", "ask-for write: /etc/nginx"]},
    {"tool": "run", "with": {"hosts": ALL, "command": "systemctl status nginx"}, "has": ["Active: failed"]},
    {"tool": "run", "with": {"hosts": ALL, "command": JOURNAL}, "has": ["nginx.conf:2", "No space left on device"]},
    {"tool": "list", "with": {"host": "web1", "path": "/etc/nginx"}, "has": ["nginx.conf"]},
    {"tool": "read", "with": {"host": "web1", "path": CONF}, "has": ["lissten 8080;"], "keep": {"first": "sha256"}},
    {"tool": "search", "with": {"host": "web2", "path": "/etc/nginx", "pattern": "listen"}, "has": ["listen 8080"]},
    {"tool": "read", "with": {"host": "web2", "path": CONF}, "has": ["8080"], "keep": {"second": "sha256"}},
    {"tool": "tail", "with": {"host": "web1", "path": "/var/log/nginx/error.log"}, "has": ["[emerg]"]},
    {"tool": "read", "with": {"host": "web1", "path": "/var/log/private/secret"}, "denied": "denies"},
    {"tool": "run", "with": {"hosts": ["web1"], "command": "systemctl restart nginx"}, "denied": "no rule allows"},
    {"tool": "write", "with": {"host": "db1", "path": CONF, "content": GOOD}, "denied": "no rule allows"},
    {"tool": "write", "with": {"host": "web1", "path": CONF, "content": GOOD, "expected_sha256": "$second"}, "denied": "not what was expected", "asks": CONF},
    {"tool": "write", "with": {"host": "web1", "path": CONF, "content": GOOD, "expected_sha256": "$first"}, "asks": CONF},
    {"tool": "write", "with": {"host": "web2", "path": CONF, "content": GOOD, "expected_sha256": "$second"}, "asks": CONF},
    {"tool": "tail", "with": {"host": "web1", "path": "/var/log/nginx/access.log"}, "keep": {"end": "next_offset"}},
    {
        "tool": "run",
        "with": {"hosts": ["web1", "web2"], "command": "systemctl restart nginx", "sudo": True},
        "asks": "systemctl restart nginx",
    },
    {"tool": "run", "with": {"hosts": ["web1", "web2"], "command": "systemctl status nginx"}, "has": ["active (running)"]},
    {
        "tool": "tail",
        "with": {"host": "web1", "path": "/var/log/nginx/access.log", "after_offset": "$end", "wait_seconds": 50},
        "has": ["GET / 200"],
    },
    {"tool": "run", "with": {"hosts": ["db1"], "command": JOURNAL, "wait_seconds": 0}, "keep": {"job": "job"}},
    {"tool": "follow", "with": {"job": "$job", "wait_seconds": 50}, "has": ["No space left on device"]},
]
