#!/usr/bin/env bash
# One "Match final" line in ssh_config, for a host that is never used, changes what the rest of the file means.
#
# Seen with: OpenSSH 9.2p1 (ssh -G) of Debian 12.
#
# A "final" criterion anywhere makes ssh read the whole configuration twice, and the second reading starts with what
# the first one has set. Then
# - "Match user joe" matches a User line that stands *below* it, which it does not see in a single reading;
# - SendEnv, which adds up, has every name twice.
# The block with "final" need not match: that the word is there is enough.
#
# Why it matters: a library that resolves ssh_config in one pass, and treats "final" as one more criterion, is wrong
# about lines that do not contain the word; and an Include of somebody else's file can change a setting of ours. A
# cache of ssh -G's answers has to see all files, and lists from ssh -G may hold duplicates.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/once" <<'END'
Match user joe
    Port 2222
Host web
    User joe
    SendEnv FIRST
    SendEnv SECOND
END
{
    cat "$dir/once"
    printf '%s\n' 'Match final host unused.example' '    Compression yes'
} >"$dir/twice"

for file in once twice; do
    ssh -TF "$dir/$file" -G web | sed -n "s/^\(user\|port\|compression\|sendenv\) /$file: &/p" | LC_ALL=C sort
done >"$dir/actual"

cat >"$dir/expected" <<'END'
once: compression no
once: port 22
once: sendenv FIRST
once: sendenv SECOND
once: user joe
twice: compression no
twice: port 2222
twice: sendenv FIRST
twice: sendenv FIRST
twice: sendenv SECOND
twice: sendenv SECOND
twice: user joe
END
diff -u "$dir/expected" "$dir/actual" || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
