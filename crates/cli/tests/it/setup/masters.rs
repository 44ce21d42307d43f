//! Masters of the system's ssh: those that users have made, and those by which hosts are kept warm that need ssh.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;

use trunkline_testkit::{KeyType, Sshd, leave_socket};

use crate::home::{
    Home, assert_has, assert_prints, assert_says, assert_status, fail, finish, server, succeed, text,
    with_status,
};
use crate::tty::Terminal;

/// A home with a configuration.
struct Masters {
    home: Home,
}

impl Masters {
    fn new(config: &str) -> Self {
        let masters = Self { home: Home::new() };
        let config = config.replace("HOME", masters.home.path("").to_str().unwrap());
        fs::write(masters.home.path("config"), config).unwrap();
        masters
    }

    /// A command about hosts.
    fn command_for(&self, words: &[&str]) -> Command {
        let mut command = self.home.trunkline();
        command.arg(words[0]).arg("-F").arg(self.home.path("config"));
        command.args(&words[1..]);
        command
    }

    #[track_caller]
    fn succeed(&self, words: &[&str]) -> String {
        let output = succeed(&mut self.command_for(words));
        text(&output.stdout)
    }

    fn ls(&self) -> serde_json::Value {
        serde_json::from_str(&self.succeed(&["ls", "--json"])).unwrap()
    }

    fn ssh(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command("ssh");
        command.arg("-F").arg(self.home.path("config")).args(arguments);
        command
    }

    /// `trunkline run` on the host `web`.
    fn run(&self, command: &str) -> std::process::Output {
        finish(&mut self.command_for(&["run", "-H", "web", "--", command]))
    }
}

impl Drop for Masters {
    fn drop(&mut self) {
        let _ = finish(&mut self.command_for(&["close", "--all", "--now"]));
    }
}

fn with_master(server: &Sshd) -> Masters {
    let entry = server.host_entry("web").with_line("ControlPath HOMEcm-%r@%n:%p");
    Masters::new(&entry.to_string())
}

fn needs_ssh(server: &Sshd) -> Masters {
    Masters::new(
        &server
            .host_entry("web")
            .with_line("VerifyHostKeyDNS yes")
            .to_string(),
    )
}

#[test]
fn a_master_of_the_users_own_is_listed_checked_and_closed() {
    let server = server();
    let masters = with_master(&server);
    assert_eq!(masters.ls(), serde_json::json!([]));
    succeed(&mut masters.ssh(&["-fNM", "web"]));
    let listed = masters.ls();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["transport"]),
        (&"web".into(), &"openssh".into())
    );
    let master = &listed[0]["master"];
    assert_eq!(master["state"], "alive");
    assert_eq!(master["peer"], server.addr().to_string());
    assert_eq!(master["sessions"], 0);
    assert!(master["since"].is_u64());
    let pid = master["pid"].to_string();
    assert!(
        masters
            .succeed(&["check", "web"])
            .contains(&format!("process {pid}"))
    );
    assert!(masters.succeed(&["ls"]).contains(&format!("process {pid}")));
    assert!(masters.home.daemon().is_none(), "looking starts no daemon");
    assert_eq!(masters.succeed(&["close", "web"]), "closed 1 connection\n");
    assert_eq!(masters.ls(), serde_json::json!([]));
    fail(255, &mut masters.command_for(&["check", "web"]));
}

