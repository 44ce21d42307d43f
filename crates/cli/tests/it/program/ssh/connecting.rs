//! The making of a connection, compared with ssh(1): requests to the server, the keys that are used, and cases left to
//! ssh.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use trunkline_testkit::{HostEntry, KeyType, LogLevel, Sshd};

use crate::home::{
    Home, assert_prints, assert_status, describe, finish, finish_with, sshd, succeed, text, wait_until,
};

/// A key of the test's own, which the server lets in.
fn key(home: &Home, server: &Sshd, name: &str, options: &[&str]) -> std::path::PathBuf {
    let path = home.path(name);
    let made = finish(
        home.command("ssh-keygen")
            .args(options)
            .arg("-q")
            .arg("-f")
            .arg(&path),
    );
    assert!(made.status.success(), "{}", describe(&made));
    let authorized = server.dir().join("authorized_keys");
    let mut lines = fs::read_to_string(&authorized).unwrap();
    lines += &fs::read_to_string(path.with_extension("pub")).unwrap();
    fs::write(authorized, lines).unwrap();
    path
}

fn configure(home: &Home, entry: HostEntry) -> std::path::PathBuf {
    home.config([entry])
}

/// Runs `cat` through ssh, and then twice through `trunkline ssh`: at the first visit and at a later one. Returns ssh's status.
fn cat_as_ssh(home: &Home, config: &Path, askpass: &Path) -> Option<i32> {
    let run = |mut command: Command| {
        command
            .env("SSH_ASKPASS", askpass)
            .env("SSH_ASKPASS_REQUIRE", "force");
        finish_with(command.args(["box", "cat; exit 3"]), b"input")
    };
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(config);
    let ssh = run(ssh);
    for _ in 0..2 {
        let ours = run(home.ssh_with(config));
        assert_eq!(ours.status.code(), ssh.status.code(), "{}", describe(&ours));
        assert_eq!(text(&ours.stdout), text(&ssh.stdout), "{}", describe(&ours));
    }
    ssh.status.code()
}

/// Says the passphrase `sesame`, and writes down what it was asked.
fn askpass(home: &Home) -> std::path::PathBuf {
    let asked = home.path("asked");
    home.script(
        "askpass",
        &format!(
            "#!/bin/sh\nprintf '%s\\n' \"$1\" >>'{}'\necho sesame\n",
            asked.display()
        ),
    )
}

#[test]
fn keys_that_only_ssh_signs_with_are_left_to_it() {
    let server = sshd().client_keys([]).password("no passphrase").start().unwrap();
    for (name, options) in [
        ("short", &["-t", "rsa", "-b", "1024", "-N", ""][..]),
        ("ciphered", &["-t", "ed25519", "-N", "sesame", "-Z", "3des-cbc"]),
    ] {
        let home = Home::new();
        let askpass = askpass(&home);
        let mut entry = server.host_entry("box");
        entry.identities = vec![key(&home, &server, name, options)];
        assert_eq!(
            cat_as_ssh(&home, &configure(&home, entry), &askpass),
            Some(3),
            "{name}"
        );
        let asked = fs::read_to_string(home.path("asked")).unwrap_or_default();
        // ssh has a key left before it comes to passwords.
        assert!(!asked.contains("password"), "{name}: {asked}");
    }
}

#[test]
fn rsa_keys_sign_with_sha_1_where_they_do_with_ssh() {
    // sshd of 9.2 says that it takes better all the same, and ssh believes it; that of 10.0 does not.
    let server = sshd()
        .client_keys([KeyType::Rsa])
        .config("PubkeyAcceptedAlgorithms ssh-rsa")
        .start()
        .unwrap();
    for allowed in [true, false] {
        let home = Home::new();
        let mut entry = server.host_entry("box");
        if allowed {
            entry = entry.with_line("PubkeyAcceptedAlgorithms +ssh-rsa");
        }
        let ended = cat_as_ssh(&home, &configure(&home, entry), &askpass(&home));
        assert!(allowed || ended == Some(255));
    }
}

#[test]
fn short_rsa_host_keys_are_believed_as_far_as_ssh_believes_them() {
    for (bits, required, is_believed) in [
        ("1024", "1024", true),
        ("2047", "1024", true),
        ("1024", "2048", false),
    ] {
        let home = Home::new();
        let key = home.path("host_key");
        let mut made = home.command("ssh-keygen");
        made.args(["-q", "-t", "rsa", "-b", bits, "-N", "", "-f"])
            .arg(&key);
        succeed(&mut made);
        let server = sshd()
            .host_keys([KeyType::Ed25519])
            .config(&format!("HostKey {}", key.display()))
            .start()
            .unwrap();
        let mut entry = server
            .host_entry("box")
            .with_line(&format!("RequiredRSASize {required}"));
        entry.known_hosts = home.path("known");
        let public = fs::read_to_string(key.with_extension("pub")).unwrap();
        fs::write(
            &entry.known_hosts,
            format!("[127.0.0.1]:{} {public}", server.port()),
        )
        .unwrap();
        let config = configure(&home, entry);
        let ours = finish(home.ssh_with(&config).args(["box", "true"]));
        assert_status(&ours, if is_believed { 0 } else { 255 });
        let theirs = finish(home.command("ssh").arg("-F").arg(&config).args(["box", "true"]));
        assert_eq!(theirs.status, ours.status, "{}", describe(&theirs));
        if is_believed {
            assert_eq!(home.ls()[0]["transport"], "native");
        }
    }
}

