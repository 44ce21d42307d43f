//! The daemon's life: who starts it, how it ends, and what the deaths of others do to it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use trunkline_control::protocol::{Reply, Request, VERSION};
use trunkline_testkit::{Sshd, leave_socket};

use crate::home::{
    Home, assert_has, assert_says, assert_status, end_of, fail, fifo, finish, program, server, succeed, text,
    wait_until, with_status,
};

/// A command that has begun on the server, as its client knows, and waits there until its gate is opened.
struct Waiting {
    child: Child,
    gate: std::path::PathBuf,
}

impl Waiting {
    fn start(home: &Home, server: &Sshd) -> Self {
        let gate = home.path("gate");
        fifo(&gate).unwrap();
        let command = format!("echo begun; cat {}; exit 11", gate.display());
        let mut ssh = home.ssh(server);
        ssh.args([server.alias(), &command])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = ssh.spawn().unwrap();
        let mut begun = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"begun\n");
        Self { child, gate }
    }

    /// Lets the command end, and returns its exit status and what it wrote.
    fn release(mut self) -> (Option<i32>, String) {
        fs::write(&self.gate, "opened").unwrap();
        let status = end_of(&mut self.child, "the command");
        let mut output = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut output)
            .unwrap();
        (status.code(), output)
    }

    fn errors(mut self) -> (Option<i32>, String) {
        let status = end_of(&mut self.child, "the command");
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (status.code(), said)
    }
}

fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // Ended, and perhaps not yet collected.
    stat.rsplit_once(')')
        .is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_command_is_reported_as_that() {
    let (server, home) = (server(), Home::new());
    let command = Waiting::start(&home, &server);
    kill_process(home.daemon().unwrap(), Signal::KILL).unwrap();
    let (status, said) = command.errors();
    assert_eq!(status, Some(255));
    assert_has(&said, "the command had started, and may still be running");
    assert_eq!(said.lines().count(), 1, "{said}");
    // Its socket is still there; the next command starts a new daemon over it.
    assert!(home.socket().exists());
    assert_status(&home.run_on(&server, "exit 3"), 3);
}

#[test]
fn a_daemon_that_was_killed_while_idle_is_replaced_unnoticed() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let first = home.daemon().unwrap();
    kill_process(first, Signal::KILL).unwrap();
    wait_until("it is gone", || is_gone(first));
    let output = with_status(0, home.run_on(&server, "echo ran"));
    assert_eq!(text(&output.stderr), "");
    assert_ne!(home.daemon().unwrap(), first);
}

#[test]
fn a_daemon_whose_sockets_file_was_removed_listens_again() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let daemon = home.daemon().unwrap();
    fs::remove_file(home.socket()).unwrap();
    assert_status(&home.run_on(&server, "exit 3"), 3);
    assert_eq!(home.daemon(), Some(daemon));
    assert_eq!(server.authentications(), 1);
}

/// A log-out removes the directory under a daemon that goes on.
#[test]
fn a_daemon_that_has_lost_its_place_ends_and_leaves_the_next_one_its_sockets() {
    let (server, home) = (server(), Home::new());
    let command = Waiting::start(&home, &server);
    let first = home.daemon().unwrap();
    let metrics = home.socket().with_file_name("metrics.sock");
    for file in [
        home.socket().with_file_name("daemon.lock"),
        home.socket(),
        metrics.clone(),
    ] {
        fs::remove_file(file).unwrap();
    }
    assert_status(&home.run_on(&server, "exit 3"), 3);
    let second = home.daemon().unwrap();
    assert_ne!(second, first);
    // Once what runs there has ended.
    let (status, _) = command.release();
    assert_eq!(status, Some(11));
    wait_until("the first has ended", || is_gone(first));
    assert_eq!(home.daemon(), Some(second));
    assert!(metrics.exists());
    assert_status(&home.run_on(&server, "exit 4"), 4);
}

