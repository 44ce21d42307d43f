#!/usr/bin/env bash
# vt10x (Go) stops at a character that is split between two writes and ignores REP; charm's vt clears more than asked.
#
# Seen with: github.com/hinshun/vt10x 5011da428d02, github.com/charmbracelet/x/vt 0.1.0; @xterm/headless 6.0.0 for comparison.
#
# vt10x's Write() keeps nothing of a UTF-8 character that is not whole: if its last byte is missing, it returns one byte
# less than it got, and no error; if more are missing, the bytes are dropped and counted. io.Copy takes the first for
# io.ErrShortWrite and ends. A wide character takes one column. ESC[nb (REP), which ncurses uses for runs of a character
# under TERM=xterm-256color, repeats nothing. x/vt takes ESC[3J, which is for the lines that have scrolled away, for the
# whole screen. Both overwrite in insert mode (ESC[4h).
#
# Why it matters: where a pty, a pipe or an SSH channel cuts its data is chance. A copy loop stops at the first "é" that
# is cut, and the screen is that of a program that hangs. "clear" and "tput reset" send ESC[3J behind other text.
# Hold back the bytes of an unfinished character before each Write() to vt10x.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export GOPATH="$dir/go" GOFLAGS=-modcacherw GOWORK=off
mkdir "$dir/src"
cd "$dir/src"
npm install --silent --no-audit --no-fund --ignore-scripts @xterm/headless@6.0.0 >npm.log 2>&1 || { cat npm.log >&2; exit 1; }

cat >cases.json <<'JSON'
[
  ["two writes, é", "a\u00e9z", 2],
  ["two writes, 日", "a\u65e5z", 2],
  ["wide, then back", "\u65e5\u001b[DX", 0],
  ["REP", "-\u001b[5b+", 0],
  ["ESC[3J", "abc\u001b[3Jd", 0],
  ["insert mode", "bc\r\u001b[4ha\u001b[4l", 0]
]
JSON
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing/iotest"

	"github.com/charmbracelet/x/vt"
	"github.com/hinshun/vt10x"
)

type terminal interface {
	io.Writer
	String() string
}

func line(t terminal) string {
	return strings.TrimRight(strings.Split(t.String(), "\n")[0], " \x00")
}

func main() {
	text, _ := os.ReadFile("cases.json")
	var cases [][]any
	if err := json.Unmarshal(text, &cases); err != nil {
		panic(err)
	}
	for _, name := range []string{"vt10x", "x/vt"} {
		fresh := func() terminal {
			if name == "vt10x" {
				return vt10x.New(vt10x.WithSize(20, 3))
			}
			return vt.NewEmulator(20, 3)
		}
		for _, c := range cases {
			t, data := fresh(), []byte(c[1].(string))
			at := int(c[2].(float64))
			t.Write(data[:at])
			t.Write(data[at:])
			fmt.Printf("%s, %s: %q\n", name, c[0], line(t))
		}
		t := fresh()
		_, err := io.Copy(t, iotest.OneByteReader(strings.NewReader("caf\u00e9 open")))
		fmt.Printf("%s, io.Copy: %q, error %v\n", name, line(t), err)
	}
}
GO
cat >main.mjs <<'JS'
import { readFileSync } from 'node:fs';
import headless from '@xterm/headless';

for (const [name, text, at] of JSON.parse(readFileSync('cases.json', 'utf8'))) {
  const terminal = new headless.Terminal({ cols: 20, rows: 3, allowProposedApi: true });
  const data = Buffer.from(text);
  terminal.write(data.subarray(0, at));
  await new Promise((resolve) => terminal.write(data.subarray(at), resolve));
  console.log(`xterm, ${name}: "${terminal.buffer.active.getLine(0).translateToString(true)}"`);
}
JS
go mod init finding 2>/dev/null
go get github.com/hinshun/vt10x@v0.0.0-20220301184237-5011da428d02 github.com/charmbracelet/x/vt@v0.1.0 2>get.log ||
    { cat get.log >&2; exit 1; }
{
    timeout 60 node main.mjs
    go run .
} >actual

cat >expected <<'END'
xterm, two writes, é: "aéz"
xterm, two writes, 日: "a日z"
xterm, wide, then back: " X"
xterm, REP: "------+"
xterm, ESC[3J: "abcd"
xterm, insert mode: "abc"
vt10x, two writes, é: "az"
vt10x, two writes, 日: "az"
vt10x, wide, then back: "X"
vt10x, REP: "-+"
vt10x, ESC[3J: "abcd"
vt10x, insert mode: "ac"
vt10x, io.Copy: "caf", error short write
x/vt, two writes, é: "aéz"
x/vt, two writes, 日: "a日z"
x/vt, wide, then back: " X"
x/vt, REP: "------+"
x/vt, ESC[3J: "   d"
x/vt, insert mode: "ac"
x/vt, io.Copy: "café open", error <nil>
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
