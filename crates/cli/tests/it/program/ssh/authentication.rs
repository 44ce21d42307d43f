//! Log-ins, and questions to the user.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use trunkline_testkit::{Agent, KeyPair, KeyType, Relay, write_ssh_config};

use crate::home::{Home, assert_says, fail, finish, program, server, sshd, succeed, text};
use crate::tty::Terminal;

#[test]
fn a_password_is_asked_for_on_the_terminal_once_and_never_shown() {
    let server = sshd().client_keys([]).password("correct horse").start().unwrap();
    let home = Home::new();
    let mut terminal = Terminal::start(home.ssh(&server).args([server.alias(), "echo in"]));
    terminal.answer("assword: ", "wrong\n");
    terminal.answer("assword: ", "correct horse\n");
    terminal.expect("in\r\n");
    assert_eq!(terminal.end().code(), Some(0));
    assert!(!terminal.text().contains("horse"), "{:?}", terminal.text());
    // Warm: nobody is asked, and nobody could be.
    assert_eq!(text(&home.run_on(&server, "echo again").stdout), "again\n");
    assert_eq!(server.authentications(), 1);
    assert!(!home.log().contains("horse"));
}

#[test]
fn a_password_is_asked_for_through_askpass() {
    let server = sshd().client_keys([]).password("it's \"it\" $x").start().unwrap();
    let home = Home::new();
    let mut command = home.ssh(&server);
    command.args([server.alias(), "echo in"]);
    command
        .env("SSH_ASKPASS", server.askpass().unwrap())
        .env("SSH_ASKPASS_REQUIRE", "force");
    let output = succeed(&mut command);
    assert_eq!(text(&output.stdout), "in\n");
}

#[test]
fn where_nobody_can_be_asked_the_reason_is_said() {
    let server = sshd().client_keys([]).password("secret").start().unwrap();
    let home = Home::new();
    let mut command = home.ssh(&server);
    // Without a controlling terminal there is no /dev/tty.
    let mut alone = Command::new("setsid");
    alone
        .arg("--wait")
        .arg(command.get_program())
        .args(command.args([server.alias(), "true"]).get_args());
    alone.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    alone
        .env_remove("SSH_ASKPASS")
        .env_remove("DISPLAY")
        .stdin(Stdio::null());
    let output = fail(255, &mut alone);
    assert_says(&output, "Permission denied");
}