#[test]
fn a_daemon_that_cannot_be_reached_is_named() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let daemon = home.stop_answering();
    fs::remove_file(home.socket()).unwrap();
    let output = with_status(255, home.run_on(&server, "true"));
    let says = format!("`kill {}` ends it", daemon.as_raw_pid());
    assert!(text(&output.stderr).contains(&says), "{output:?}");
    kill_process(daemon, Signal::KILL).unwrap();
}

/// One that is killed may lose its socket long before its lock, as on a busy machine.
#[test]
fn a_daemon_that_takes_long_to_die_is_waited_for() {
    let (server, home) = (server(), Home::new());
    fs::create_dir_all(home.socket().parent().unwrap()).unwrap();
    leave_socket(&home.socket());
    let lock = fs::File::create(home.socket().with_file_name("daemon.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut ssh = home
        .ssh(&server)
        .args([server.alias(), "exit 3"])
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(ssh.try_wait().unwrap(), None);
    drop(lock);
    assert_eq!(end_of(&mut ssh, "ssh").code(), Some(3));
}

#[test]
fn a_client_that_is_killed_takes_its_command_with_it() {
    let (server, home) = (server(), Home::new());
    let ended = home.path("ended");
    let begun = home.path("begun");
    let command = format!(
        "trap 'touch {}; exit' HUP; touch {}; while :; do sleep 0.01; done",
        ended.display(),
        begun.display()
    );
    // With a terminal, whose hang-up sshd passes on when the session's channel closes.
    let mut child = home
        .ssh(&server)
        .args(["-tt", server.alias(), &command])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the command has begun", || begun.exists());
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    end_of(&mut child, "the client");
    wait_until("the command was hung up", || ended.exists());
    wait_until("the session is gone", || home.sessions() == 0);
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(server.authentications(), 1);
}

#[test]
fn clients_that_start_at_once_share_one_daemon() {
    let (server, home) = (server(), Home::new());
    let children: Vec<_> = (0..8)
        .map(|_| {
            home.ssh(&server)
                .args([server.alias(), "exit 4"])
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(end_of(&mut child, "ssh").code(), Some(4));
    }
    assert_eq!(home.log().matches("listening").count(), 1, "{}", home.log());
}

#[test]
fn stop_lets_running_sessions_end_and_makes_room_at_once() {
    let (server, home) = (server(), Home::new());
    let command = Waiting::start(&home, &server);
    let first = home.daemon().unwrap();
    succeed(home.trunkline().arg("stop"));
    wait_until("it takes no more clients", || home.daemon().is_none());
    // A new daemon serves others while the old one still serves the session.
    assert_status(&home.run_on(&server, "exit 5"), 5);
    assert_ne!(home.daemon().unwrap(), first);
    assert_eq!(command.release(), (Some(11), "opened".into()));
    wait_until("the old daemon has ended", || is_gone(first));
    assert_status(&home.run_on(&server, "exit 6"), 6);
}

/// A copy of the daemon's program, which another process makes: one that is open for writing cannot be run, and programs
/// that other tests start inherit what is open here.
fn copy_of_trunklined(to: &Path) {
    let original = Path::new(program()).with_file_name("trunklined");
    succeed(Command::new("cp").arg(original).arg(to));
}

#[test]
fn a_daemon_whose_program_was_updated_makes_room_and_lets_running_sessions_end() {
    let (server, home) = (server(), Home::new());
    let (installed, update) = (home.path("trunklined"), home.path("trunklined.new"));
    copy_of_trunklined(&installed);
    let on_it = |command: &str| {
        let mut ssh = home.ssh(&server);
        finish(ssh.args([server.alias(), command]).env("TRUNKLINED", &installed))
    };
    assert_status(&on_it("true"), 0);
    let first = home.daemon().unwrap();
    let command = Waiting::start(&home, &server);
    // Removed, it serves on.
    fs::remove_file(&installed).unwrap();
    assert_status(&home.run_on(&server, "exit 4"), 4);
    assert_eq!(home.daemon(), Some(first));
    // As package managers do it.
    copy_of_trunklined(&update);
    fs::rename(&update, &installed).unwrap();
    let output = with_status(5, on_it("exit 5"));
    assert_eq!(text(&output.stderr), "");
    let second = home.daemon().unwrap();
    assert_ne!(second, first);
    assert_eq!(command.release(), (Some(11), "opened".into()));
    wait_until("the old daemon has ended", || is_gone(first));
    assert_status(&on_it("exit 6"), 6);
    assert_eq!(home.daemon(), Some(second));
}

#[test]
fn sigterm_lets_running_sessions_end() {
    let (server, home) = (server(), Home::new());
    let command = Waiting::start(&home, &server);
    let daemon = home.daemon().unwrap();
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("it takes no more clients", || home.daemon().is_none());
    assert_eq!(command.release(), (Some(11), "opened".into()));
    wait_until("it has ended", || is_gone(daemon));
}

#[test]
fn stop_now_ends_sessions_and_says_so_to_their_clients() {
    let (server, home) = (server(), Home::new());
    let command = Waiting::start(&home, &server);
    let daemon = home.daemon().unwrap();
    succeed(home.trunkline().args(["stop", "--now"]));
    let (status, said) = command.errors();
    assert_eq!(status, Some(255));
    assert!(said.contains("may have started"), "{said}");
    wait_until("it has ended", || is_gone(daemon));
    let output = succeed(home.trunkline().arg("stop"));
    assert_eq!(text(&output.stdout), "the daemon is not running\n");
}

/// A daemon of another version: it says which, and answers nothing but a request to stop, at which it leaves its place.
pub(super) fn foreign_daemon(home: &Home, protocol: u32) -> ForeignDaemon {
    fs::create_dir_all(home.trunkline_dir()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(home.trunkline_dir(), mode).unwrap();
    let lock = fs::File::create(home.trunkline_dir().join("daemon.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let (listener, socket) = (UnixListener::bind(home.socket()).unwrap(), home.socket());
    let thread = std::thread::spawn({
        let socket = socket.clone();
        move || {
            let _lock = lock;
            let heard = loop {
                let heard = answer_foreign(&listener.accept().unwrap().0, protocol);
                if heard != Heard::OtherThings {
                    break heard;
                }
            };
            fs::remove_file(socket).unwrap();
            heard == Heard::Stop
        }
    });
    ForeignDaemon { socket, thread }
}

/// A daemon of another version, on a thread.
pub(super) struct ForeignDaemon {
    socket: std::path::PathBuf,
    thread: JoinHandle<bool>,
}

impl ForeignDaemon {
    /// Ends it, and tells whether a client had asked for that.
    pub(super) fn was_stopped(self) -> bool {
        // A client that says nothing; where it was asked to stop, there is nothing to connect to, or its successor.
        let _ = UnixStream::connect(self.socket);
        self.thread.join().unwrap()
    }
}

/// The message of a client of a [`ForeignDaemon`].
#[derive(PartialEq, Eq)]
enum Heard {
    Nothing,
    Stop,
    OtherThings,
}

/// Serves one client of a daemon of another version.
fn answer_foreign(mut client: &UnixStream, protocol: u32) -> Heard {
    let mut heard = Heard::Nothing;
    while let Some(request) = read_frame(&mut client) {
        heard = Heard::OtherThings;
        let answer = match request {
            Request::Hello { .. } => Reply::Welcome {
                protocol,
                program: "0.0.1".into(),
                pid: 1,
                vantage: None,
            },
            Request::Stop { at_once: false } => {
                heard = Heard::Stop;
                Reply::Done
            }
            _ => break,
        };
        write_frame(&mut client, &answer);
        if heard == Heard::Stop {
            break;
        }
    }
    heard
}

fn read_frame(client: &mut &UnixStream) -> Option<Request> {
    let mut len = [0; 4];
    client.read_exact(&mut len).ok()?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    client.read_exact(&mut body).ok()?;
    Some(rmp_serde::from_slice(&body).unwrap())
}

fn write_frame(client: &mut &UnixStream, reply: &Reply) {
    let body = rmp_serde::to_vec_named(reply).unwrap();
    client
        .write_all(&u32::try_from(body.len()).unwrap().to_be_bytes())
        .unwrap();
    client.write_all(&body).unwrap();
}

#[test]
fn a_daemon_of_an_older_protocol_is_asked_to_stop_and_replaced() {
    let (server, home) = (server(), Home::new());
    let old = foreign_daemon(&home, VERSION - 1);
    assert_status(&home.run_on(&server, "exit 8"), 8);
    assert!(old.was_stopped(), "it was not asked to stop");
    assert!(home.daemon().is_some());
}

#[test]
fn a_daemon_of_a_newer_protocol_is_left_alone() {
    let (server, home) = (server(), Home::new());
    let newer = foreign_daemon(&home, VERSION + 1);
    let output = with_status(255, home.run_on(&server, "echo ran"));
    assert_says(&output, "the daemon speaks protocol");
    assert!(!newer.was_stopped(), "it was asked to stop");
}

#[test]
fn thousands_of_connections_that_say_nothing_keep_nobody_from_being_served() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let daemon = home.daemon().unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    // Where the machine allows fewer, as many as leave room for the rest of the test.
    let wanted = limit
        .maximum
        .map_or(10_000, |most| (most.saturating_sub(1000)).min(10_000));
    let before = home.descriptors();
    let silent: Vec<_> = (0..wanted)
        .map(|_| UnixStream::connect(home.socket()).unwrap())
        .collect();
    let output = home.run_on(&server, "echo served");
    assert_status(&output, 0);
    assert_eq!(home.daemon(), Some(daemon));
    drop(silent);
    wait_until("the daemon has let go of them", || {
        home.descriptors().len() <= before.len() + 2
    });
    assert_eq!(server.authentications(), 1);
}

#[test]
fn commands_leave_no_descriptor_behind() {
    let (server, home) = (server(), Home::never_busy());
    assert_status(&home.run_on(&server, "true"), 0);
    // The next command's session is opened ahead in the background, without a descriptor of its own.
    let idle = || wait_until("the session is gone", || home.sessions() == 0);
    idle();
    let before = home.descriptors();
    for _ in 0..100 {
        assert_status(&home.run_on(&server, "true"), 0);
    }
    idle();
    home.wait_for_descriptors(&before);
}

/// Returns the listener of a service manager for the daemon of a home.
fn listen_for(home: &Home) -> UnixListener {
    let directory = home.trunkline_dir();
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    UnixListener::bind(home.socket()).unwrap()
}

/// Starts a daemon as a service manager does.
fn activate(home: &Home, trunklined: &Path, listening: &UnixListener) -> Child {
    let mut daemon = home.command("sh");
    daemon
        .args([
            "-c",
            "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --foreground",
        ])
        .arg(trunklined)
        .stdin(std::os::fd::OwnedFd::from(listening.try_clone().unwrap()))
        .stderr(Stdio::piped());
    daemon.spawn().unwrap()
}

#[test]
fn a_daemon_serves_the_socket_that_a_service_manager_hands_over() {
    let server = server();
    let home = Home::new();
    let listening = listen_for(&home);
    let trunklined = Path::new(program()).with_file_name("trunklined");
    let mut daemon = activate(&home, &trunklined, &listening);
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(
        home.daemon().unwrap().as_raw_nonzero().get().cast_unsigned(),
        std::process::id(),
        "who listened first"
    );
    succeed(home.trunkline().args(["stop", "--now"]));
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    assert!(home.socket().exists(), "it is the service manager's");
    drop(listening);
    fs::remove_file(home.socket()).unwrap();
    let elsewhere = UnixListener::bind(home.path("elsewhere")).unwrap();
    let refused = activate(&home, &trunklined, &elsewhere)
        .wait_with_output()
        .unwrap();
    assert_status(&refused, 255);
    assert_says(&refused, "set ListenStream");
}

#[test]
fn an_updated_daemon_on_a_service_managers_socket_serves_until_its_work_is_done() {
    let (server, home) = (server(), Home::new());
    let (installed, update) = (home.path("trunklined"), home.path("trunklined.new"));
    copy_of_trunklined(&installed);
    let listening = listen_for(&home);
    let mut first = activate(&home, &installed, &listening);
    let command = Waiting::start(&home, &server);
    copy_of_trunklined(&update);
    fs::rename(&update, &installed).unwrap();
    // Nobody would answer until the session has ended.
    assert_status(&home.run_on(&server, "exit 4"), 4);
    assert_eq!(first.try_wait().unwrap(), None);
    assert_eq!(command.release(), (Some(11), "opened".into()));
    let ask = || {
        let mut ssh = home.ssh(&server);
        ssh.args([server.alias(), "exit 5"]).spawn().unwrap()
    };
    let mut next = ask();
    wait_until("the old daemon has ended", || {
        // It may have come before the session's end was seen.
        if next.try_wait().unwrap().is_some() {
            next = ask();
        }
        first.try_wait().unwrap().is_some()
    });
    assert_eq!(first.wait().unwrap().code(), Some(0));
    let mut second = activate(&home, &installed, &listening);
    assert_status(&next.wait_with_output().unwrap(), 5);
    succeed(home.trunkline().args(["stop", "--now"]));
    assert_eq!(second.wait().unwrap().code(), Some(0));
}

#[test]
fn each_connection_has_a_line_in_the_log_when_it_is_over() {
    let server = server();
    let home = Home::new();
    assert_status(&home.run_on(&server, "true"), 0);
    assert_status(&home.run_on(&server, "true"), 0);
    succeed(home.trunkline().args(["close", "--all"]));
    wait_until("the line", || home.log().contains(" ended after "));
    let log = home.log();
    let line = log.lines().find(|line| line.contains(" ended after ")).unwrap();
    for part in [
        "INFO",
        server.user(),
        &format!(":{}", server.port()),
        ", 2 sessions,",
        "host=",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let mut nobody = home.ssh_with(&server.ssh_config());
    fail(255, nobody.args(["-p", "1", server.alias(), "true"]));
    assert!(home.log().contains("no connection to "), "{}", home.log());
}

#[test]
fn a_limit_of_the_first_shell_on_the_size_of_files_does_not_end_the_daemon() {
    let (server, home) = (server(), Home::new());
    let script = format!("ulimit -f 1; \"$T\" ssh -F \"$F\" {} echo ran", server.alias());
    let output = succeed(&mut home.shell(&server, &script));
    assert_eq!(text(&output.stdout), "ran\n");
    let daemon = home.daemon();
    assert!(daemon.is_some());
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(home.daemon(), daemon);
}

#[test]
fn a_client_with_forwardings_alone_is_told_that_they_end_with_the_daemon() {
    let (server, home) = (server(), Home::new());
    let port = trunkline_testkit::free_port();
    let mut forwarding = home.ssh(&server);
    forwarding.args([
        "-N",
        "-L",
        &format!("127.0.0.1:{port}:127.0.0.1:{}", server.port()),
        server.alias(),
    ]);
    let child = forwarding.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    kill_process(home.daemon().unwrap(), Signal::KILL).unwrap();
    let output = with_status(255, child.wait_with_output().unwrap());
    assert_eq!(
        text(&output.stderr),
        "trunkline: the daemon ended, and with it what was forwarded here\n"
    );
}
