#!/usr/bin/env bash
# The Python MCP SDK parses a string argument as JSON unless the type of the parameter is exactly `str`.
#
# Seen with: mcp 2.3.0 (its MCPServer) on Python 3.11.
#
# If a string is the JSON text of an object, an array or null, the SDK replaces it with the parsed value before it
# validates the argument. The server's own schema for `str | None` says "string or null", but a client that sends the
# string '[1]' gets the error "Input should be a valid string", and the string 'null' arrives as None. A parameter of
# type Any receives a list or a dict. The SDK does not change 'true' and '7', nor any string for a plain `str`.
#
# Why it matters: a tool that writes a file or runs a command takes text, and this text may be JSON. If the parameter
# becomes optional, only the calls with such text fail. Use the type `str` with an empty default. A client cannot
# avoid the error, because the schema does not show it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q mcp==2.3.0

cat >"$dir/server.py" <<'PY'
from typing import Any

from mcp.server import MCPServer

server = MCPServer("finding")


@server.tool()
def plain(text: str = "") -> str:
    return repr(text)


@server.tool()
def optional(text: str | None = None) -> str:
    return repr(text)


@server.tool()
def anything(text: Any = None) -> str:
    return repr(text)


server.run()
PY

cat >"$dir/run.py" <<'PY'
import json
import subprocess
import sys

server = subprocess.Popen([sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)


def send(**message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def ask(id, method, **params):
    send(id=id, method=method, params=params)
    return json.loads(server.stdout.readline())["result"]


ask(0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "finding", "version": "1"})
send(method="notifications/initialized")
for tool in ask(1, "tools/list")["tools"]:
    schema = tool["inputSchema"]["properties"]["text"]
    types = [each["type"] for each in schema.get("anyOf", [schema]) if "type" in each]
    print(f"{tool['name']}: the schema says {' or '.join(types) or 'nothing'}")
    for text in ('{"a": 1}', "[1]", "null", "true", "7", "a"):
        result = ask(2, "tools/call", name=tool["name"], arguments={"text": text})
        answer = result["content"][0]["text"]
        if result.get("isError"):
            answer = "refused, " + next(line.strip().split(" [")[0] for line in answer.splitlines() if "should" in line)
        print(f"  {text} -> {answer}")
server.stdin.close()
server.wait()
PY
"$dir/venv/bin/python" "$dir/run.py" "$dir/server.py" >"$dir/actual"

cat >"$dir/expected" <<'END'
plain: the schema says string
  {"a": 1} -> '{"a": 1}'
  [1] -> '[1]'
  null -> 'null'
  true -> 'true'
  7 -> '7'
  a -> 'a'
optional: the schema says string or null
  {"a": 1} -> refused, Input should be a valid string
  [1] -> refused, Input should be a valid string
  null -> None
  true -> 'true'
  7 -> '7'
  a -> 'a'
anything: the schema says nothing
  {"a": 1} -> {'a': 1}
  [1] -> [1]
  null -> None
  true -> 'true'
  7 -> '7'
  a -> 'a'
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