#[test]
fn a_master_with_sessions_is_closed_only_at_once() {
    let server = server();
    let masters = with_master(&server);
    succeed(&mut masters.ssh(&["-fNM", "web"]));
    let mut session = masters
        .ssh(&["web", "echo begun; cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    std::io::Read::read_exact(session.stdout.as_mut().unwrap(), &mut begun).unwrap();
    assert_eq!(masters.ls()[0]["master"]["sessions"], 1);
    let refused = fail(255, &mut masters.command_for(&["close", "web"]));
    assert_says(&refused, "--now");
    assert_eq!(
        masters.succeed(&["close", "--all", "--now"]),
        "closed 1 connection\n"
    );
    session.wait().unwrap();
}

#[test]
fn a_stale_socket_is_told_and_removed_and_nothing_else_is() {
    let server = server();
    let masters = with_master(&server);
    let stale = masters
        .home
        .path(&format!("cm-{}@web:{}", server.user(), server.port()));
    leave_socket(&stale);
    let silent = masters.home.path("cm-x@silent:22");
    let _listener = UnixListener::bind(&silent).unwrap();
    let file = masters.home.path("cm-x@file:22");
    fs::write(&file, "").unwrap();
    let mut states: Vec<_> = masters
        .ls()
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["master"]["state"].as_str().unwrap().to_owned())
        .collect();
    states.sort();
    assert_eq!(states, ["silent", "stale"]);
    let checked = finish(&mut masters.command_for(&["check", "web"]));
    assert_says(&checked, "is stale");
    assert_eq!(masters.succeed(&["close", "--stale"]), "removed 1 socket\n");
    assert!(!stale.exists() && silent.exists() && file.exists());
}

#[test]
fn a_host_that_needs_ssh_is_kept_warm_by_it_for_every_command() {
    let server = server();
    let masters = needs_ssh(&server);
    let first = masters.run("echo one; exit 3");
    assert_prints(&first, "one");
    assert_status(&first, 1);
    let run = with_status(0, masters.run("echo two; echo three >&2"));
    assert_prints(&run, "two");
    assert_says(&run, "three");
    let mut ssh = masters.home.ssh_with(&masters.home.path("config"));
    let output = fail(5, ssh.args(["web", "echo four; exit 5"]));
    assert_eq!(text(&output.stdout), "four\n");
    assert_eq!(server.authentications(), 1, "{}", server.log().text());
    let listed = masters.ls();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        (&listed[0]["name"], &listed[0]["transport"]),
        (&"web".into(), &"openssh".into())
    );
    assert_eq!(listed[0]["master"]["state"], "alive");
    let explained = masters.succeed(&["explain", "web"]);
    assert_has(&explained, "transport: openssh");
    assert_has(&explained, "verifyhostkeydns");
    masters.succeed(&["check", "web"]);
    assert_eq!(masters.succeed(&["close", "web"]), "closed 1 connection\n");
    fail(255, &mut masters.command_for(&["check", "web"]));
    assert_eq!(masters.ls(), serde_json::json!([]));
}

#[test]
fn what_a_master_decides_for_all_its_sessions_is_not_taken_from_another_request() {
    let server = server();
    let masters = needs_ssh(&server);
    let run = |options: &[&str]| {
        let mut ssh = masters.home.ssh_with(&masters.home.path("config"));
        // Debian's default is to trust. -Y, which comes first, holds.
        ssh.args(options)
            .args(["-o", "ForwardX11Trusted=no", "web", "true"]);
        succeed(&mut ssh);
        server.authentications()
    };
    assert_eq!(run(&[]), 1);
    // That master would let everybody into what others forward to their own machine.
    assert_eq!(run(&["-o", "GatewayPorts=yes"]), 2);
    assert_eq!(run(&["-X"]), 2);
    // That one would let the server's programs read the keyboard.
    assert_eq!(run(&["-Y"]), 3);
    assert_eq!(run(&["-o", "StreamLocalBindMask=0111"]), 4);
    assert_eq!(
        (run(&[]), run(&["-o", "GatewayPorts=yes"]), run(&["-Y"])),
        (4, 4, 4)
    );
}

#[test]
fn a_host_that_needs_ssh_can_be_warmed_ahead() {
    let server = server();
    let masters = needs_ssh(&server);
    let explained = masters.succeed(&["explain", "web"]);
    assert!(explained.contains("\nconnections: none\n"), "{explained}");
    masters.succeed(&["warm", "web"]);
    assert_eq!(server.authentications(), 1);
    let explained = masters.succeed(&["explain", "web"]);
    let line = "\nconnections:\n  the system's ssh, process ";
    assert!(explained.contains(line), "{explained}");
    let run = succeed(&mut masters.command_for(&["run", "--json", "-H", "web", "--", "true"]));
    let line: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(line["warm"], true, "{line}");
    assert_eq!(server.authentications(), 1);
}

