//! Questions that only a user can answer: stock ssh asks them, since the daemon cannot.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use trunkline_testkit::HostEntry;

use super::stanza::Stanza;
use crate::home::{assert_says, assert_status, describe, finish, server, sshd, succeed, text, with_status};
use crate::tty::Terminal;

/// ssh on a terminal.
fn on_terminal(stanza: &Stanza) -> Terminal {
    Terminal::start(stanza.ssh().args(["web", "echo do''ne"]))
}

pub(super) fn may_ask(mut entry: HostEntry) -> HostEntry {
    entry.may_ask = true;
    entry
}

#[test]
fn a_password_is_asked_for_by_ssh() {
    let server = sshd().client_keys([]).password("open sesame").start().unwrap();
    let stanza = Stanza::after_hosts([server.host_entry("web")]);
    for _ in 0..2 {
        let mut terminal = on_terminal(&stanza);
        terminal.answer("assword: ", "open sesame\n");
        terminal.expect("done");
        assert_eq!(terminal.end().code(), Some(0));
    }
}

#[test]
fn an_unknown_host_key_is_asked_about_by_ssh_and_then_known_to_all() {
    let server = server();
    let stanza = Stanza::after_hosts([]);
    let lines = fs::read_to_string(stanza.config()).unwrap();
    let mut entry = may_ask(server.host_entry("web")).with_line("StrictHostKeyChecking ask");
    entry.known_hosts = stanza.home.path("known_hosts");
    fs::write(stanza.config(), format!("{entry}{lines}")).unwrap();
    let mut terminal = on_terminal(&stanza);
    terminal.answer("continue connecting", "yes\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(0));
    let known = fs::read_to_string(stanza.home.path("known_hosts")).unwrap();
    assert!(!known.is_empty());
    let mut warm = stanza.home.trunkline();
    warm.args(["warm", "-F"]).arg(stanza.config()).arg("web");
    succeed(&mut warm);
    stanza.succeed(&["web", "true"]);
    assert_eq!(server.authentications(), 2, "ssh's own, and the daemon's");
}

#[test]
fn a_passphrase_is_asked_for_by_ssh() {
    let server = server();
    let stanza = Stanza::after_hosts([]);
    let key = stanza.home.path("key");
    fs::copy(server.client_keys()[0].private_path(), &key).unwrap();
    let mut lock = Command::new("ssh-keygen");
    lock.args(["-q", "-p", "-P", "", "-N", "open sesame", "-f"])
        .arg(&key);
    succeed(&mut lock);
    let lines = fs::read_to_string(stanza.config()).unwrap();
    let mut entry = may_ask(server.host_entry("web"));
    entry.identities = vec![key];
    fs::write(stanza.config(), format!("{entry}{lines}")).unwrap();
    let mut terminal = on_terminal(&stanza);
    terminal.answer("Enter passphrase", "open sesame\n");
    terminal.expect("done");
    assert_eq!(terminal.end().code(), Some(0));
}

/// A program for SSH_ASKPASS that notes what it is asked and answers what a file says.
pub(super) struct Askpass {
    program: PathBuf,
    asked: PathBuf,
    answer: PathBuf,
}

impl Askpass {
    pub(super) fn new(stanza: &Stanza) -> Self {
        let (asked, answer) = (stanza.home.path("asked"), stanza.home.path("answer"));
        let note = "#!/bin/sh\necho \"$SSH_ASKPASS_PROMPT: $1\" >>";
        let script = format!("{note}{}\ncat {}\n", asked.display(), answer.display());
        let program = stanza.home.script("askpass", &script);
        Self {
            program,
            asked,
            answer,
        }
    }

    pub(super) fn will_say(&self, answer: &str) {
        fs::write(&self.answer, answer).unwrap();
    }

    /// Returns the questions since the last look.
    pub(super) fn take_questions(&self) -> String {
        let asked = fs::read_to_string(&self.asked).unwrap_or_default();
        let _ = fs::remove_file(&self.asked);
        asked
    }

    pub(super) fn run(&self, command: &mut Command, arguments: &[&str]) -> Output {
        command.env("SSH_ASKPASS", &self.program);
        command.env("SSH_ASKPASS_REQUIRE", "force");
        finish(command.args(arguments))
    }
}

/// The question before a connection to `web` is used.
const USE_OF_WEB: &str = "confirm: Allow shared connection to web? \n";

#[test]
fn each_use_of_a_connection_is_confirmed_where_the_settings_say_so() {
    let (server, stanza) = Stanza::of_web();
    stanza.home.settings("confirm_hosts = [\"w*\"]\n");
    let askpass = Askpass::new(&stanza);
    askpass.will_say("yes\n");
    assert_status(&askpass.run(&mut stanza.ssh(), &["web", "true"]), 0);
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    assert_eq!(server.authentications(), 1);
    // An alive check does not count as a use; opening a forwarding does.
    assert_status(&askpass.run(&mut stanza.ssh(), &["-O", "check", "web"]), 0);
    assert_eq!(askpass.take_questions(), "");
    askpass.will_say("no\n");
    let refused = with_status(
        255,
        askpass.run(
            &mut stanza.ssh(),
            &["-O", "forward", "-L", "/nowhere:db:80", "web"],
        ),
    );
    assert_says(&refused, "Permission denied");
    assert_eq!(
        askpass.take_questions(),
        "confirm: Open -L /nowhere to db:80 on web? \n"
    );
    // ssh makes a connection of its own then.
    let own = with_status(0, askpass.run(&mut stanza.ssh(), &["web", "echo own"]));
    assert_eq!(text(&own.stdout), "own\n");
    assert_eq!(server.authentications(), 2);
    let ours = |arguments: &[&str]| {
        let mut command = stanza.home.trunkline();
        command.args(["ssh", "-F"]).arg(stanza.config());
        askpass.run(&mut command, arguments)
    };
    askpass.take_questions();
    let refused = with_status(255, ours(&["web", "echo run"]));
    assert_says(&refused, "was not allowed");
    assert!(refused.stdout.is_empty());
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    askpass.will_say("\n");
    assert_eq!(text(&ours(&["web", "echo run"]).stdout), "run\n");
}

#[test]
fn control_master_ask_confirms_each_use_of_a_connection_but_not_its_making() {
    let server = server();
    let stanza = Stanza::after_hosts([]);
    let entry = server.host_entry("web").with_line("ControlMaster autoask");
    fs::write(stanza.home.path("asking"), entry.to_string()).unwrap();
    let askpass = Askpass::new(&stanza);
    let ours = || {
        let mut command = stanza.home.trunkline();
        command.args(["ssh", "-F"]).arg(stanza.home.path("asking"));
        askpass.run(&mut command, &["web", "true"])
    };
    assert_status(&ours(), 0);
    assert_eq!(askpass.take_questions(), "");
    askpass.will_say("yes\n");
    assert_status(&ours(), 0);
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    assert_eq!(server.authentications(), 1);
}

/// A connection that is there, and whose owner has each use of it confirmed.
struct Lent {
    stanza: Stanza,
    askpass: Askpass,
    servers: [trunkline_testkit::Sshd; 2],
}

impl Lent {
    /// "web" is its host, "behind" one behind that; "same" is web without a word on confirming.
    fn new() -> Self {
        let servers = [server(), server()];
        let stanza = Stanza::after_hosts([]);
        let web = servers[0].host_entry("web").with_line("ControlMaster autoask");
        let same = servers[0].host_entry("same");
        let behind = servers[1].host_entry("behind").with_line("ProxyJump web");
        fs::write(stanza.home.path("asking"), format!("{web}{same}{behind}")).unwrap();
        let askpass = Askpass::new(&stanza);
        let lent = Self {
            stanza,
            askpass,
            servers,
        };
        assert_status(&lent.ours("ssh", &["web", "true"]), 0);
        assert_eq!(lent.askpass.take_questions(), "");
        lent
    }

    fn ours(&self, command: &str, arguments: &[&str]) -> Output {
        let mut program = self.stanza.home.trunkline();
        program.args([command, "-F"]).arg(self.stanza.home.path("asking"));
        self.askpass.run(&mut program, arguments)
    }
}

#[test]
fn the_users_of_a_lent_connection_cannot_switch_the_question_off() {
    let lent = Lent::new();
    let (from, to) = ("web:/etc/hostname", lent.stanza.home.path("copied"));
    let to = to.to_str().unwrap();
    let forward = format!("{}:localhost:1", lent.stanza.home.path("forward").display());
    for (command, arguments, question) in [
        (
            "ssh",
            &["-o", "ControlMaster=no", "web", "true"][..],
            "Allow shared connection to web? ",
        ),
        ("ssh", &["same", "true"], "Allow shared connection to same? "),
        (
            "ssh",
            &["-oControlMaster=auto", "web", "true"],
            "Allow shared connection to web? ",
        ),
        (
            "ssh",
            &["-o", "ControlMaster=no", "-W", "localhost:1", "web"],
            "Allow forward to localhost:1? ",
        ),
        (
            "ssh",
            &["-o", "ControlMaster=no", "-NL", &forward, "web"],
            "Allow shared connection to web? ",
        ),
        (
            "ssh",
            &["-o", "ControlMaster=no", "-s", "web", "sftp"],
            "Allow shared connection to web? ",
        ),
        (
            "cp",
            &["-o", "ControlMaster=no", from, to],
            "Allow shared connection to web? ",
        ),
        // The jump host's own setting, whatever the one behind it says.
        (
            "ssh",
            &["-o", "ControlMaster=no", "behind", "true"],
            "Allow forward to 127.0.0.1:",
        ),
        (
            "ssh",
            &["-J", "web", "same", "true"],
            "Allow forward to 127.0.0.1:",
        ),
        ("warm", &["behind"], "Allow forward to 127.0.0.1:"),
    ] {
        lent.askpass.will_say("no\n");
        let refused = lent.ours(command, arguments);
        assert!(!refused.status.success(), "{arguments:?}: {}", describe(&refused));
        let asked = lent.askpass.take_questions();
        assert!(
            asked.starts_with(&format!("confirm: {question}")) && asked.lines().count() == 1,
            "{arguments:?}: {asked:?} {}",
            describe(&refused)
        );
        let said = text(&refused.stderr);
        assert!(said.contains("was not allowed"), "{arguments:?}: {said}");
    }
    assert_eq!(lent.servers[0].authentications(), 1);
    assert_eq!(lent.servers[1].authentications(), 0);
    assert!(!std::path::Path::new(to).exists());
    lent.askpass.will_say("yes\n");
    assert_status(
        &lent.ours("ssh", &["-o", "ControlMaster=no", "behind", "true"]),
        0,
    );
    assert_eq!(lent.askpass.take_questions().lines().count(), 1);
}

#[test]
fn whoever_wants_to_use_a_lent_connection_does_not_choose_who_is_asked() {
    let lent = Lent::new();
    let yes = lent.stanza.home.script("yes", "#!/bin/sh\necho yes\n");
    let config = lent.stanza.home.path("asking");
    let with_yes = |command: &mut Command, arguments: &[&str]| {
        command
            .env("SSH_ASKPASS", &yes)
            .env("SSH_ASKPASS_REQUIRE", "force");
        finish(command.args(arguments))
    };
    lent.askpass.will_say("no\n");
    for arguments in [["web", "true"], ["same", "true"], ["behind", "true"]] {
        let mut ours = lent.stanza.home.trunkline();
        ours.args(["ssh", "-F"]).arg(&config);
        let refused = with_status(255, with_yes(&mut ours, &arguments));
        assert_says(&refused, "was not allowed");
        assert_eq!(lent.askpass.take_questions().lines().count(), 1);
    }
    assert_eq!(lent.servers[0].authentications(), 1);
}

#[test]
fn a_program_of_the_settings_is_asked_whoever_made_the_connection() {
    let (server, stanza) = Stanza::of_web();
    let askpass = Askpass::new(&stanza);
    let settings = format!(
        "confirm_hosts = [\"w*\"]\nconfirm_askpass = {:?}\n",
        askpass.program
    );
    stanza.home.settings(&settings);
    let yes = stanza.home.script("yes", "#!/bin/sh\necho yes\n");
    let asks_yes = |mut command: Command| {
        command
            .env("SSH_ASKPASS", &yes)
            .env("SSH_ASKPASS_REQUIRE", "force");
        command
    };
    let ours = || {
        let mut command = asks_yes(stanza.home.trunkline());
        command.args(["ssh", "-F"]).arg(stanza.config());
        finish(command.args(["web", "true"]))
    };
    assert_status(&ours(), 0);
    assert_eq!(askpass.take_questions(), "");
    askpass.will_say("no\n");
    assert_status(&ours(), 255);
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    // Stock ssh is asked there, too, and connects by itself then.
    succeed(asks_yes(stanza.ssh()).args(["web", "true"]));
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    assert_eq!(server.authentications(), 2);
    askpass.will_say("yes\n");
    assert_status(&ours(), 0);
}

#[test]
fn a_lent_connection_asks_the_clients_of_its_mux_socket_too() {
    let (server, stanza) = Stanza::of_web();
    let askpass = Askpass::new(&stanza);
    let confirming = ["-F", stanza.config().to_str().unwrap(), "-oControlMaster=autoask"].map(str::to_owned);
    let mut ours = stanza.home.trunkline();
    ours.arg("ssh").args(&confirming);
    assert_status(&askpass.run(&mut ours, &["web", "true"]), 0);
    assert_eq!(askpass.take_questions(), "");
    askpass.will_say("yes\n");
    assert_status(&askpass.run(&mut stanza.ssh(), &["web", "true"]), 0);
    assert_eq!(askpass.take_questions(), USE_OF_WEB);
    assert_eq!(server.authentications(), 1);
}

#[test]
fn the_masters_of_the_systems_ssh_ask_where_their_configuration_does() {
    let server = server();
    let stanza = Stanza::after_hosts([]);
    // Host keys from DNS are looked up by ssh only.
    let entry = server.host_entry("web").with_line("VerifyHostKeyDNS yes");
    let asking = stanza.home.path("asking");
    fs::write(&asking, entry.with_line("ControlMaster autoask").to_string()).unwrap();
    let askpass = Askpass::new(&stanza);
    let ours = |command: &str, arguments: &[&str]| {
        let mut program = stanza.home.trunkline();
        program.args([command, "-F"]).arg(&asking);
        askpass.run(&mut program, arguments)
    };
    // With ControlPersist, the ssh that makes the master is its first client, and is asked about as well.
    askpass.will_say("yes\n");
    assert_status(&ours("ssh", &["web", "true"]), 0);
    askpass.take_questions();
    // One that is refused connects by itself.
    for (answer, authentications) in [("yes\n", 1), ("no\n", 2)] {
        askpass.will_say(answer);
        let used = ours("ssh", &["-o", "ControlMaster=no", "web", "true"]);
        assert_status(&used, 0);
        assert_eq!(server.authentications(), authentications);
        assert!(
            askpass
                .take_questions()
                .starts_with("confirm: Allow shared connection to ")
        );
    }
    askpass.will_say("yes\n");
    let mut close = stanza.home.trunkline();
    succeed(close.args(["close", "--all", "--now"]));
}
