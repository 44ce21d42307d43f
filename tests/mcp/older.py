"""The older official Python client, which is widely used still."""

import asyncio

from bed import Bed
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client


async def main(bed: Bed) -> None:
    asked: list[str] = []

    async def person(_: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": "once"})

    server = StdioServerParameters(command=bed.command, args=["mcp"], env=bed.env)
    async with stdio_client(server) as streams, ClientSession(*streams, elicitation_callback=person) as session:
        begun = await session.initialize()
        assert (begun.serverInfo.name, begun.protocolVersion) == ("trunkline", "2025-11-25"), begun
        assert len((await session.list_tools()).tools) == 11
        ran = await session.call_tool("run", {"hosts": bed.hosts, "command": "echo hello"})
        assert [host["stdout"]["text"] for host in ran.structuredContent["hosts"]] == ["hello\n"] * 2, ran
        path = bed.files / "made"
        made = await session.call_tool("run", {"hosts": ["box1"], "command": f"touch {path}"})
        assert not made.isError and path.exists() and len(asked) == 1, made
        # Ten thousand calls at once: each has an answer, and what is too much says that nothing was begun.
        calls = [session.call_tool("run", {"hosts": ["box1"], "command": "true"}) for _ in range(10_000)]
        answers = await asyncio.gather(*calls)
        for answer in answers:
            assert not answer.isError or "did not start" in answer.content[0].text, answer


with Bed() as the_bed:
    asyncio.run(main(the_bed))
