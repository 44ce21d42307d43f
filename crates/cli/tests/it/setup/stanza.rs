//! A home whose ssh_config has the lines of `trunkline setup ssh`, and what stock programs do there.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use trunkline_testkit::{HostEntry, KeyType, Sshd};

use crate::home::{
    Home, assert_has, assert_says, assert_status, describe, finish, program, server, sshd, succeed, text,
    with_status,
};

/// A home with the lines in `config`.
pub(crate) struct Stanza {
    pub(crate) home: Home,
}

impl Stanza {
    /// A server, and a stanza behind its host `web`.
    pub(crate) fn of_web() -> (Sshd, Self) {
        let server = server();
        let stanza = Self::after_hosts([server.host_entry("web")]);
        (server, stanza)
    }

    /// Behind these blocks.
    pub(crate) fn after_hosts(hosts: impl IntoIterator<Item = HostEntry>) -> Self {
        let hosts: String = hosts.into_iter().map(|host| host.to_string()).collect();
        Self::behind_text(&hosts)
    }

    pub(crate) fn behind_text(hosts: &str) -> Self {
        let stanza = Self { home: Home::new() };
        fs::write(stanza.config(), hosts).unwrap();
        assert_status(&stanza.setup(&[]), 0);
        stanza
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.home.path("config")
    }

    /// Returns the file that the lines name.
    pub(crate) fn included_file(&self) -> PathBuf {
        self.home.path("config.trunkline")
    }

    /// `trunkline setup ssh` on the configuration.
    pub(crate) fn setup(&self, options: &[&str]) -> Output {
        let mut command = self.home.trunkline();
        command
            .args(["setup", "ssh", "--file"])
            .arg(self.config())
            .args(options);
        finish(&mut command)
    }

    /// Any program. ssh waits as long as `up` needs, however busy the machine is.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.home.command(program);
        command.env("TRUNKLINE_UP_LIMIT", "20000");
        command
    }

    /// Stock ssh; add options, a host and a command.
    pub(crate) fn ssh(&self) -> Command {
        let mut command = self.command("ssh");
        command.arg("-F").arg(self.config());
        command
    }

    /// Runs stock ssh with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        finish(self.ssh().args(arguments))
    }

    /// Runs it, and expects that it works.
    #[track_caller]
    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let output = with_status(0, self.run(arguments));
        assert!(output.stderr.is_empty(), "{}", describe(&output));
        text(&output.stdout)
    }

    /// Returns the number of the daemon's connections; 0 without one.
    pub(crate) fn connections(&self) -> usize {
        let hosts = self.home.ls();
        let hosts = hosts.as_array().unwrap();
        hosts
            .iter()
            .map(|host| host["connections"].as_array().unwrap().len())
            .sum()
    }
}

/// A wrapper by which a program runs ssh with the home's configuration.
fn ssh_command(stanza: &Stanza) -> String {
    format!("ssh -F {}", stanza.config().display())
}

#[test]
fn everything_that_runs_ssh_shares_one_connection() {
    let (server, stanza) = Stanza::of_web();
    assert_eq!(stanza.succeed(&["web", "echo one"]), "one\n");
    assert_status(&stanza.run(&["web", "exit 3"]), 3);
    let (here, there) = (stanza.home.path("here"), stanza.home.path("there"));
    fs::write(&here, "content").unwrap();
    let copy = |program: &str, option: &str, value: &OsStr| {
        let mut command = stanza.command(program);
        command.arg(option).arg(value).arg(&here);
        command.arg(format!("web:{}", there.display()));
        succeed(&mut command);
        assert_eq!(fs::read(&there).unwrap(), b"content", "{program}");
        fs::remove_file(&there).unwrap();
    };
    copy("scp", "-F", stanza.config().as_os_str());
    copy("rsync", "-e", OsStr::new(&ssh_command(&stanza)));
    let repository = stanza.home.path("repository");
    succeed(
        stanza
            .command("git")
            .args(["init", "--quiet", "--bare"])
            .arg(&repository),
    );
    let mut fetch = stanza.command("git");
    fetch
        .args(["ls-remote", &format!("web:{}", repository.display())])
        .env("GIT_SSH_COMMAND", ssh_command(&stanza));
    succeed(&mut fetch);
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
    assert_eq!(stanza.connections(), 1);
}

#[test]
fn name_user_and_port_may_come_from_anywhere() {
    let server = server();
    let entry = server.host_entry("web").to_string();
    // The block of the host's own is behind the lines, where nothing was known of it when they were read.
    let stanza = Stanza::behind_text("");
    let lines = fs::read_to_string(stanza.config()).unwrap();
    fs::write(stanza.config(), format!("{lines}{entry}")).unwrap();
    assert_eq!(stanza.succeed(&["web", "echo one"]), "one\n");
    let by_port = entry.replace("Port", "# Port").replace("User ", "# User ");
    fs::write(stanza.config(), format!("{by_port}{lines}")).unwrap();
    let (port, user) = (server.port().to_string(), server.user().to_owned());
    stanza.succeed(&["-p", &port, "-l", &user, "web", "true"]);
    stanza.succeed(&["-o", &format!("Port={port}"), &format!("{user}@web"), "true"]);
    stanza.succeed(&[&format!("ssh://{user}@web:{port}"), "true"]);
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
}

