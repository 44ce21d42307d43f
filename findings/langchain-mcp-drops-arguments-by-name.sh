#!/usr/bin/env bash
# langchain-mcp-adapters: arguments of a tool that are called "config", "runtime" or "run_manager" never reach the server.
#
# Seen with: langchain-mcp-adapters 0.3.2, langchain-core 1.8.3, mcp 1.30.0 (PyPI).
#
# Each MCP tool becomes a LangChain tool that passes its arguments on as Python keywords. "runtime" is a parameter of the
# adapter's own function, "config" and "run_manager" are parameters of LangChain's, so that arguments of these names are taken
# for those. The tool's schema has them, the model fills them in, and the call goes out without them. There is no warning.
# ClientSession.call_tool() of the same session sends all. LangChain's manual keeps the first two for itself in tools that
# are written for it, and announces errors; whoever writes an MCP server does not read that, and there is no error.
#
# Why it matters: "config" and "runtime" are common names ("deploy with config staging", "run on runtime python3.12"). An
# optional one is replaced by the server's default, and the result looks right. A required one gives an error that the
# model cannot mend, since it did give it. Avoid these names in the tools of a server.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q langchain-mcp-adapters==0.3.2 langchain-core==1.8.3 mcp==1.30.0

cat >server.py <<'PY'
import asyncio
import json
import sys

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

server = Server("echo")


@server.list_tools()
async def list_tools():
    properties = {name: {"type": "string"} for name in sys.argv[1:]}
    return [types.Tool(name="echo", inputSchema={"type": "object", "properties": properties})]


@server.call_tool()
async def call_tool(name, arguments):
    return [types.TextContent(type="text", text=json.dumps(arguments))]


async def main():
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


asyncio.run(main())
PY
cat >run.py <<'PY'
import asyncio
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

NAMES = ["text", "callbacks", "config", "request", "run_manager", "runtime", "session", "tool_call_id"]


async def main():
    client = MultiServerMCPClient(
        {"echo": {"transport": "stdio", "command": sys.executable, "args": ["server.py", *NAMES]}})
    async with client.session("echo") as session:
        [tool] = await load_mcp_tools(session)
        for name in NAMES:
            arguments = {"text": "t", name: "given"}
            direct = (await session.call_tool("echo", arguments)).content[0].text
            call = {"type": "tool_call", "id": "1", "name": "echo", "args": arguments}
            try:
                through = (await tool.ainvoke(call)).content[0]["text"]
            except Exception as error:
                through = type(error).__name__
            print(f"{name}: call_tool sends {direct}, LangChain {through}")


asyncio.run(main())
PY
timeout 100 venv/bin/python run.py >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
text: call_tool sends {"text": "given"}, LangChain {"text": "given"}
callbacks: call_tool sends {"text": "t", "callbacks": "given"}, LangChain {"text": "t", "callbacks": "given"}
config: call_tool sends {"text": "t", "config": "given"}, LangChain {"text": "t"}
request: call_tool sends {"text": "t", "request": "given"}, LangChain {"text": "t", "request": "given"}
run_manager: call_tool sends {"text": "t", "run_manager": "given"}, LangChain {"text": "t"}
runtime: call_tool sends {"text": "t", "runtime": "given"}, LangChain {"text": "t"}
session: call_tool sends {"text": "t", "session": "given"}, LangChain {"text": "t", "session": "given"}
tool_call_id: call_tool sends {"text": "t", "tool_call_id": "given"}, LangChain {"text": "t", "tool_call_id": "given"}
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
