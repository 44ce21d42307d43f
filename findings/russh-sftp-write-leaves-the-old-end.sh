#!/usr/bin/env bash
# russh-sftp: SftpSession::write() of a shorter text leaves the end of the old one, and it makes no new file.
#
# Seen with: russh-sftp 3.0.1 (Rust), over OpenSSH 9.2p1's sftp-server; std::fs beside it.
#
# The session's methods are named like those of std::fs, whose write() creates the file or empties it. This one opens with
# the flag WRITE alone: what lies behind the new text stays, and the call returns Ok. For a name that is new it is an
# error. create() and write_all() do what is meant. A File that has once read to its end stays there as well: what others
# append later is not read before a seek().
#
# Why it matters: a configuration that becomes shorter is followed by the rest of the old one, and JSON, keys and scripts
# break at the next read, not at the write. Tests that write longer texts, or the same one, see nothing.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq openssh-sftp-server >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
dpkg -x openssh-sftp-server_*.deb root
export CARGO_HOME=$dir/cargo CARGO_TARGET_DIR=$dir/target
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.1.0"
edition = "2021"

[dependencies]
russh-sftp = "=3.0.1"
tokio = { version = "1", features = ["rt", "macros", "process", "io-util"] }
TOML
cat >src/main.rs <<'RS'
use std::{env, fs, io::Write, process::Stdio};

use russh_sftp::client::SftpSession;
use tokio::{
    io::{join, AsyncReadExt, AsyncSeekExt, AsyncWriteExt},
    process::Command,
};

const OLD: &str = "{\"hosts\": [\"a\", \"b\"]}";
const NEW: &str = "{\"hosts\": []}";

async fn rest(file: &mut russh_sftp::client::fs::File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut server = Command::new(env::args().nth(1).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stream = join(server.stdout.take().unwrap(), server.stdin.take().unwrap());
    let sftp = SftpSession::new(stream).await.unwrap();

    fs::write("file", OLD).unwrap();
    fs::write("file", NEW).unwrap();
    println!("std::fs::write(): {}", fs::read_to_string("file").unwrap());
    fs::write("file", OLD).unwrap();
    let result = sftp.write("file", NEW.as_bytes()).await;
    println!("write(): {result:?}, {}", fs::read_to_string("file").unwrap());
    let mut file = sftp.create("file").await.unwrap();
    file.write_all(NEW.as_bytes()).await.unwrap();
    file.close().await.unwrap();
    println!("create() and write_all(): {}", fs::read_to_string("file").unwrap());
    println!("write() of a new file: {}", sftp.write("new", NEW.as_bytes()).await.unwrap_err());

    let mut file = sftp.open("file").await.unwrap();
    rest(&mut file).await;
    fs::OpenOptions::new().append(true).open("file").unwrap().write_all(b" more").unwrap();
    println!("read() behind the end: {:?}", rest(&mut file).await);
    file.seek(std::io::SeekFrom::Current(0)).await.unwrap();
    println!("read() after seek(): {:?}", rest(&mut file).await);
}
RS
cargo build -q --jobs 1 >cargo.log 2>&1 || { cat cargo.log >&2; exit 1; }
timeout 60 target/debug/finding "$(find "$dir/root" -name sftp-server -type f)" >actual

cat >expected <<'END'
std::fs::write(): {"hosts": []}
write(): Ok(()), {"hosts": []}", "b"]}
create() and write_all(): {"hosts": []}
write() of a new file: No such file: No such file
read() behind the end: ""
read() after seek(): " more"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