#[test]
fn a_control_path_of_the_users_own_wins() {
    let server = server();
    let own = |name: &str, line: &str| server.host_entry(name).with_line(line);
    let stanza = Stanza::after_hosts([
        own("none", "ControlPath none"),
        own("theirs", "ControlPath /nowhere/%C"),
        own("auto", "ControlMaster auto"),
        server.host_entry("free"),
    ]);
    for (logins, arguments) in [
        &["none", "true"][..],
        &["theirs", "true"],
        &["auto", "true"],
        &["-S", "/nowhere/x", "free", "true"],
        &["-S", "none", "free", "true"],
        &["-o", "ControlPath=none", "free", "true"],
        &["-o", "ControlPath=/nowhere/x", "free", "true"],
    ]
    .into_iter()
    .enumerate()
    {
        stanza.succeed(arguments);
        assert_eq!(server.authentications(), logins + 1, "{arguments:?}");
    }
    assert_eq!(stanza.connections(), 0);
}

#[test]
fn nothing_is_shared_by_those_who_differ_in_who_they_are() {
    let server = sshd()
        .client_keys([KeyType::Ed25519, KeyType::EcdsaP256])
        .start()
        .unwrap();
    let [first, second] = server.client_keys() else {
        panic!("two keys were asked for")
    };
    let with = |alias: &str, key: &std::path::Path| {
        let mut entry = server.host_entry(alias);
        entry.identities = vec![key.to_owned()];
        entry
    };
    let stanza = Stanza::after_hosts([
        with("one", first.private_path()),
        with("two", second.private_path()),
    ]);
    stanza.succeed(&["one", "true"]);
    stanza.succeed(&["two", "true"]);
    assert_eq!((server.authentications(), stanza.connections()), (2, 2));
    // The socket of "one" is there, and this is another "one".
    let key = second.private_path().to_str().unwrap();
    stanza.succeed(&["-i", key, "one", "true"]);
    assert_eq!((server.authentications(), stanza.connections()), (3, 2));
    stanza.succeed(&["one", "true"]);
    stanza.succeed(&["two", "true"]);
    assert_eq!(server.authentications(), 3);
}

#[test]
fn a_connection_that_is_there_serves_those_who_would_log_in_otherwise() {
    let (server, stanza) = Stanza::of_web();
    stanza.succeed(&["web", "true"]);
    // As Ansible does.
    stanza.succeed(&[
        "-o",
        "KbdInteractiveAuthentication=no",
        "-o",
        "PreferredAuthentications=publickey",
        "-o",
        "PasswordAuthentication=no",
        "web",
        "true",
    ]);
    assert_eq!((server.authentications(), stanza.connections()), (1, 1));
}

#[test]
fn a_jump_host_is_warm_for_those_behind_it() {
    let (jump, server) = (server(), server());
    let behind = |name: &str| server.host_entry(name).with_line("ProxyJump jump");
    let stanza = Stanza::after_hosts([jump.host_entry("jump"), behind("a"), behind("b")]);
    stanza.succeed(&["a", "true"]);
    stanza.succeed(&["jump", "true"]);
    // A connection of ssh's own goes through the jump host by -W, for which ssh starts another ssh.
    stanza.succeed(&["-o", "ControlPath=none", "b", "true"]);
    assert_eq!(jump.authentications(), 1, "{}", jump.log().text());
}

#[test]
fn ssh_says_which_socket_it_would_use_and_nothing_is_started_for_that() {
    let (server, stanza) = Stanza::of_web();
    let resolved = text(&stanza.run(&["-G", "web"]).stdout);
    let socket = stanza
        .home
        .trunkline_dir()
        .join(format!("mux/{}@web:{}", server.user(), server.port()));
    assert_has(&resolved, &format!("controlpath {}\n", socket.display()));
    let checked = with_status(255, stanza.run(&["-O", "check", "web"]));
    assert_says(&checked, socket.to_str().unwrap());
    assert!(stanza.home.daemon().is_none());
    stanza.succeed(&["web", "true"]);
    let checked = with_status(0, stanza.run(&["-O", "check", "web"]));
    let pid = stanza.home.daemon().unwrap().as_raw_pid().to_string();
    assert_says(&checked, &format!("pid={pid}"));
}

#[test]
fn the_program_is_found_where_it_is() {
    let stanza = Stanza::behind_text("");
    let lines = fs::read_to_string(stanza.included_file()).unwrap();
    assert!(lines.contains(&format!("exec {} up\"", program())), "{lines}");
}

#[test]
fn a_program_that_was_removed_says_nothing_at_each_ssh() {
    let stanza = Stanza::after_hosts([server().host_entry("web")]);
    let with = fs::read_to_string(stanza.included_file()).unwrap();
    assert!(with.contains(program()), "{with}");
    fs::write(
        stanza.included_file(),
        with.replace(program(), "/nonexistent/trunkline"),
    )
    .unwrap();
    let told = stanza.succeed(&["-G", "web", "true"]);
    assert!(!told.contains("\ncontrolpath "), "{told}");
}

#[test]
fn a_script_named_ssh_may_run_trunkline() {
    let server = server();
    let home = Home::new();
    let script = home.script("ssh", &format!("#!/bin/sh\nexec {} ssh \"$@\"", program()));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", script.parent().unwrap().display());
    let ssh = |arguments: &[&str]| {
        let mut command = home.command(&script);
        command.env("PATH", &path).arg("-F").arg(server.ssh_config());
        let output = succeed(command.args(arguments));
        text(&output.stdout)
    };
    assert_eq!(ssh(&[server.alias(), "echo ran"]), "ran\n");
    // What only ssh can do, and what asks ssh itself.
    assert!(ssh(&["-G", server.alias()]).contains("\nport "));
    assert_eq!(
        ssh(&[
            "-oControlMaster=yes",
            "-oControlPath=none",
            server.alias(),
            "echo ran"
        ]),
        "ran\n"
    );
}