#[test]
fn an_unknown_host_key_is_asked_about_and_then_known() {
    let (server, home) = (server(), Home::new());
    let known = home.path("known");
    let lines = [
        "StrictHostKeyChecking ask",
        "BatchMode no",
        &format!("UserKnownHostsFile {}", known.display()),
    ];
    let config = home.config_of_box(&server, &lines);
    let refused = fail(
        255,
        home.ssh_with(&config)
            .args(["-o", "BatchMode=yes", "box", "true"]),
    );
    assert_says(&refused, "Host key verification failed.");

    let mut terminal = Terminal::start(home.ssh_with(&config).args(["box", "echo in"]));
    terminal.expect("fingerprint");
    terminal.answer("(yes/no", "perhaps\n");
    terminal.answer("Please type", "yes\n");
    terminal.expect("in\r\n");
    assert_eq!(terminal.end().code(), Some(0));
    let key = server.host_keys()[0].public_key().to_owned();
    assert!(fs::read_to_string(&known).unwrap().contains(&key));
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_host_key_that_the_user_does_not_believe_ends_it() {
    let (server, home) = (server(), Home::new());
    let lines = [
        "StrictHostKeyChecking ask",
        "BatchMode no",
        &format!("UserKnownHostsFile {}", home.path("k").display()),
    ];
    let config = home.config_of_box(&server, &lines);
    let mut terminal = Terminal::start(home.ssh_with(&config).args(["box", "echo in"]));
    terminal.answer("(yes/no", "no\n");
    assert_eq!(terminal.end().code(), Some(255));
    assert_eq!(server.authentications(), 0);
    assert!(!home.path("k").exists());
}

#[test]
fn an_encrypted_key_asks_for_its_passphrase() {
    let (server, home) = (server(), Home::new());
    let key = KeyPair::generate_encrypted(server.dir(), "locked", KeyType::Ed25519, "open sesame").unwrap();
    let authorized = server.dir().join("authorized_keys");
    fs::write(&authorized, format!("{}\n", key.public_line())).unwrap();
    let mut entry = server.host_entry("box");
    entry.identities = vec![key.private_path().to_owned()];
    entry.may_ask = true;
    let config = home.config([entry]);

    let mut terminal = Terminal::start(home.ssh_with(&config).args(["box", "echo in"]));
    terminal.answer("Enter passphrase for key", "wrong\n");
    terminal.answer("Enter passphrase for key", "open sesame\n");
    terminal.expect("in\r\n");
    assert_eq!(terminal.end().code(), Some(0));
    assert!(!terminal.text().contains("sesame"));
    assert!(!home.log().contains("sesame"));
}

#[test]
fn a_key_that_cannot_be_used_from_one_file_is_used_from_another() {
    let (server, home) = (server(), Home::new());
    let config = home.config_of_box(&server, &["BatchMode yes"]);
    let key = server.client_keys()[0].private_path();
    let [open, sealed] = ["open", "sealed"].map(|name| {
        let copy = home.path(name);
        fs::copy(key, &copy).unwrap();
        copy
    });
    let seal = Command::new("ssh-keygen")
        .args(["-q", "-p", "-a", "1", "-P", "", "-N", "secret", "-f"])
        .arg(&sealed)
        .status();
    assert!(seal.unwrap().success());
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    for copy in [&open, &sealed] {
        for program in [&mut home.command("ssh"), &mut home.trunkline()] {
            if program.get_program() != "ssh" {
                program.arg("ssh");
            }
            program.arg("-F").arg(&config).arg("-i").arg(copy);
            let output = succeed(program.args(["box", "echo in"]));
            assert_eq!(output.stdout, b"in\n");
        }
    }
    // What is wrong with the only one is said once.
    let only = home.path("only");
    let mut entry = server.host_entry("box");
    entry.identities = vec![open];
    write_ssh_config(&only, [entry]).unwrap();
    let output = fail(255, home.ssh_with(&only).args(["box", "true"]));
    let said = text(&output.stderr);
    assert_eq!(said.matches("UNPROTECTED").count(), 1, "{said}");
    assert!(said.ends_with("Permission denied (publickey).\n"), "{said}");
}

#[test]
fn the_callers_agent_signs_not_the_daemons() {
    let (server, home) = (server(), Home::new());
    let agent = Agent::with_keys(server.client_keys()).unwrap();
    let mut entry = server
        .host_entry("box")
        .with_line("IdentityAgent SSH_AUTH_SOCK")
        .with_line("IdentitiesOnly no");
    entry.identities = Vec::new();
    let config = home.config([entry]);
    // The daemon is started by somebody who has no agent.
    let without = fail(255, home.ssh_with(&config).args(["box", "true"]));
    assert_says(&without, "Permission denied");
    succeed(
        home.ssh_with(&config)
            .args(["box", "echo in"])
            .env("SSH_AUTH_SOCK", agent.socket()),
    );
    // Nor does anybody without the agent get to use its connection.
    fail(255, home.ssh_with(&config).args(["box", "true"]));
}

#[test]
fn certificates_of_users_and_hosts_are_taken() {
    let server = sshd()
        .client_keys([])
        .user_certificates([KeyType::Ed25519])
        .host_certificates()
        .start()
        .unwrap();
    let home = Home::new();
    let mut entry = server.host_entry("box");
    entry.known_hosts = server.known_hosts_authority();
    let config = home.config([entry]);
    succeed(home.ssh_with(&config).args(["box", "true"]));
}

#[test]
fn a_jump_host_and_the_host_behind_it_are_both_kept_warm() {
    let (jump, server, home) = (server(), crate::home::server(), Home::new());
    let entries = [
        jump.host_entry("jump"),
        server.host_entry("box").with_line("ProxyJump jump"),
    ];
    let config = home.config(entries);
    for _ in 0..3 {
        succeed(home.ssh_with(&config).args(["box", "true"]));
    }
    assert_eq!((jump.authentications(), server.authentications()), (1, 1));
    succeed(home.ssh_with(&config).args(["jump", "true"]));
    assert_eq!(
        jump.authentications(),
        1,
        "the jump host's own commands use the connection that carries the other's"
    );
}

#[test]
fn a_server_that_does_not_answer_costs_the_connect_timeout() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    server.trust_at(relay.addr()).unwrap();
    relay.stall();
    let entry = server
        .host_entry("box")
        .with_address(relay.addr())
        .with_line("ConnectTimeout 1");
    let config = home.config([entry]);
    let output = fail(255, home.ssh_with(&config).args(["box", "true"]));
    let said = text(&output.stderr);
    let port = relay.addr().port();
    let as_ssh = format!(
        "Connection timed out during banner exchange\nConnection to 127.0.0.1 port {port} timed out\n"
    );
    assert_eq!(said, as_ssh);
}

