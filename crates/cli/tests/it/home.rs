//! A place of its own for each test's daemon, and how its commands are run.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use trunkline_testkit::{HostEntry, Sshd, SshdBuilder, directory, free_port, write_ssh_config};

/// The time that anything may take before a test gives up. Far more than a loaded machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A home and a `TRUNKLINE_DIR`. Dropping it, or the end of the test program, ends the daemon and whatever else runs with
/// it.
pub(crate) struct Home {
    dir: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = directory().unwrap();
        fs::create_dir(dir.path().join("home")).unwrap();
        Self { dir }
    }

    /// The same, in which no connection is ever too busy for the next session: how many there are does not depend on how
    /// fast a test's data flows.
    pub(crate) fn never_busy() -> Self {
        let home = Self::new();
        home.settings("busy_above = 1_000_000_000_000\n");
        home
    }

    /// For files of the test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `TRUNKLINE_DIR`.
    pub(crate) fn trunkline_dir(&self) -> PathBuf {
        self.path("d")
    }

    /// A file for `ssh -F` with these hosts.
    pub(crate) fn config(&self, hosts: impl IntoIterator<Item = HostEntry>) -> PathBuf {
        let config = self.path("config");
        write_ssh_config(&config, hosts).unwrap();
        config
    }

    /// The same with a server under the name `box`, and these lines about it.
    pub(crate) fn config_of_box(&self, server: &Sshd, lines: &[&str]) -> PathBuf {
        let entry = server.host_entry("box");
        self.config([lines.iter().fold(entry, |entry, line| entry.with_line(line))])
    }

    /// The control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.trunkline_dir().join("control.sock")
    }

    /// The daemon's log so far.
    pub(crate) fn log(&self) -> String {
        let path = self.trunkline_dir().join("state/daemon.log");
        // A test may have put a device there, which has no end.
        let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
        if is_file {
            fs::read_to_string(path).unwrap_or_default()
        } else {
            String::new()
        }
    }

    /// Writes `config.toml`.
    pub(crate) fn settings(&self, text: &str) {
        fs::create_dir_all(self.trunkline_dir()).unwrap();
        fs::write(self.trunkline_dir().join("config.toml"), text).unwrap();
    }

    /// Writes an executable script and returns its path.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    /// Any program, in this home's environment.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("TRUNKLINE_DIR", self.trunkline_dir())
            .env("HOME", self.path("home"))
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        for name in [
            "SSH_AUTH_SOCK",
            "SSH_ASKPASS",
            "SSH_ASKPASS_REQUIRE",
            "DISPLAY",
            "WAYLAND_DISPLAY",
        ] {
            command.env_remove(name);
        }
        for name in [
            "TRUNKLINE_OFF",
            "TRUNKLINE_SSH",
            "TRUNKLINE_STRICT",
            "TRUNKLINE_LOG",
            "LC_ALL",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Any program that finds Ansible's own on its PATH.
    pub(crate) fn command_with_ansible(&self, program: impl AsRef<OsStr>) -> Command {
        let mut path = ansible().into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = self.command(program);
        command.env("PATH", path);
        command
    }

    /// `trunkline`; add arguments.
    pub(crate) fn trunkline(&self) -> Command {
        self.command(program())
    }

    /// `trunkline ssh -F FILE`; add options, a host and a command.
    pub(crate) fn ssh_with(&self, config: &Path) -> Command {
        let mut command = self.trunkline();
        command.arg("ssh").arg("-F").arg(config);
        command
    }

    /// `trunkline ssh -F FILE` for a server; add options, its alias and a command.
    pub(crate) fn ssh(&self, server: &Sshd) -> Command {
        self.ssh_with(&server.ssh_config())
    }

    /// Runs a command line on the server and returns how it went.
    pub(crate) fn run_on(&self, server: &Sshd, command: &str) -> Output {
        finish(self.ssh(server).arg(server.alias()).arg(command))
    }

    /// A shell script in which `$T` is the program and `$F` the server's configuration.
    pub(crate) fn shell(&self, server: &Sshd, script: &str) -> Command {
        let mut command = self.command("bash");
        command
            .args(["-c", script])
            .env("T", program())
            .env("F", server.ssh_config());
        command
    }

    /// The daemon's process, if one listens.
    pub(crate) fn daemon(&self) -> Option<Pid> {
        let stream = UnixStream::connect(self.socket()).ok()?;
        Some(rustix::net::sockopt::socket_peercred(&stream).ok()?.pid)
    }

    /// Stops the daemon, until it gets SIGCONT: nothing answers any more when this returns.
    pub(crate) fn stop_answering(&self) -> Pid {
        let daemon = self.daemon().unwrap();
        kill_process(daemon, Signal::STOP).unwrap();
        // Each of its threads stops when it is scheduled, and may do so much until then.
        wait_until("the daemon's threads have stopped", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", daemon.as_raw_pid())).unwrap();
            tasks.flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ")
                    .is_none_or(|(_, rest)| rest.starts_with('T'))
            })
        });
        daemon
    }

    /// Returns the output of `ls --json`.
    pub(crate) fn ls(&self) -> serde_json::Value {
        let output = finish(self.trunkline().args(["ls", "--json"]));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the number of running sessions, on all connections.
    pub(crate) fn sessions(&self) -> u64 {
        let hosts = self.ls();
        let hosts = hosts.as_array().unwrap();
        let connections = hosts
            .iter()
            .flat_map(|host| host["connections"].as_array().unwrap());
        connections
            .map(|connection| connection["sessions"].as_u64().unwrap())
            .sum()
    }

    /// Returns the daemon's open descriptors, and the target of each.
    pub(crate) fn descriptors(&self) -> Vec<String> {
        let Some(daemon) = self.daemon() else {
            return Vec::new();
        };
        let entries = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap();
        let shown = entries.flatten().filter_map(|entry| {
            let what = fs::read_link(entry.path()).ok()?;
            Some(format!("{} {}", entry.file_name().display(), what.display()))
        });
        shown.collect()
    }

    /// Waits until the daemon has no more descriptors open than `before`.
    pub(crate) fn wait_for_descriptors(&self, before: &[String]) {
        wait_until_or("no descriptor is left behind", || {
            let now = self.descriptors();
            if now.len() <= before.len() {
                return Ok(());
            }
            Err(format!("before: {before:#?}\nnow: {now:#?}"))
        });
    }

    /// The processes that run in this home.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let wanted = format!("TRUNKLINE_DIR={}", self.trunkline_dir().display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = numbers.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == wanted.as_bytes())
        });
        ours.filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.socket().exists() {
            let _ = self
                .trunkline()
                .args(["stop", "--now"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
        for pid in self.processes() {
            let _ = kill_process(pid, Signal::KILL);
        }
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}---", self.log());
        }
    }
}

