//! `trunkline` and `trunklined`: how the first finds the second, and the one that it has to itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::{Dropbear, Sshd};

use crate::home::{
    Home, assert_says, assert_status, copy_program, describe, end_of, fail, fifo, finish, program, server,
    succeed, text, wait_until, with_status,
};
use crate::tty::Terminal;

/// A command without the daemon, whose private one writes down which process it is; add options, an alias and a command.
fn private(home: &Home, server: &Sshd) -> Command {
    private_with(home, &server.ssh_config())
}

fn private_with(home: &Home, config: &Path) -> Command {
    let noting = home.script(
        "noting",
        &format!(
            "#!/bin/sh\necho $$ >{}\nexec {} \"$@\"\n",
            home.path("private").display(),
            second_daemon().display()
        ),
    );
    let mut command = home.trunkline();
    command
        .env("TRUNKLINED", noting)
        .args(["ssh", "--no-daemon", "-F"])
        .arg(config);
    command
}

fn second_daemon() -> PathBuf {
    Path::new(program()).with_file_name("trunklined")
}

/// The private daemon that was started last, if it runs.
fn running(home: &Home) -> Option<Pid> {
    let noted = fs::read_to_string(home.path("private")).unwrap();
    let pid: i32 = noted.trim().parse().unwrap();
    // One that has ended and was not waited for yet has no command line any more.
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_private = line.split(|byte| *byte == 0).any(|word| word == b"--private");
    is_private.then(|| Pid::from_raw(pid)).flatten()
}

/// A command on the server that touches one file when it has begun, and another when it is told to end.
fn waits(home: &Home) -> (PathBuf, PathBuf, String) {
    let (begun, told) = (home.path("begun"), home.path("told"));
    let command = format!(
        "trap 'touch {}; kill $!; exit' TERM; sleep 1000 & touch {}; wait",
        told.display(),
        begun.display()
    );
    (begun, told, command)
}

#[test]
fn a_private_daemon_ends_with_its_program_however_that_ends() {
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let (server, home) = (server(), Home::new());
        let (begun, _, command) = waits(&home);
        let mut child = private(&home, &server)
            .args([server.alias(), &command])
            .spawn()
            .unwrap();
        wait_until("the command has begun", || begun.exists());
        assert!(running(&home).is_some());
        kill_process(Pid::from_child(&child), signal).unwrap();
        end_of(&mut child, "the program");
        wait_until("nothing is left of it", || running(&home).is_none());
        assert!(!home.socket().exists());
    }
}

#[test]
fn nothing_runs_any_more_when_a_command_without_the_daemon_has_ended() {
    let (server, home) = (server(), Home::new());
    fail(4, private(&home, &server).args([server.alias(), "exit 4"]));
    assert_eq!(running(&home), None);
}

#[test]
fn a_program_whose_private_daemon_dies_says_that_the_command_may_have_started() {
    let (server, home) = (server(), Home::new());
    let (begun, _, command) = waits(&home);
    let child = private(&home, &server)
        .args([server.alias(), &command])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the command has begun", || begun.exists());
    kill_process(running(&home).unwrap(), Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 255);
    // By whether the program has heard of the beginning.
    let said = text(&output.stderr);
    let knows = ["may have started", "had started"]
        .iter()
        .any(|words| said.contains(words));
    assert!(knows, "{}", describe(&output));
}

#[test]
fn ctrl_c_without_the_daemon_ends_the_command_before_the_program() {
    // OpenSSH's server passes no signals to commands of root.
    let (server, home) = (Dropbear::start_default().unwrap(), Home::new());
    let (begun, told, command) = waits(&home);
    let mut ssh = private_with(&home, &server.ssh_config());
    let mut terminal = Terminal::start(ssh.args([server.alias(), &command]));
    wait_until("the command has begun", || begun.exists());
    // To all that run on the terminal: the private daemon as well.
    terminal.send("\x03");
    assert!(!terminal.end().success());
    assert!(told.exists(), "the command was not told: {}", terminal.text());
    wait_until("nothing is left of it", || running(&home).is_none());
}

/// As with ssh, whose proxy commands ask for one-time codes this way.
#[test]
fn a_proxy_command_of_a_private_daemon_has_the_terminal() {
    let (server, home) = (server(), Home::new());
    let proxy = home.script(
        "proxy",
        &format!(
            "#!/bin/bash\nprintf 'code? ' >/dev/tty\nread -r code </dev/tty\n[ \"$code\" = 4711 ] || exit 1\n\
             exec 3<>/dev/tcp/127.0.0.1/{}; cat <&3 2>/dev/null & exec cat >&3\n",
            server.port()
        ),
    );
    let proxy = format!("ProxyCommand={}", proxy.display());
    for ssh in ["exec ssh", "exec \"$T\" --no-daemon ssh"] {
        let script = format!("{ssh} -F \"$F\" -o \"$PROXY\" \"$ALIAS\" 'echo reached; cat'");
        let mut shell = home.shell(&server, &script);
        let mut terminal = Terminal::start(shell.env("PROXY", &proxy).env("ALIAS", server.alias()));
        terminal.answer("code? ", "4711\n");
        terminal.answer("reached", "\x04");
        assert!(terminal.end().success(), "{ssh}: {}", terminal.text());
    }
}