#[test]
fn a_connection_that_goes_silent_is_noticed_by_server_alive() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    server.trust_at(relay.addr()).unwrap();
    let config = home.path("config");
    let lines = ["ServerAliveInterval 1", "ServerAliveCountMax 1"];
    let entry = server.host_entry("box").with_address(relay.addr());
    write_ssh_config(
        &config,
        [lines.iter().fold(entry, |entry, line| entry.with_line(line))],
    )
    .unwrap();
    let mut command = home.ssh_with(&config);
    command.args(["box", "echo begun; exec cat"]);
    // An input that stays open keeps the command going.
    let (reader, _writer) = std::io::pipe().unwrap();
    command
        .stdin(reader)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may begin while its connection is still being made on this side, where only ConnectTimeout counts.
    let mut begun = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut begun).unwrap();
    assert_eq!(begun, "begun\n");
    relay.stall();
    let status = crate::home::end_of(&mut child, "a command behind a stalled link");
    assert_eq!(status.code(), Some(255));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("may have started"), "{said}");
}

#[test]
fn askpass_programs_are_asked_in_sshs_words() {
    let (server, home) = (server(), Home::new());
    let asked = home.path("asked");
    let askpass = home.script(
        "askpass",
        &format!("#!/bin/sh\nprintf '%s|' \"$1\" >>'{}'\n", asked.display()),
    );
    let host_key = fs::read_to_string(server.known_hosts()).unwrap();
    let (_, host_key) = host_key.trim().split_once(' ').unwrap();
    let known = home.path("known");
    let config = server.ssh_config();
    let proxy = format!(
        "ProxyCommand=ssh -F {} -W [%h]:%p {}",
        config.display(),
        server.alias()
    );
    let elsewhere = (0..10)
        .map(|n| format!("name{n} {host_key}\n"))
        .collect::<String>();
    let questions = |program: &[&OsStr], options: &[&str]| {
        let mut ssh = home.command(program[0]);
        ssh.args(&program[1..]).arg("-F").arg(&config);
        ssh.args(["-o", "BatchMode=no"])
            .args(options)
            .args([server.alias(), "true"]);
        ssh.env("SSH_ASKPASS", &askpass)
            .env("SSH_ASKPASS_REQUIRE", "force");
        assert!(!finish(ssh.stdin(Stdio::null())).status.success());
        let questions = fs::read_to_string(&asked).unwrap_or_default();
        let _ = fs::remove_file(&asked);
        questions
    };
    let programs = [&[OsStr::new("ssh")][..], &[program().as_ref(), OsStr::new("ssh")]];
    for (known_hosts, options) in [
        ("", &[][..]),
        (&format!("elsewhere,10.0.0.1 {host_key}\n"), &[]),
        (&elsewhere, &["-o", "HostKeyAlias=other"]),
        ("", &["-o", &proxy]),
    ] {
        fs::write(&known, known_hosts).unwrap();
        let known = format!("UserKnownHostsFile={}", known.display());
        let unknown = [
            "-o",
            "StrictHostKeyChecking=ask",
            "-o",
            "CheckHostIP=no",
            "-o",
            &known,
        ];
        let options = [&unknown[..], options].concat();
        let [expected, said] = programs.map(|program| questions(program, &options));
        assert!(expected.contains("The authenticity of host"), "{expected}");
        assert_eq!(said, expected);
    }
    let key = server.client_keys()[0].private_path();
    let mut seal = home.command("ssh-keygen");
    seal.args(["-q", "-p", "-P", "", "-N", "sesame", "-f"]).arg(key);
    succeed(&mut seal);
    let first = |program| questions(program, &[]).split('|').next().map(str::to_owned);
    let [expected, said] = programs.map(first);
    assert!(
        expected
            .as_ref()
            .is_some_and(|text| text.starts_with("Enter passphrase for key ")),
        "{expected:?}"
    );
    assert_eq!(said, expected);
}
