#!/usr/bin/env bash
# ssh2-config (Rust): a file that it has read and writes again has no algorithms, one IdentityFile and no quotes.
#
# Seen with: ssh2-config 0.9.0; OpenSSH 9.2p1 (ssh -G) reads both files.
#
# SshConfig is printed with its own Display. Lists of algorithms keep a "^" and lose the names. Two IdentityFile lines
# become one with a comma between the names, which ssh takes for the name of one file. A value that needs quotes has
# none.
#
# Why it matters: ssh stops at the empty lists and at a value of two words, for every host in the file. The comma goes
# through, and ssh looks for one key of a strange name. Edit the text of an ssh_config, do not write it anew.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export CARGO_HOME=$dir/cargo CARGO_TARGET_DIR=$dir/target
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2021"

[dependencies]
ssh2-config = "=0.9.0"
TOML
cat >src/main.rs <<'RS'
use ssh2_config::{ParseRule, SshConfig};
use std::io;

fn main() {
    print!("{}", SshConfig::default().parse(&mut io::stdin().lock(), ParseRule::STRICT).unwrap());
}
RS
cargo build -q --jobs 1 >cargo.log 2>&1 || { cat cargo.log >&2; exit 1; }

show() { # KEYWORDS, and the lines on stdin
    cat >before
    target/debug/finding <before >after
    echo "written:"
    sed '/^$/d; s/ *$//' after
    for file in before after; do
        { ssh -TG -F "$file" web 2>&1 || true; } | tr -d '\r' | grep -E "^(${1,,}) |^$file" | cut -c1-70 |
            sed "s/^/  $file, ssh: /"
    done
}
{
    show IdentityFile <<'END'
Host web
    IdentityFile /keys/one
    IdentityFile /keys/two
END
    show HostKeyAlgorithms <<'END'
Host web
    HostKeyAlgorithms ssh-ed25519
END
    show Ciphers <<'END'
Host web
    Ciphers ^aes256-ctr
END
    show User <<'END'
Host web
    User "two words"
END
} >actual

cat >expected <<'END'
written:
Host web
    IdentityFile /keys/one,/keys/two
  before, ssh: identityfile /keys/one
  before, ssh: identityfile /keys/two
  after, ssh: identityfile /keys/one,/keys/two
written:
Host web
    HostKeyAlgorithms
  before, ssh: hostkeyalgorithms ssh-ed25519
  after, ssh: after line 2: no argument after keyword "hostkeyalgorithms"
  after, ssh: after: terminating, 1 bad configuration options
written:
Host web
    Ciphers ^
  before, ssh: ciphers aes256-ctr,chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr
  after, ssh: after line 2: Bad SSH2 cipher spec '^'.
  after, ssh: after: terminating, 1 bad configuration options
written:
Host web
    User two words
  before, ssh: user two words
  after, ssh: after line 2: keyword user extra arguments at end of line
  after, ssh: after: terminating, 1 bad configuration options
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