#[test]
fn a_program_without_trunklined_says_where_it_looked() {
    let (server, home) = (server(), Home::new());
    fs::create_dir(home.path("bin")).unwrap();
    let alone = home.path("bin/trunkline");
    copy_program(Path::new(program()), &alone);
    let run = |options: &[&str], named: &str| {
        let mut command = home.command(&alone);
        command.args(options).args(["ssh", "-F"]).arg(server.ssh_config());
        command.args([server.alias(), "true"]).env("TRUNKLINED", named);
        finish(&mut command)
    };
    for options in [&[][..], &["--no-daemon"]] {
        let output = with_status(255, run(options, ""));
        let said = text(&output.stderr);
        let place = home.path("bin/trunklined");
        assert!(said.contains(place.to_str().unwrap()), "{said}");
        let libexec = home.path("libexec/trunkline/trunklined");
        assert!(said.contains(libexec.to_str().unwrap()), "{said}");
        let output = with_status(255, run(options, "/nowhere/trunklined"));
        assert_says(&output, "TRUNKLINED names /nowhere/trunklined");
    }
    assert_status(&run(&["--no-daemon"], second_daemon().to_str().unwrap()), 0);
    fs::create_dir_all(home.path("libexec/trunkline")).unwrap();
    std::os::unix::fs::symlink(second_daemon(), home.path("libexec/trunkline/trunklined")).unwrap();
    assert_status(&run(&["--no-daemon"], ""), 0);
    // A link is followed to where the program is installed.
    let link = home.path("ssh-trunkline");
    std::os::unix::fs::symlink(&alone, &link).unwrap();
    let mut named_ssh = home.command(&link);
    named_ssh.arg("-F").arg(server.ssh_config());
    fail(3, named_ssh.args([server.alias(), "exit 3"]));
}

#[test]
fn trunklined_is_what_the_environment_says() {
    let (server, home) = (server(), Home::new());
    let noted = home.path("noted");
    let mine = home.script(
        "mine",
        &format!(
            "#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n",
            noted.display(),
            second_daemon().display()
        ),
    );
    let mut ways = [home.ssh(&server), private(&home, &server)];
    for command in &mut ways {
        command.env("TRUNKLINED", &mine).args([server.alias(), "true"]);
        succeed(command);
    }
    let settings = finish(home.trunkline().arg("settings").env("TRUNKLINED", &mine));
    let told = text(&settings.stdout);
    assert!(
        told.lines().any(|line| line.starts_with("idle_timeout ")),
        "{told}"
    );
    assert_eq!(
        fs::read_to_string(&noted).unwrap(),
        "--detach\n--private\n--private\n"
    );
}

#[test]
fn a_private_daemon_that_cannot_start_has_its_program_say_why() {
    let (server, home) = (server(), Home::new());
    home.settings("max_lanes = 0\n");
    let output = fail(255, private(&home, &server).args([server.alias(), "true"]));
    let said = text(&output.stderr);
    assert!(said.contains("max_lanes is 0; it must be at least 1"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let ended = home.script("ended", "#!/bin/sh\nexit 1\n");
    let output = fail(
        255,
        private(&home, &server)
            .args([server.alias(), "true"])
            .env("TRUNKLINED", &ended),
    );
    assert_says(&output, "did not start");
}

/// A `trunklined` of another release is not started again and again.
#[test]
fn a_trunklined_of_another_version_is_named() {
    let (server, home) = (server(), Home::new());
    let (asked, ready) = (home.path("asked"), home.path("ready"));
    fifo(&asked).unwrap();
    fifo(&ready).unwrap();
    let other = home.script(
        "other",
        &format!("#!/bin/sh\necho >{}\ncat {}\n", asked.display(), ready.display()),
    );
    let child = home
        .ssh(&server)
        .args([server.alias(), "true"])
        .env("TRUNKLINED", &other)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fs::read(&asked).unwrap();
    let daemon = super::lifecycle::foreign_daemon(&home, trunkline_control::protocol::VERSION - 1);
    fs::write(&ready, "ready\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 255);
    assert_says(&output, other.to_str().unwrap());
    assert_says(&output, "install both from the same release");
    drop(daemon);
}
