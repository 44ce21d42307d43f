//! ssh(1)'s timing, compared with `trunkline ssh`: when typed bytes leave, and when silent channels are closed. A
//! version of ssh that does not know the directives refuses them, for both.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::home::{Home, finish, sshd, text, wait_until};
use crate::tty::Terminal;

/// ssh, and then trunkline.
fn each(home: &Home, config: &Path) -> [Command; 2] {
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(config);
    [ssh, home.ssh_with(config)]
}

/// Somebody on the way to a server, who sees how much passes towards it at a time.
struct Observer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Observer {
    fn watch(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<usize>>>::default();
        let record = seen.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let (up, down) = ((client.try_clone(), server.try_clone()), (server, client));
                let record = record.clone();
                thread::spawn(move || pass(up.0.unwrap(), up.1.unwrap(), |n| lock(&record).push(n)));
                thread::spawn(move || pass(down.0, down.1, |_| {}));
            }
        });
        Self { address, seen }
    }

    /// The sizes of what has passed from the `from`th on.
    fn sizes_from(&self, from: usize) -> Vec<usize> {
        lock(&self.seen)[from..].to_vec()
    }
}

fn lock(seen: &Mutex<Vec<usize>>) -> std::sync::MutexGuard<'_, Vec<usize>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass(mut from: TcpStream, mut to: TcpStream, passed: impl Fn(usize)) {
    from.set_nodelay(true).unwrap();
    let mut bytes = [0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        passed(n);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns whether this ssh, with this server, hides keystrokes.
fn hides_keystrokes(home: &Home) -> bool {
    let resolved = finish(home.command("ssh").args(["-G", "host"]));
    text(&resolved.stdout).contains("obscurekeystroketiming yes")
}

/// Types a key into a session, and returns the sizes of what passed for it: all until it was shown, and so much as `enough`
/// says.
fn type_key(observer: &Observer, mut command: Command, options: &[&str], enough: usize) -> Vec<usize> {
    command.args(options);
    command.args([
        "-tt",
        "box",
        "stty -echo -icanon min 1; echo ready; dd bs=1 count=1 2>/dev/null; echo shown; cat",
    ]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("ready");
    let from = observer.sizes_from(0).len();
    terminal.send("k");
    terminal.expect("shown");
    wait_until("enough has passed", || observer.sizes_from(from).len() >= enough);
    let seen = observer.sizes_from(from);
    terminal.send("\r~.");
    terminal.end();
    seen
}

#[test]
fn chaff_that_looks_like_a_keystroke_follows_one_as_with_ssh() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let observer = Observer::watch(server.addr());
    let config = server.ssh_config_via("box", observer.address).unwrap();
    let warm = finish(home.ssh_with(&config).args(["box", "true"]));
    assert!(warm.status.success(), "{warm:?}");
    let hides = hides_keystrokes(&home);
    let enough = if hides { 20 } else { 1 };
    for command in each(&home, &config) {
        let shown = format!("{command:?}");
        let seen = type_key(&observer, command, &[], enough);
        let alike = seen.iter().filter(|len| **len == seen[0]).count();
        // The session's own messages may be among them.
        assert!(alike >= enough.min(15), "{shown}: {seen:?}");
    }
    if !hides {
        return;
    }
    for command in each(&home, &config) {
        let shown = format!("{command:?}");
        let seen = type_key(&observer, command, &["-oObscureKeystrokeTiming=no"], 1);
        assert!(seen.len() <= 2, "{shown}: {seen:?}");
    }
}

#[test]
fn a_session_without_a_terminal_has_no_chaff() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    let observer = Observer::watch(server.addr());
    let config = server.ssh_config_via("box", observer.address).unwrap();
    let warm = finish(home.ssh_with(&config).args(["box", "true"]));
    assert!(warm.status.success(), "{warm:?}");
    let counts = each(&home, &config).map(|mut command| {
        let from = observer.sizes_from(0).len();
        // Much longer than an interval.
        let output = finish(command.args(["box", "cat; sleep 1"]));
        assert!(output.status.success(), "{output:?}");
        observer.sizes_from(from).len()
    });
    assert!(counts.iter().all(|count| *count < 30), "{counts:?}");
}

#[test]
fn silent_channels_are_closed_as_by_ssh() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    // Long enough for the first line on a busy machine, where all of them wait at once.
    let all = ["session=4", "global=4", "*=4", "direct-tcpip=1 session=4"];
    thread::scope(|scope| {
        let waiting = all.map(|timeouts| {
            let option = format!("-oChannelTimeout={timeouts}");
            let commands = each(&home, &server.ssh_config());
            commands.map(|mut command| {
                command.args([&option, server.alias(), "echo begun; sleep 100; echo done"]);
                scope.spawn(move || finish(&mut command))
            })
        });
        for (timeouts, commands) in all.into_iter().zip(waiting) {
            let ended = commands.map(|command| {
                let output = command.join().unwrap();
                (output.status.code(), text(&output.stdout))
            });
            assert_eq!(ended[0], ended[1], "{timeouts}");
            assert_eq!(ended[0].0, Some(255));
        }
    });
}

#[test]
fn other_channels_stay_open_as_with_ssh() {
    let (server, home) = (sshd().start().unwrap(), Home::new());
    for (timeouts, script) in [("direct-tcpip=1", "sleep 1.5; echo done"), ("none", "echo done")] {
        let option = format!("-oChannelTimeout={timeouts}");
        let ended = each(&home, &server.ssh_config()).map(|mut command| {
            let output = finish(command.args([&option, server.alias(), script]));
            (output.status.code(), text(&output.stdout))
        });
        assert_eq!(ended[0], ended[1], "{timeouts}");
    }
}
