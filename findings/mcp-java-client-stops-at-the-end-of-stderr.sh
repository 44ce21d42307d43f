#!/usr/bin/env bash
# The Java MCP SDK's client gets no answers from a server whose stderr goes elsewhere, or that prints one line of text.
#
# Seen with: io.modelcontextprotocol.sdk:mcp 2.1.0 on Java 17; the server is the Python SDK's (mcp 2.3.0), and its client is
# the one that differs.
#
# StdioClientTransport reads three pipes, and the end of any of them ends all. With "exec server 2>log" in a wrapper the
# pipe of stderr ends before the first request: what is sent from then on is dropped, what the server says is not read,
# and each call waits for its time limit. A line on stdout that is not JSON ends the reading in the same way, with a
# message in the log. The server goes on and waits.
#
# Why it matters: "Did not observe any item or terminal signal within 20000ms" is all that is told, and it looks as if the
# server hung. It works for the same command in a shell and with other SDKs. Let the program write its log to a file
# itself and keep its stderr open; a wrapper must print nothing to stdout.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q mcp==2.3.0
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>io.modelcontextprotocol.sdk</groupId><artifactId>mcp</artifactId><version>2.1.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>2.0.16</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }

cat >server.py <<'PY'
from mcp.server import MCPServer

server = MCPServer("finding")


@server.tool()
def greet(name: str) -> str:
    return f"hello {name}"


server.run()
PY
cat >Run.java <<'JAVA'
import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.transport.ServerParameters;
import io.modelcontextprotocol.client.transport.StdioClientTransport;
import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.spec.McpSchema.CallToolRequest;
import io.modelcontextprotocol.spec.McpSchema.TextContent;
import java.time.Duration;
import java.util.Map;

public class Run {
    public static void main(String[] commands) {
        for (var command : commands) {
            var parameters = ServerParameters.builder("sh").args("-c", command).build();
            var limit = Duration.ofSeconds(20);
            String answer;
            try (var client = McpClient.sync(new StdioClientTransport(parameters, McpJsonDefaults.getMapper()))
                    .requestTimeout(limit).initializationTimeout(limit).build()) {
                client.initialize();
                var result = client.callTool(new CallToolRequest("greet", Map.of("name", "you")));
                answer = ((TextContent) result.content().get(0)).text();
            } catch (RuntimeException error) {
                answer = "no answer";
            }
            System.out.println("Java: " + command + ": " + answer);
        }
        System.exit(0);
    }
}
JAVA
cat >run.py <<'PY'
import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    for command in sys.argv[1:]:
        async with stdio_client(StdioServerParameters(command="sh", args=["-c", command])) as streams:
            async with ClientSession(*streams) as session:
                await session.initialize()
                result = await session.call_tool("greet", {"name": "you"})
                print(f"Python: {command}: {result.content[0].text}")


asyncio.run(main())
PY
commands=("venv/bin/python server.py" "exec venv/bin/python server.py 2>server.log" "echo starting; venv/bin/python server.py")
{
    timeout 120 venv/bin/python run.py "${commands[@]}" 2>errors
    timeout 240 java -cp 'lib/*' Run.java "${commands[@]}" 2>>errors
} >actual

cat >expected <<'END'
Python: venv/bin/python server.py: hello you
Python: exec venv/bin/python server.py 2>server.log: hello you
Python: echo starting; venv/bin/python server.py: hello you
Java: venv/bin/python server.py: hello you
Java: exec venv/bin/python server.py 2>server.log: no answer
Java: echo starting; venv/bin/python server.py: no answer
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
