#!/usr/bin/env bash
# At the end of stdin, a server of the Go MCP SDK leaves without a word, and with status 0, while a call is running.
#
# Seen with: github.com/modelcontextprotocol/go-sdk 1.8.0; github.com/mark3labs/mcp-go 1.2.1 beside it.
#
# The same call of half a second on both, with stdin closed while it runs, as in `generate-requests | server`:
# - go-sdk: Server.Run returns at once and does not wait for the handler, so a main that ends with Run ends the
#   process. Whether the handler still sees its context cancelled is a race. There is no answer, and Run's error is
#   nil.
# - mcp-go: the context is cancelled, and the call is answered with the error "context canceled" before the end.
#
# Why it matters: a script that pipes its requests in gets nothing and takes it for success. Stdin has to stay open
# until the last answer is there. And a tool that must stop something at the far end cannot leave that to its context:
# with this SDK the process may be gone before the handler has seen anything.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir -p "$dir/src/official" "$dir/src/mark3labs"
cd "$dir/src"
cat >work.go <<'GO'
package finding

import (
	"context"
	"fmt"
	"os"
	"time"
)

// Work says on stderr that it has begun, and takes half a second unless it is cancelled.
func Work(ctx context.Context) (string, error) {
	fmt.Fprintln(os.Stderr, "handler has begun")
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(500 * time.Millisecond):
		return "done", nil
	}
}
GO
cat >official/main.go <<'GO'
package main

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"finding"
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "finding", Version: "1"}, nil)
	work := func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		text, err := finding.Work(ctx)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
	}
	mcp.AddTool(server, &mcp.Tool{Name: "work"}, work)
	server.Run(context.Background(), &mcp.StdioTransport{})
}
GO
cat >mark3labs/main.go <<'GO'
package main

import (
	"context"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"finding"
)

func main() {
	s := server.NewMCPServer("finding", "1")
	s.AddTool(mcp.NewTool("work"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		text, err := finding.Work(ctx)
		return mcp.NewToolResultText(text), err
	})
	server.ServeStdio(s)
}
GO
go mod init finding 2>/dev/null
go get github.com/modelcontextprotocol/go-sdk@v1.8.0 github.com/mark3labs/mcp-go@v1.2.1 2>/dev/null
go mod tidy 2>/dev/null
mkdir bin
go build -o bin ./official ./mark3labs

cat >run.py <<'PY'
import json
import subprocess
import sys

pipe = subprocess.PIPE
server = subprocess.Popen([sys.argv[1]], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def send(**message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


client = {"name": "finding", "version": "1"}
send(id=0, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
server.stdout.readline()
send(method="notifications/initialized")
send(id=1, method="tools/call", params={"name": "work", "arguments": {}})
print(server.stderr.readline().strip())
server.stdin.close()
print(server.stdout.read().strip() or "no answer")
print("exit status", server.wait())
PY
for name in official mark3labs; do
    echo "$name:"
    python3 run.py "bin/$name"
done >actual

cat >expected <<'END'
official:
handler has begun
no answer
exit status 0
mark3labs:
handler has begun
{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"context canceled"}}
exit status 0
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
