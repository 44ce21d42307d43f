#!/usr/bin/env bash
# ssh2-config (Rust): the last value in a Host block counts, not the first, and Match lines change the Host above them.
#
# Seen with: ssh2-config 0.9.0; OpenSSH 9.2p1 (ssh -G) for comparison.
#
# In ssh_config the first value of a keyword counts, in one block and over all. The crate keeps to that from block to
# block, but in a block the last line counts. With ALLOW_UNKNOWN_FIELDS, the rule that reads files with Match at all, a
# Match line is a field with an unknown name: the block goes on, and what stands below it goes to the Host above.
#
# Why it matters: both together turn "Match host db" and its "User admin" into the user of whichever Host comes before,
# in place of the one given there. Nothing is reported. Read the file with STRICT and take an error for Match as a "no",
# or ask ssh -G.
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
use std::{env, fs};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let text = fs::read(&arguments[1]).unwrap();
    match SshConfig::default().parse(&mut &text[..], ParseRule::STRICT) {
        Ok(_) => println!("  STRICT: read"),
        Err(error) => println!("  STRICT: {error}"),
    }
    let config = SshConfig::default().parse(&mut &text[..], ParseRule::ALLOW_UNKNOWN_FIELDS).unwrap();
    for host in &arguments[2..] {
        let found = config.query(host);
        println!("  {host}: user {}, port {}", found.user.unwrap(), found.port.unwrap_or(22));
    }
}
RS
cat >values <<'END'
Host web
    Port 2222
    Port 3333
    User joe
Host *
    User other
    Port 4444
END
cat >match <<'END'
Host db
    User joe
Host web
    User joe
Match host db
    User admin
    Port 2222
END
cargo build -q --jobs 1 >cargo.log 2>&1 || { cat cargo.log >&2; exit 1; }

show() {
    local host
    echo "$1, ssh"
    for host in "${@:2}"; do
        echo "  $host: $(ssh -TG -F "$1" "$host" | grep -E '^(user|port) ' | paste -sd, | sed 's/,/, /')"
    done
    echo "$1, ssh2-config"
    target/debug/finding "$@"
}
{
    show values web
    show match db web
} >actual

cat >expected <<'END'
values, ssh
  web: user joe, port 2222
values, ssh2-config
  STRICT: read
  web: user joe, port 3333
match, ssh
  db: user joe, port 2222
  web: user joe, port 22
match, ssh2-config
  STRICT: unknown field: Match
  db: user joe, port 22
  web: user admin, port 2222
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
