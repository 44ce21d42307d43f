//! ssh(1)'s options and ssh_config(5)'s directives, one after the other: what can be seen of each from outside is the same for
//! ssh and for `trunkline ssh`, with a connection to be made and over the one that is there.

use std::fs;
use std::process::{Command, Output, Stdio};

use trunkline_testkit::{LogLevel, Sshd};

use crate::home::{Home, describe, finish, sshd, text};

/// The parts of an error's text that scripts and people look for. The words around them are each program's own.
const PHRASES: &[&str] = &[
    "usage: ssh",
    "unknown option",
    "option requires an argument",
    "Bad configuration option",
    "Bad local forwarding specification",
    "Bad remote forwarding specification",
    "Bad dynamic forwarding specification",
    "Bad stdio forwarding specification",
    "Bad escape character",
    "Bad port",
    "Bad tun device",
    "Unknown cipher type",
    "Unknown mac type",
    "Unsupported query",
    "Invalid multiplex command",
    "unsupported LogLevel",
    "permission denied",
    "Connection refused",
    "Pseudo-terminal will not be allocated",
    "Cannot fork into background",
    "Cannot execute command-line and remote command",
    "Can't open user config file",
    "keyword",
    "missing argument",
    "no argument after keyword",
    "Permanently added",
    "No ControlPath specified",
    "Control socket connect",
    "not accessible",
    "remote port forwarding failed",
    "Address already in use",
];

/// The view of a command from outside.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: Option<i32>,
    stdout: String,
    says_something: bool,
    phrases: Vec<&'static str>,
    /// The sessions that the server began for it: commands, shells and subsystems, with or without a terminal.
    sessions: Vec<String>,
}

fn sessions(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| line.split_once("Starting session: ")?.1.split_once(" for "))
        .map(|(what, _)| {
            what.split(" on ").next().unwrap_or(what).to_owned()
                + if what.contains(" on ") { ", terminal" } else { "" }
        })
        .collect()
}

fn see(server: &Sshd, mut command: Command) -> (Seen, Output) {
    let from = server.log().text().len();
    let output = finish(&mut command);
    let stderr = text(&output.stderr);
    let seen = Seen {
        status: output.status.code(),
        stdout: text(&output.stdout),
        says_something: !stderr.trim().is_empty(),
        phrases: PHRASES
            .iter()
            .copied()
            .filter(|phrase| stderr.to_lowercase().contains(&phrase.to_lowercase()))
            .collect(),
        sessions: sessions(&server.log().text()[from..]),
    };
    (seen, output)
}

/// Runs each row's arguments with ssh and twice with trunkline, and returns what differs.
fn differences(home: &Home, server: &Sshd, rows: &[Vec<String>]) -> Vec<String> {
    let config = server.ssh_config();
    let mut differences = Vec::new();
    for row in rows {
        let run = |mut command: Command| {
            command.args(row).stdin(Stdio::null());
            see(server, command)
        };
        let mut ssh = home.command("ssh");
        ssh.arg("-F").arg(&config);
        let (expected, theirs) = run(ssh);
        for time in ["first", "second"] {
            let (seen, ours) = run(home.ssh_with(&config));
            if seen != expected {
                differences.push(format!(
                    "{row:?}, the {time} time\n  ssh:  {expected:?}\n        {}\n  ours: {seen:?}\n        {}",
                    describe(&theirs),
                    describe(&ours)
                ));
            }
        }
    }
    differences
}

fn server() -> Sshd {
    sshd()
        .log_level(LogLevel::Debug)
        .config("AcceptEnv TABLE_*")
        .start()
        .unwrap()
}

