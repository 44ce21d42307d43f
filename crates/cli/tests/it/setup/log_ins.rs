//! The number of log-ins on a server, by programs that would each log in in a way of their own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use trunkline_testkit::{Relay, Sshd};

use super::stanza::Stanza;
use crate::home::{Home, assert_says, describe, finish, server, sshd, succeed, text, wait_until};

/// As core Ansible's ssh plugin calls ssh where it is given no password (ansible/plugins/connection/ssh.py, `_build_command`).
const AS_ANSIBLE: [&str; 6] = [
    "-o",
    "KbdInteractiveAuthentication=no",
    "-o",
    "PreferredAuthentications=gssapi-with-mic,gssapi-keyex,hostbased,publickey",
    "-o",
    "PasswordAuthentication=no",
];

/// Returns the commands on a host called `web` in a day, each program in its own way.
fn day(stanza: &Stanza) -> Vec<(&'static str, Command)> {
    let (home, config) = (&stanza.home, stanza.config());
    let repository = home.path("repository");
    fs::write(home.path("here"), "content").unwrap();
    fs::write(home.path("hosts"), "web\n").unwrap();
    // The line of `trunkline setup ansible`, and the file that is ssh's own elsewhere.
    fs::write(
        home.path("ansible.cfg"),
        format!(
            "[defaults]\ninventory = hosts\ninterpreter_python = /usr/bin/python3\nremote_tmp = {0}/tmp\nlocal_tmp = {0}/local\n\
             [ssh_connection]\nssh_args = -F {1} -o ControlMaster=no\n",
            home.path("").display(),
            config.display()
        ),
    )
    .unwrap();
    let own = |words: &[&str]| {
        let mut command = home.trunkline();
        command.arg(words[0]).arg("-F").arg(&config).args(&words[1..]);
        command
    };
    let stock = |words: &[&str]| {
        let mut command = stanza.ssh();
        command.args(words);
        command
    };
    let mut ansible = home.command_with_ansible("ansible");
    ansible
        .current_dir(home.path(""))
        .env("TRUNKLINE_UP_LIMIT", "20000")
        .env("LC_ALL", "C.UTF-8")
        .env("ANSIBLE_HOME", home.path("ansible"))
        .args(["web", "-m", "command", "-a", "true"]);
    let mut rsync = stanza.command("rsync");
    rsync
        .args(["-e", &format!("ssh -F {}", config.display())])
        .arg(home.path("here"))
        .arg(format!("web:{}", home.path("there").display()));
    let mut git = stanza.command("git");
    git.arg("ls-remote")
        .arg(format!("web:{}", repository.display()))
        .env("GIT_SSH_COMMAND", format!("ssh -F {}", config.display()));
    vec![
        ("run", own(&["run", "-H", "web", "--", "true"])),
        ("Ansible", ansible),
        (
            "run, new hosts accepted",
            own(&[
                "run",
                "-o",
                "StrictHostKeyChecking=accept-new",
                "-H",
                "web",
                "--",
                "true",
            ]),
        ),
        ("stock ssh", stock(&["web", "true"])),
        ("trunkline ssh", own(&["ssh", "web", "true"])),
        (
            "stock ssh, nobody asked",
            stock(&["-o", "BatchMode=yes", "web", "true"]),
        ),
        (
            "stock ssh, keys only",
            stock(&["-o", "PreferredAuthentications=publickey", "web", "true"]),
        ),
        ("git", git),
        ("rsync", rsync),
    ]
}

#[test]
fn a_day_s_mix_logs_in_once_whoever_comes_first() {
    for first in 0..3 {
        let (server, stanza) = Stanza::of_web();
        let repository = stanza.home.path("repository");
        let made = Command::new("git")
            .args(["init", "--quiet", "--bare"])
            .arg(&repository)
            .status();
        assert!(made.unwrap().success());
        let mut programs = day(&stanza);
        programs.rotate_left(first);
        for (name, mut command) in programs {
            let output = finish(&mut command);
            assert!(output.status.success(), "{name}: {}", describe(&output));
            assert_eq!(server.authentications(), 1, "{name}: {}", stanza.home.log());
        }
        assert_eq!(stanza.connections(), 1);
    }
}

#[test]
fn those_who_come_during_another_log_in_wait_for_it() {
    let server = server();
    let relay = Relay::start(server.addr()).unwrap();
    let (home, config) = (Home::new(), server.ssh_config_via("box", relay.addr()).unwrap());
    relay.stall();
    let begin = |options: &[&str]| {
        let mut ssh = home.ssh_with(&config);
        ssh.args(options)
            .args(["-vv", "box", "true"])
            .stderr(Stdio::piped());
        ssh.spawn().unwrap()
    };
    let mut first = begin(&[]);
    wait_until("a connection is being made", || {
        home.ls().as_array().is_some_and(|hosts| !hosts.is_empty())
    });
    let ways: [&[&str]; 3] = [&[], &AS_ANSIBLE, &["-o", "StrictHostKeyChecking=ask"]];
    let mut others: Vec<_> = ways.into_iter().map(begin).collect();
    let said = others
        .iter_mut()
        .map(|ssh| BufReader::new(ssh.stderr.take().unwrap()));
    let mut said: Vec<_> = said.collect();
    for lines in &mut said {
        // What it says last before it has something placed.
        let mut line = String::new();
        while !line.contains("resolved box to ") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended early");
        }
    }
    relay.resume();
    said.push(BufReader::new(first.stderr.take().unwrap()));
    for (mut lines, mut ssh) in said.into_iter().zip(others.into_iter().chain([first])) {
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert!(ssh.wait().unwrap().success(), "{rest}");
    }
    assert_eq!(server.authentications(), 1, "{}", home.log());
}

