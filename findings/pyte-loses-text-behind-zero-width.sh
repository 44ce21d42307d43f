#!/usr/bin/env bash
# pyte drops the text that follows a zero-width character, up to the end of the chunk or the next control.
#
# Seen with: pyte 0.8.2, wcwidth 0.9.4.
#
# Stream.feed passes a run of printable text to Screen.draw as a whole. At a character without width that is not a
# combining mark (ZERO WIDTH SPACE, ZERO WIDTH NON-JOINER as in Persian, WORD JOINER, a byte order mark) draw leaves
# its loop instead of going to the next character, so the rest of the run is not drawn. The same bytes, fed one at a
# time, give the full text: what is on the screen depends on how the network cut the stream.
#
# Why it matters: Python programs use pyte as the reference for a screen, and a comparison with it fails or passes by
# chance of the chunks. A test that compares screens has to feed pyte in single characters, and must not take a
# difference behind such a character for its own error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q pyte==0.8.2 wcwidth==0.9.4
cat >"$dir/run.py" <<'PY'
import pyte


def screen(*chunks):
    screen = pyte.Screen(20, 1)
    stream = pyte.Stream(screen)
    for chunk in chunks:
        stream.feed(chunk)
    return screen.display[0].rstrip()


for character in "\u200b\u200c\u2060\ufeff":
    text = f"ab{character}cd\x1b[1mef"
    print(f"U+{ord(character):04X}: at once {screen(text)}, one at a time {screen(*text)}")
PY
"$dir/venv/bin/python" "$dir/run.py" >"$dir/actual"

cat >"$dir/expected" <<'END'
U+200B: at once abef, one at a time abcdef
U+200C: at once abef, one at a time abcdef
U+2060: at once abef, one at a time abcdef
U+FEFF: at once abef, one at a time abcdef
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