#[track_caller]
fn all_agree(home: &Home, server: &Sshd, rows: &[Vec<String>]) {
    let differences = differences(home, server, rows);
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Rows of words, in which `HOST` is the server's alias.
fn rows(server: &Sshd, rows: &[&[&str]]) -> Vec<Vec<String>> {
    rows.iter()
        .map(|row| {
            row.iter()
                .map(|word| word.replace("HOST", server.alias()))
                .collect()
        })
        .collect()
}

/// The terminal without its number, which is any that is free.
const COMMAND: &str = "echo out; echo err >&2; tty | tr -d 0-9; exit 7";

#[test]
fn options_that_change_a_session_do_as_with_ssh() {
    let (server, home) = (server(), Home::new());
    let mut table = rows(
        &server,
        &[
            &["-e", "none", "-tt", "HOST", COMMAND],
            &["-tt", "HOST", "stty size; echo $TERM; exit 3"],
            &["-tt", "-o", "SetEnv=TERM=vt52", "HOST", "echo $TERM"],
            &["-tt", "-o", "SetEnv=TERM=", "HOST", "echo $TERM"],
            &["-s", "HOST", "no-such-subsystem"],
            &["HOST", "--", "echo a  b"],
            &["HOST", "-v"],
            &["HOST", "echo", "-n", "one  two", "three"],
            &["-N", "-o", "ConnectTimeout=bogus", "HOST"],
            &["-T", "HOST"],
            &["-W", "127.0.0.1:1", "HOST"],
            &["-W", "nonsense", "HOST"],
            &["ssh://HOST", COMMAND],
            &["-n", "HOST", "cat; echo done"],
            &["-f", "HOST"],
            &["-p", "1", "HOST", "true"],
            &["-p", "0", "HOST", "true"],
            &["-p", "99999", "HOST", "true"],
            &["-l", "no-such-user", "-o", "BatchMode=yes", "HOST", "true"],
            &["-o", "HostName=no-such-host.invalid", "HOST", "true"],
            &["-F", "/no/such/file", "HOST", "true"],
            &["-i", "/no/such/key", "HOST", "echo in"],
            &["-S", "/no/such/socket", "-O", "check", "HOST"],
            &["-O", "check", "HOST"],
            &["-O", "nonsense", "HOST"],
            &["-R", "127.0.0.1:1:127.0.0.1:1:1:1", "HOST", "true"],
        ],
    );
    for options in [
        &["-4"][..],
        &["-6"],
        &["-A"],
        &["-a"],
        &["-C"],
        &["-K"],
        &["-k"],
        &["-q"],
        &["-T"],
        &["-t"],
        &["-x"],
        &["-n"],
        &["-g"],
        &["-y"],
        &["-b", "127.0.0.1"],
        &["-b", "192.0.2.1"],
        &["-c", "aes256-ctr"],
        &["-c", "no-such-cipher"],
        &["-m", "hmac-sha2-256", "-c", "aes128-ctr"],
        &["-m", "no-such-mac"],
        &["-e", "^"],
        &["-e", "too-long"],
        &["-J", "none"],
        &["-L", "nonsense"],
        &["-R", "nonsense:"],
        &["-D", "nonsense:nonsense"],
        &["-Z"],
        &["-w", "nonsense"],
        &["-P", "tag"],
        &["-l", "root", "-l", "no-such-user"],
    ] {
        let mut row = options.to_vec();
        row.extend(["HOST", COMMAND]);
        table.extend(rows(&server, &[&row]));
    }
    all_agree(&home, &server, &table);
}

#[test]
fn what_needs_no_host_is_as_with_ssh() {
    let (server, home) = (server(), Home::new());
    let table = rows(
        &server,
        &[
            &["-V"],
            &["-Q", "cipher"],
            &["-Q", "key"],
            &["-Q", "nonsense"],
            &["-G", "HOST"],
            &["-G", "-l", "somebody", "-p", "22", "HOST"],
            &["-o"],
            &["-p"],
            &[],
        ],
    );
    all_agree(&home, &server, &table);
}

#[test]
fn directives_do_as_with_ssh() {
    let (server, home) = (server(), Home::new());
    let known = home.path("known");
    fs::write(&known, "").unwrap();
    let table: Vec<Vec<String>> = [
        "AddressFamily=inet6",
        "AddressFamily=nonsense",
        "BatchMode=yes",
        "BindAddress=127.0.0.1",
        "BindInterface=lo",
        "CanonicalizeHostname=yes",
        "CheckHostIP=yes",
        "Ciphers=aes256-gcm@openssh.com",
        "Ciphers=+no-such-cipher",
        "ClearAllForwardings=yes",
        "Compression=yes",
        "Compression=nonsense",
        "ConnectionAttempts=2",
        "ConnectTimeout=5",
        "ControlMaster=no",
        "ControlPersist=no",
        "EscapeChar=none",
        "EscapeChar=nonsense",
        "ExitOnForwardFailure=yes",
        "FingerprintHash=md5",
        "ForwardAgent=no",
        "GSSAPIAuthentication=no",
        "HostKeyAlgorithms=ssh-ed25519",
        "HostKeyAlgorithms=rsa-sha2-512",
        "HostKeyAlias=elsewhere",
        "IdentitiesOnly=yes",
        "IdentityFile=none",
        "IgnoreUnknown=NoSuchThing",
        "IPQoS=none",
        "KexAlgorithms=curve25519-sha256",
        "KexAlgorithms=no-such-method",
        "LogLevel=ERROR",
        "LogLevel=nonsense",
        "MACs=hmac-sha2-512",
        "NoHostAuthenticationForLocalhost=yes",
        "NoSuchThing=yes",
        "NumberOfPasswordPrompts=0",
        "PasswordAuthentication=no",
        "PermitLocalCommand=yes",
        "Port=nonsense",
        "PreferredAuthentications=publickey",
        "PreferredAuthentications=password",
        "ProxyCommand=none",
        "ProxyCommand=false",
        "ProxyJump=none",
        "PubkeyAcceptedAlgorithms=ssh-ed25519",
        "PubkeyAuthentication=no",
        "RekeyLimit=1M 1h",
        "RemoteCommand=echo remote",
        "RequestTTY=force",
        "RequestTTY=nonsense",
        "RequiredRSASize=4096",
        "SendEnv=TABLE_*",
        "ServerAliveInterval=30",
        "SessionType=none",
        "SessionType=subsystem",
        "SetEnv=TABLE_A=b",
        "StdinNull=yes",
        "StreamLocalBindUnlink=yes",
        "StrictHostKeyChecking=yes",
        "StrictHostKeyChecking=accept-new",
        "StrictHostKeyChecking=nonsense",
        "SyslogFacility=USER",
        "TCPKeepAlive=no",
        "Tunnel=no",
        "UpdateHostKeys=no",
        "User=no-such-user",
        "UserKnownHostsFile=/dev/null",
        "VerifyHostKeyDNS=no",
        "VisualHostKey=no",
        "XAuthLocation=/no/such/program",
        // Of OpenSSH 9.4 and later: refused by both where ssh does not know them.
        "Tag=table",
        "EnableEscapeCommandline=yes",
        "ChannelTimeout=none",
        "ObscureKeystrokeTiming=no",
        "VersionAddendum=none",
    ]
    .iter()
    .filter(|directive| !directive.starts_with("SessionType=none"))
    .map(|directive| {
        [
            "-o",
            directive,
            "-o",
            "NumberOfPasswordPrompts=0",
            server.alias(),
            "echo out \"$TABLE_A\"; tty | tr -d 0-9; exit 5",
        ]
        .map(str::to_owned)
        .to_vec()
    })
    .collect();
    all_agree(&home, &server, &table);
}