/// A home whose ssh_config has `box`, and how its server is reached with some options.
struct Bench {
    server: Sshd,
    home: Home,
    config: std::path::PathBuf,
}

impl Bench {
    fn new(server: Sshd, lines: &[&str]) -> Self {
        let home = Home::new();
        let entry = server.host_entry("box");
        let entry = lines.iter().fold(entry, |entry, line| entry.with_line(line));
        let config = home.config([entry]);
        Self { server, home, config }
    }

    fn ssh(&self, options: &[&str]) -> Command {
        let mut command = self.home.ssh_with(&self.config);
        command.args(options).args(["box", "true"]);
        command
    }

    /// Logs in by the password, which a program answers with.
    fn by_password(&self) {
        let mut ssh = self.ssh(&[]);
        ssh.env("SSH_ASKPASS", self.server.askpass().unwrap())
            .env("SSH_ASKPASS_REQUIRE", "force");
        succeed(&mut ssh);
    }

    #[track_caller]
    fn succeeds(&self, options: &[&str], log_ins: usize) {
        let output = succeed(&mut self.ssh(options));
        assert_eq!(self.server.authentications(), log_ins, "{}", describe(&output));
    }
}

#[test]
fn a_connection_made_with_a_password_is_not_for_those_who_forbid_one_or_would_have_used_a_key() {
    let bench = Bench::new(
        sshd().password("secret").start().unwrap(),
        &["PreferredAuthentications password"],
    );
    bench.by_password();
    bench.succeeds(&["-o", "BatchMode=yes"], 1);
    // A key comes first there, and may be worth less.
    bench.succeeds(&["-o", "PreferredAuthentications=publickey,password"], 2);
    // The two rows of one host say what is different.
    let listed = text(&finish(bench.home.trunkline().arg("ls")).stdout);
    assert!(
        listed.contains("2 rows, which differ in preferredauthentications (")
            && listed.contains("publickey,password")
            && !listed.contains("passwordauthentication"),
        "{listed}"
    );
    // Made with a key, it is for those who forbid passwords, too; the other one is not.
    let output = succeed(&mut bench.ssh(&[&AS_ANSIBLE[..], &["-v"]].concat()));
    assert_eq!(bench.server.authentications(), 2, "{}", describe(&output));
    succeed(
        bench
            .home
            .trunkline()
            .args(["close", "-F"])
            .arg(&bench.config)
            .arg("box"),
    );
    bench.by_password();
    let output = succeed(&mut bench.ssh(&[&AS_ANSIBLE[..], &["-v"]].concat()));
    assert_eq!(bench.server.authentications(), 4);
    assert_says(&output, "logged in to with password, which is not allowed here");
}

#[test]
fn a_new_host_key_that_was_believed_is_not_enough_for_those_who_do_not_believe_it() {
    let bench = Bench::new(server(), &[]);
    let known = format!("UserKnownHostsFile={}", bench.home.path("known").display());
    let checking = |rule: &str| {
        vec![
            "-o".to_owned(),
            known.clone(),
            "-o".into(),
            format!("StrictHostKeyChecking={rule}"),
        ]
    };
    let succeeds = |rule: &str, log_ins| {
        let options = checking(rule);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        bench.succeeds(&options, log_ins);
    };
    succeeds("accept-new", 1);
    succeeds("no", 1);
    // By itself it finds the key known by now.
    succeeds("yes", 2);
    succeeds("ask", 2);
    succeeds("accept-new", 2);
}

#[test]
fn a_further_connection_is_logged_in_to_like_the_first() {
    let server = sshd().config("MaxSessions 1").start().unwrap();
    let bench = Bench::new(server, &[]);
    let mut holding = bench.home.ssh_with(&bench.config);
    holding
        .args(["box", "echo in; cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut holding = holding.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holding.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "in\n");
    bench.succeeds(&AS_ANSIBLE, 2);
    bench.succeeds(&[], 2);
    let hosts = bench.home.ls();
    assert_eq!(hosts.as_array().unwrap().len(), 1, "{hosts}");
    let connections = hosts[0]["connections"].as_array().unwrap();
    let log_ins: Vec<_> = connections
        .iter()
        .map(|made| &made["handshake"]["log_in"])
        .collect();
    assert_eq!(log_ins.len(), 2, "{hosts}");
    assert!(
        log_ins[0] == log_ins[1]
            && log_ins[0]
                .as_str()
                .unwrap()
                .starts_with("publickey ED25519 SHA256:"),
        "{log_ins:?}"
    );
    drop(holding.stdin.take());
    assert!(holding.wait().unwrap().success());
}

#[test]
fn a_connection_whose_uses_are_confirmed_is_not_for_those_who_come_with_other_settings() {
    let bench = Bench::new(server(), &["ControlMaster ask"]);
    bench.succeeds(&[], 1);
    // Nobody is asked, and nobody could be.
    let without = ["-o", "ControlMaster=no", "-o", "PasswordAuthentication=no"];
    bench.succeeds(&without, 2);
    bench.succeeds(&without, 2);
}
