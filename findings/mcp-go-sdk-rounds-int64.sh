#!/usr/bin/env bash
# The Go MCP SDK rounds integers above 2^53, in a tool's int64 argument and in a request's id.
#
# Seen with: github.com/modelcontextprotocol/go-sdk 1.8.0.
#
# A tool whose input is a struct with an int64 field gets 9007199254740992 where the client sent 9007199254740993. The
# schema says "integer", and encoding/json alone would read the number exactly; but the SDK validates a map of float64
# and makes the struct from that map. The raw text in the request is still exact. The id of a request goes the same
# way: the answer carries another id, and the client waits for an answer that has been sent.
#
# Why it matters: times in nanoseconds and snowflake ids are above 2^53. Whoever writes an MCP client uses small ids,
# and whoever writes a tool takes such numbers as strings, although the server's language has 64-bit integers.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type input struct {
	N int64 `json:"n"`
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "finding", Version: "1"}, nil)
	show := func(_ context.Context, request *mcp.CallToolRequest, in input) (*mcp.CallToolResult, any, error) {
		text := fmt.Sprintf("raw %s, field %d", request.Params.Arguments, in.N)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	}
	mcp.AddTool(server, &mcp.Tool{Name: "show"}, show)
	server.Run(context.Background(), &mcp.StdioTransport{})
}
GO
go mod init finding 2>/dev/null
go get github.com/modelcontextprotocol/go-sdk@v1.8.0 github.com/modelcontextprotocol/go-sdk/mcp@v1.8.0 2>/dev/null
go build -o server .

cat >run.py <<'PY'
import json
import subprocess

server = subprocess.Popen(["./server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(**message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def ask(id, method, **params):
    send(id=id, method=method, params=params)
    return json.loads(server.stdout.readline())


ask(0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "finding", "version": "1"})
send(method="notifications/initialized")
for id, number in ((1, 2**53), (2, 2**53 + 1), (2**53 + 1, 7)):
    answer = ask(id, "tools/call", name="show", arguments={"n": number})
    print(f"id {id}, n {number}: id {answer['id']}, {answer['result']['content'][0]['text']}")
server.stdin.close()
server.wait()
PY
python3 run.py >actual

cat >expected <<'END'
id 1, n 9007199254740992: id 1, raw {"n": 9007199254740992}, field 9007199254740992
id 2, n 9007199254740993: id 2, raw {"n": 9007199254740993}, field 9007199254740992
id 9007199254740993, n 7: id 9007199254740992, raw {"n": 7}, field 7
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
