#!/usr/bin/env bash
# pyte prints the second half of escape sequences that current programs send: colons in colours, DCS, APC.
#
# Seen with: pyte 0.8.2; @xterm/headless 6.0.0 beside it, which prints none of it.
#
# pyte's parser ends a CSI at the first character that is not a digit, a semicolon or one of a few controls. A colon
# ends it, and the rest is text: "\e[4:3m" (a curly underline, as Neovim sends it) shows "3m", "\e[38:5:9m" shows
# "5:9m". A DCS or APC string (XTGETTCAP, Kitty's graphics) is shown whole. None of them should move the cursor.
#
# Why it matters: every column behind such a sequence is off, so a screen that a predictor or a test compares with
# pyte's is wrong for the rest of the line. Filter these sequences before pyte, or use another emulator as the
# reference.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q pyte==0.8.2 wcwidth==0.9.4
npm install --silent --no-audit --no-fund --prefix "$dir" @xterm/headless@6.0.0
cat >sequences.json <<'JSON'
[["curly underline", "a\u001b[4:3mb"],
 ["indexed colour", "a\u001b[38:5:9mb"],
 ["direct colour", "a\u001b[38:2::1:2:3mb"],
 ["DCS", "a\u001bP+q544e\u001b\\b"],
 ["APC", "a\u001b_Gi=1;\u001b\\b"]]
JSON
cat >run.py <<'PY'
import json

import pyte

for name, text in json.load(open("sequences.json")):
    screen = pyte.Screen(20, 1)
    pyte.Stream(screen).feed(text)
    print(f"pyte, {name}: {screen.display[0].rstrip()}")
PY
cat >run.js <<'JS'
const { Terminal } = require('@xterm/headless');

(async () => {
  for (const [name, text] of require('./sequences.json')) {
    const terminal = new Terminal({ cols: 20, rows: 1, allowProposedApi: true });
    await new Promise((done) => terminal.write(text, done));
    console.log(`xterm.js, ${name}: ${terminal.buffer.active.getLine(0).translateToString(true)}`);
  }
})();
JS
{ "$dir/venv/bin/python" run.py; node run.js; } >actual

cat >expected <<'END'
pyte, curly underline: a3mb
pyte, indexed colour: a5:9mb
pyte, direct colour: a2::1:2:3mb
pyte, DCS: a+q544eb
pyte, APC: aGi=1;b
xterm.js, curly underline: ab
xterm.js, indexed colour: ab
xterm.js, direct colour: ab
xterm.js, DCS: ab
xterm.js, APC: ab
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