#[test]
fn a_setting_sends_a_host_through_ssh() {
    let server = server();
    let masters = Masters::new(&server.host_entry("web").to_string());
    masters.home.settings("openssh_hosts = [\"db*\", \"w?b\"]\n");
    assert_status(&masters.run("true"), 0);
    assert_eq!(masters.ls()[0]["transport"], "openssh");
    let explained = masters.succeed(&["explain", "web"]);
    assert!(explained.contains("config.toml asks for"), "{explained}");
}

/// A server with nothing newer than SHA-1, as that of CentOS 6.
fn old_server() -> Sshd {
    let old = "HostKeyAlgorithms ssh-rsa\nKexAlgorithms diffie-hellman-group14-sha1\nMACs hmac-sha1\n";
    let builder = crate::home::sshd().host_keys([KeyType::Rsa]);
    builder.config(old).start().unwrap()
}

#[test]
fn a_server_with_nothing_newer_than_sha_1_is_reached_through_ssh_where_the_configuration_allows_it() {
    let server = old_server();
    let entry = server.host_entry("web");
    let allowing = "HostKeyAlgorithms +ssh-rsa\n    KexAlgorithms +diffie-hellman-group14-sha1";
    let masters = Masters::new(&entry.clone().with_line(allowing).to_string());
    for warm in [false, true] {
        let run = succeed(&mut masters.command_for(&["run", "--json", "-H", "web", "--", "exit 0"]));
        let line: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(line["warm"], warm, "{line}");
    }
    let listed = masters.ls();
    assert_eq!(listed[0]["transport"], "openssh", "{listed}");
    assert_eq!(server.authentications(), 1);
    let explained = masters.succeed(&["explain", "web"]);
    assert_has(&explained, "the server takes nothing that the engine has");
    // ssh itself, with all that it was given.
    let mut command = masters.command_for(&["ssh", "web", "exit 7"]);
    fail(7, &mut command);
    assert_eq!(server.authentications(), 1);

    let strict = Masters::new(&entry.to_string());
    let refused = with_status(1, strict.run("true"));
    assert_says(&refused, "in common");
}

#[test]
fn a_configuration_with_only_what_the_engine_has_not_goes_through_ssh() {
    let server = old_server();
    let only = "HostKeyAlgorithms ssh-rsa\n    KexAlgorithms diffie-hellman-group14-sha1\n    MACs hmac-sha1";
    let masters = Masters::new(&server.host_entry("web").with_line(only).to_string());
    assert_status(&masters.run("true"), 0);
    let explained = masters.succeed(&["explain", "web"]);
    assert_has(&explained, "kexalgorithms diffie-hellman-group14-sha1");
}

#[test]
fn a_host_that_cannot_be_had_says_why_in_sshs_words() {
    let server = server();
    let mut entry = server.host_entry("web").with_line("VerifyHostKeyDNS yes");
    entry.identities = Vec::new();
    let masters = Masters::new(&entry.to_string());
    let warmed = fail(255, &mut masters.command_for(&["warm", "web"]));
    assert_says(&warmed, "Permission denied");
    let run = with_status(1, masters.run("true"));
    assert_says(&run, "Permission denied");
}

#[test]
fn ssh_asks_the_user_and_what_comes_after_needs_no_answer() {
    let server = crate::home::sshd()
        .client_keys([])
        .password("open sesame")
        .start()
        .unwrap();
    let masters = needs_ssh(&server);
    let mut ssh = masters.home.ssh_with(&masters.home.path("config"));
    let mut terminal = Terminal::start(ssh.args(["web", "echo do''ne"]));
    terminal.answer("assword: ", "open sesame\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(0));
    assert_status(&masters.run("true"), 0);
    assert_eq!(server.authentications(), 1);
}

#[test]
fn input_reaches_a_command_and_time_is_kept() {
    let server = server();
    let masters = needs_ssh(&server);
    let late = fail(
        1,
        &mut masters.command_for(&[
            "run",
            "--timeout",
            "1",
            "-H",
            "web",
            "--",
            "cat /dev/zero >/dev/null",
        ]),
    );
    assert_says(&late, "may have started");
    let mut ssh = masters.home.ssh_with(&masters.home.path("config"));
    let output = crate::home::finish_with(ssh.args(["web", "cat"]), b"through");
    assert_eq!(output.stdout, b"through");
}