#[test]
fn a_key_that_the_server_takes_keeps_the_host_from_ssh() {
    let server = sshd().start().unwrap();
    let home = Home::new();
    let mut entry = server
        .host_entry("box")
        .with_line("PubkeyAcceptedAlgorithms +ssh-rsa");
    entry.identities.insert(0, {
        let short = home.path("short");
        let made = finish(
            home.command("ssh-keygen")
                .args(["-q", "-t", "rsa", "-b", "1024", "-N", "", "-f"])
                .arg(&short),
        );
        assert!(made.status.success(), "{}", describe(&made));
        short
    });
    let config = configure(&home, entry);
    for _ in 0..2 {
        succeed(home.ssh_with(&config).args(["box", "true"]));
    }
    assert_eq!(
        server.authentications(),
        1,
        "the second command shares the first's connection"
    );
}

#[test]
fn a_group_exchange_asks_for_what_ssh_asks_for() {
    let server = sshd()
        .config("KexAlgorithms diffie-hellman-group-exchange-sha256")
        .log_level(LogLevel::Debug3)
        .start()
        .unwrap();
    let home = Home::new();
    let config = server.ssh_config();
    // dh.c: "bits set: 1021/2048", for each of the server's numbers.
    let sizes = |from: usize| -> Vec<String> {
        let log = server.log().text();
        let lines = log[from..]
            .lines()
            .filter_map(|line| line.split_once("bits set: "));
        lines
            .filter_map(|(_, set)| Some(set.split_once('/')?.1.to_owned()))
            .collect()
    };
    for (cipher, mac) in [
        ("aes128-gcm@openssh.com", "hmac-sha2-256"),
        ("aes128-ctr", "hmac-sha2-256"),
        ("aes192-ctr", "hmac-sha2-512-etm@openssh.com"),
        ("aes256-gcm@openssh.com", "hmac-sha2-256"),
        ("chacha20-poly1305@openssh.com", "hmac-sha2-256"),
    ] {
        let mut ssh = home.command("ssh");
        ssh.arg("-F").arg(&config);
        let mut ours = home.trunkline();
        ours.args(["--no-daemon", "ssh", "-F"]).arg(&config);
        let asked = [ssh, ours].map(|mut command| {
            let before = server.log().text().len();
            succeed(command.args(["-c", cipher, "-m", mac, server.alias(), "true"]));
            sizes(before)
        });
        assert!(!asked[0].is_empty(), "{cipher}");
        assert_eq!(asked[0], asked[1], "{cipher} {mac}");
    }
}

#[test]
fn other_host_keys_are_learned_without_a_daemon_too() {
    let server = sshd()
        .host_keys([KeyType::Ed25519, KeyType::EcdsaP256, KeyType::Rsa])
        .start()
        .unwrap();
    let known = fs::read_to_string(server.known_hosts()).unwrap();
    let first: String = known.lines().take(1).map(|line| format!("{line}\n")).collect();
    let learned = |run: &dyn Fn(&Home, &Path) -> Output| {
        let home = Home::new();
        let file = home.path("known");
        fs::write(&file, &first).unwrap();
        let mut entry = server.host_entry("box").with_line("UpdateHostKeys yes");
        entry.known_hosts.clone_from(&file);
        assert_status(&run(&home, &configure(&home, entry)), 0);
        let keys = || {
            let text = fs::read_to_string(&file).unwrap();
            let mut keys: Vec<String> = text
                .lines()
                .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
                .collect();
            keys.sort();
            keys
        };
        // A daemon learns them behind the command.
        wait_until("the other keys are learned", || keys().len() > 1);
        keys()
    };
    let ssh =
        learned(&|home, config| finish(home.command("ssh").arg("-F").arg(config).args(["box", "true"])));
    assert_eq!(ssh.len(), 3);
    for options in [&["--no-daemon", "ssh"][..], &["ssh", "-v"], &["ssh"]] {
        let ours = learned(&|home, config| {
            finish(
                home.trunkline()
                    .args(options)
                    .arg("-F")
                    .arg(config)
                    .args(["box", "true"]),
            )
        });
        assert_eq!(ours, ssh, "{options:?}");
    }
}

#[test]
fn what_is_said_is_said_once_with_a_log_too() {
    let server = sshd().start().unwrap();
    for options in [&[][..], &["-v"]] {
        let counts = ["ssh", "trunkline"].map(|program| {
            let home = Home::new();
            let mut entry = server
                .host_entry("box")
                .with_line("StrictHostKeyChecking accept-new");
            entry.known_hosts = home.path("known");
            let config = configure(&home, entry);
            let mut command = match program {
                "ssh" => {
                    let mut ssh = home.command("ssh");
                    ssh.arg("-F").arg(&config);
                    ssh
                }
                _ => home.ssh_with(&config),
            };
            let output = succeed(command.args(options).args(["box", "true"]));
            text(&output.stderr).matches("known hosts").count()
        });
        assert_eq!(counts, [1, 1], "{options:?}");
    }
}

#[test]
fn help_is_printed_where_it_is_asked_for() {
    let home = Home::new();
    let output = succeed(home.trunkline().args(["ssh", "--help"]));
    assert_prints(&output, "usage: trunkline ssh");
    // A command's own option is the command's.
    let server = sshd().start().unwrap();
    let output = finish(home.ssh(&server).args([server.alias(), "echo", "--help"]));
    assert_eq!(text(&output.stdout), "--help\n");
}
