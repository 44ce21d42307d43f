#!/usr/bin/env bash
# xterm.js's serialize add-on writes a "-" into the screen where a wrapped line was erased.
#
# Seen with: @xterm/addon-serialize 0.14.0, @xterm/headless 6.0.0, Node 20.
#
# Where a line continues the one above, the add-on has to make the second terminal wrap. It fills the rest of the row
# above with dashes, one past the end, goes back and erases them. In an empty row it goes to the first of them by CSI 0 C,
# and terminals take that 0 for a 1. One dash stays.
#
# Why it matters: text that is longer than a row, and of which a row in the middle is erased later (a prompt that is
# redrawn, a progress line, a pager), gets a character that no program has printed. A session that is shown again from
# such a snapshot differs from what was on the screen, and so does what is searched or copied from it. Compare with
# translateToString() of the lines, which is right.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund --prefix "$dir" @xterm/headless@6.0.0 @xterm/addon-serialize@0.14.0

cat >run.js <<'JS'
const { Terminal } = require('@xterm/headless');
const { SerializeAddon } = require('@xterm/addon-serialize');

const create = () => new Terminal({ cols: 10, rows: 4, allowProposedApi: true });
const write = (terminal, text) => new Promise((done) => terminal.write(text, done));
const rows = (terminal) => {
  const buffer = terminal.buffer.active;
  return JSON.stringify([0, 1, 2, 3].map((row) => buffer.getLine(row).translateToString(true)));
};

(async () => {
  const text = 'a line of 25 characters..';
  for (const [what, sequence] of [
    ['as it was written', ''],
    ['row 2 erased', '\x1b[2;1H\x1b[2K'],
    ['rows 2 and 3 erased', '\x1b[2;1H\x1b[J'],
    ['row 2 erased and written', '\x1b[2;1H\x1b[2Knew'],
  ]) {
    const first = create();
    const addon = new SerializeAddon();
    first.loadAddon(addon);
    await write(first, text + sequence);
    const second = create();
    await write(second, addon.serialize());
    console.log(`${what}: ${rows(first)}`);
    if (rows(second) !== rows(first)) {
      console.log(`  restored: ${rows(second)}`);
    }
  }
})();
JS
node run.js >actual

cat >expected <<'END'
as it was written: ["a line of ","25 charact","ers..",""]
row 2 erased: ["a line of ","","ers..",""]
  restored: ["a line of ","-","ers..",""]
rows 2 and 3 erased: ["a line of ","","",""]
row 2 erased and written: ["a line of ","new","ers..",""]
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
