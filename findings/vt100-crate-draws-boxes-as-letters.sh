#!/usr/bin/env bash
# vt100 (Rust): line drawing, insert mode, tab stops and lines that do not wrap are ignored; boxes are made of letters.
#
# Seen with: vt100 0.18.1; @xterm/headless 6.0.0 beside it; tput and Python's curses for xterm-256color on Debian 12.
#
# The parser drops ESC ( 0, CSI 4h, ESC H, CSI g, CSI Z and CSI ?7l without a word, and prints what follows as if they
# had not been there. All of them are in xterm's entry in terminfo, so programs that ask terminfo send them. curses
# draws its lines with ESC ( 0 in the C locale: a box is "lqqk" above and "mqqj" below.
#
# Why it matters: a service, a container or a login by SSH without LANG runs in the C locale, and there each frame and
# rule on a screen that was taken down with vt100 is letters. Text behind an insert or a tab is in other columns. Do not
# take the crate as the reference for another emulator.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --prefix "$dir" @xterm/headless@6.0.0
export CARGO_HOME=$dir/cargo CARGO_TARGET_DIR=$dir/target TERM=xterm-256color
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2021"

[dependencies]
vt100 = "=0.18.1"
TOML
cat >src/main.rs <<'RS'
use std::{env, fs, num::NonZeroU16};

fn main() {
    let (rows, columns) = (NonZeroU16::new(4).unwrap(), NonZeroU16::new(10).unwrap());
    let mut parser = vt100::Parser::new(rows, columns, 0);
    parser.process(&fs::read(env::args().nth(1).unwrap()).unwrap());
    for row in parser.screen().rows(0, 10) {
        println!("{}", row.trim_end());
    }
}
RS
cat >screen.js <<'JS'
const { Terminal } = require('@xterm/headless');
const terminal = new Terminal({ cols: 10, rows: 4, allowProposedApi: true });
terminal.write(require('fs').readFileSync(process.argv[2]), () => {
  for (let row = 0; row < 4; row++) console.log(terminal.buffer.active.getLine(row).translateToString(true).trimEnd());
});
JS
cat >box.py <<'PY'
import curses
import os
import pty
import sys

child, terminal = pty.fork()
if child == 0:
    os.environ.update(LC_ALL="C", LINES="4", COLUMNS="10")
    window = curses.initscr()
    window.border()
    window.addstr(1, 2, "text")
    window.refresh()
    os._exit(0)
output = b""
try:
    while part := os.read(terminal, 4096):
        output += part
except OSError:
    pass
sys.stdout.buffer.write(output)
PY
cargo build -q --jobs 1 >cargo.log 2>&1 || { cat cargo.log >&2; exit 1; }

show() { # WHAT, with the output on stdin
    cat >output
    echo "$1"
    target/debug/finding output | sed '/^$/d; s/^/  vt100:    /'
    node screen.js output | sed '/^$/d; s/^/  xterm.js: /'
}
{
    { tput smacs; echo -n lqqk; tput rmacs; } | show "line drawing (smacs)"
    { echo -n abc; tput cub 3; tput smir; echo -n XY; tput rmir; } | show "insert mode (smir)"
    { tput cup 0 3; tput hts; echo -ne '\r\tx'; } | show "a new tab stop (hts)"
    { echo -ne 'a\tb'; tput cbt; echo -n c; } | show "back to a tab stop (cbt)"
    { tput rmam; echo -n 0123456789abc; tput smam; } | show "no wrapping (rmam)"
    python3 box.py | show "a box by curses, locale C"
} >actual

cat >expected <<'END'
line drawing (smacs)
  vt100:    lqqk
  xterm.js: ┌──┐
insert mode (smir)
  vt100:    XYc
  xterm.js: XYabc
a new tab stop (hts)
  vt100:            x
  xterm.js:    x
back to a tab stop (cbt)
  vt100:    a       bc
  xterm.js: a       c
no wrapping (rmam)
  vt100:    0123456789
  vt100:    abc
  xterm.js: 012345678c
a box by curses, locale C
  vt100:    lqqqqqqqqk
  vt100:    x text   x
  vt100:    x        x
  vt100:    mqqqqqqqqj
  xterm.js: ┌────────┐
  xterm.js: │ text   │
  xterm.js: │        │
  xterm.js: └────────┘
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