/// A server whose shells start at once.
pub(crate) fn server() -> Sshd {
    sshd().start().unwrap()
}

/// The same, to be furnished. Bash reads the user's ~/.bashrc, whatever that does, when sshd starts it at the lowest
/// shell level (`run_startup_files()` in bash's shell.c), so the level is raised.
pub(crate) fn sshd() -> SshdBuilder {
    Sshd::builder().config("SetEnv SHLVL=1")
}

/// The hosts box1 and so on: a server that listens on any loopback address, at one of its own for each.
pub(crate) fn boxes(server: &Sshd, count: u8) -> impl Iterator<Item = HostEntry> {
    (1..=count).map(|n| {
        let address = ([127, 0, 1, n], server.port()).into();
        server.host_entry(&format!("box{n}")).with_address(address)
    })
}

/// An address of this machine that refuses connections, and that nobody else is given while the test runs.
pub(crate) fn closed_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// The program under test, above the directory of the program of tests.
pub(crate) fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let tests = std::env::current_exe().unwrap();
        let program = tests.ancestors().nth(2).unwrap().join("trunkline");
        program.into_os_string().into_string().unwrap()
    });
    &PROGRAM
}

/// The directory of ansible-core's programs, in a virtual environment that `scripts/ansible` makes.
fn ansible() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let programs = root.join("target/ansible/2.19/bin");
    assert!(
        programs.join("ansible-inventory").exists(),
        "Ansible is needed: run scripts/ansible"
    );
    programs
}

/// Copies a program. By a process of its own: one that another test starts meanwhile would inherit a descriptor of this
/// one's that still writes it, and nothing starts a program that is being written.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert_status(&finish(Command::new("cp").arg(from).arg(to)), 0);
}

/// Runs a command to its end, which has to come.
pub(crate) fn finish(command: &mut Command) -> Output {
    finish_with(command, b"")
}

/// The same, with something on standard input. Without, standard input is what the command says.
pub(crate) fn finish_with(command: &mut Command, stdin: &[u8]) -> Output {
    if !stdin.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that reads no more of it is none of our business.
            let _ = input.map(|mut input| input.write_all(stdin));
        });
        let stdout = scope.spawn(|| all_of(stdout));
        let stderr = scope.spawn(|| all_of(stderr));
        let status = end_of(&mut child, command);
        Output {
            status,
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    })
}

fn all_of(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Starts a command whose first words are "up", and returns once they have come: it runs on the server then, and goes on.
pub(crate) fn start(command: &mut Command) -> Child {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    child
}

/// Waits for a child that has to end.
pub(crate) fn end_of(child: &mut Child, what: impl std::fmt::Debug) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{what:?} does not end");
        }
        pause();
    }
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_until_or(what, || if holds() { Ok(()) } else { Err(String::new()) });
}

/// Waits until a condition holds, and shows what was there instead when it never does.
pub(crate) fn wait_until_or(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(instead) = look() {
        assert!(
            started.elapsed() < PATIENCE,
            "timed out waiting until {what}\n{instead}"
        );
        pause();
    }
}

/// Between two looks at something that has nothing to wait on.
fn pause() {
    std::thread::park_timeout(Duration::from_millis(2));
}

/// Runs a command that has to succeed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Output {
    with_status(0, finish(command))
}

/// Runs a command that has to end with this status.
#[track_caller]
pub(crate) fn fail(status: i32, command: &mut Command) -> Output {
    with_status(status, finish(command))
}

/// Hands on what a command left, which has to have ended with this status.
#[track_caller]
pub(crate) fn with_status(status: i32, output: Output) -> Output {
    assert_status(&output, status);
    output
}

/// Asserts an exit status, and shows what was said when it is another.
#[track_caller]
pub(crate) fn assert_status(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "{}", describe(output));
}

/// Asserts that standard error has these words.
#[track_caller]
pub(crate) fn assert_says(output: &Output, words: &str) {
    assert!(
        text(&output.stderr).contains(words),
        "{words:?} is not in {}",
        describe(output)
    );
}

/// Asserts that standard output has these words.
#[track_caller]
pub(crate) fn assert_prints(output: &Output, words: &str) {
    assert!(
        text(&output.stdout).contains(words),
        "{words:?} is not in {}",
        describe(output)
    );
}

/// Asserts that a text has these words.
#[track_caller]
pub(crate) fn assert_has(text: &str, words: &str) {
    assert!(text.contains(words), "{words:?} is not in {text}");
}

/// Standard output and error of a command that went wrong.
pub(crate) fn describe(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Output as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A new FIFO.
pub(crate) fn fifo(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )?)
}
