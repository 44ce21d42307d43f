//! Forwardings beside those of the installed ssh: what is said of those that fail, and how long they carry what they carry.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use trunkline_testkit::{Sshd, leave_socket};

use crate::home::{Home, finish, server, text, wait_until, with_status};
use crate::mux::forwards::{echo, says};

/// The same command line for both.
fn arguments(command: &mut Command, server: &Sshd, options: &[&str]) -> Output {
    finish(command.args(options).args([server.alias(), "true"]))
}

fn stock(home: &Home, server: &Sshd, options: &[&str]) -> Output {
    let mut ssh = home.command("ssh");
    ssh.arg("-F").arg(server.ssh_config());
    arguments(&mut ssh, server, options)
}

/// A port that somebody listens on at this address, and nobody at the other.
fn half_taken(taken: &str, free: &str) -> (TcpListener, u16) {
    loop {
        let listener = TcpListener::bind((taken, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if TcpListener::bind((free, port)).is_ok() {
            return (listener, port);
        }
    }
}

#[test]
fn ssh_and_trunkline_say_the_same_of_forwardings_that_cannot_be_had() {
    let (server, home) = (server(), Home::new());
    let (_held, v4_taken) = half_taken("127.0.0.1", "::1");
    let both = half_taken("127.0.0.1", "::1");
    let _other = TcpListener::bind(("::1", both.1)).unwrap();
    let taken = both.1;
    let (live, stale) = (home.path("live"), home.path("stale"));
    let _live = UnixListener::bind(&live).unwrap();
    leave_socket(&stale);
    let (live, stale) = (live.display().to_string(), stale.display().to_string());
    let fatal = &["-o", "ExitOnForwardFailure=yes"][..];
    let table: [(&[&str], &str, String); 20] = [
        (&[], "-L", format!("{v4_taken}:x:1")),
        (fatal, "-L", format!("{v4_taken}:x:1")),
        (&[], "-D", format!("{v4_taken}")),
        (&[], "-L", format!("{taken}:x:1")),
        (fatal, "-L", format!("{taken}:x:1")),
        (&[], "-D", format!("{taken}")),
        (fatal, "-D", format!("{taken}")),
        (&[], "-L", format!("*:{taken}:x:1")),
        (&["-o", "GatewayPorts=yes"], "-L", format!("{taken}:x:1")),
        (&[], "-L", format!("127.0.0.1:{taken}:x:1")),
        (&[], "-L", format!("192.0.2.1:{taken}:x:1")),
        (&[], "-L", format!("{live}:x:1")),
        (fatal, "-L", format!("{live}:x:1")),
        (&[], "-L", format!("{stale}:x:1")),
        (&["-o", "StreamLocalBindUnlink=yes"], "-L", format!("{stale}:x:1")),
        (
            &[],
            "-L",
            format!("{}:x:1", home.path("missing/socket").display()),
        ),
        (&[], "-R", format!("{taken}:x:1")),
        (fatal, "-R", format!("{taken}:x:1")),
        (&[], "-R", format!("{live}:x:1")),
        (fatal, "-R", format!("{live}:x:1")),
    ];
    for (options, kind, forward) in table {
        let options = [options, &[kind, &forward]].concat();
        let (expected, said) = (stock(&home, &server, &options), {
            arguments(&mut home.ssh(&server), &server, &options)
        });
        let what = format!("{options:?}: {}", text(&said.stderr));
        assert_eq!(said.status.code(), expected.status.code(), "{what}");
        let (expected, said) = (text(&expected.stderr), text(&said.stderr));
        let mut said = said.lines();
        // Each of ssh's lines, in its order; advice may follow in the same line.
        for line in expected.lines() {
            assert_eq!(
                said.next().map(|said| said.starts_with(line)),
                Some(true),
                "{line:?}; {what}"
            );
        }
        // With ExitOnForwardFailure it also says, in its own words, why it ends.
        let more = usize::from(options.contains(&"ExitOnForwardFailure=yes") && !expected.is_empty());
        assert!(said.count() <= more, "{what}");
    }
}

#[test]
fn another_program_on_the_ipv6_half_of_a_port_is_told() {
    let (server, home) = (server(), Home::new());
    let (_held, port) = half_taken("::1", "127.0.0.1");
    // ssh says so with -v only, and whoever connects to "localhost" reaches the other program.
    let forward = format!("{port}:x:1");
    let said = with_status(0, arguments(&mut home.ssh(&server), &server, &["-L", &forward]));
    assert_eq!(
        text(&said.stderr),
        format!("bind [::1]:{port}: Address already in use\n")
    );
}

#[test]
fn a_port_that_the_server_chose_is_told_in_sshs_words() {
    let (server, home) = (server(), Home::new());
    for forward in ["0:db:5432", "0"] {
        let digits_removed = |output: &Output| {
            let said = text(&output.stderr);
            let port = said.split(' ').nth(2).unwrap_or_default().to_owned();
            assert!(port.parse::<u16>().is_ok(), "{said}");
            said.replacen(&port, "PORT", 1).replace('\r', "")
        };
        let expected = digits_removed(&stock(&home, &server, &["-R", forward]));
        let said = digits_removed(&arguments(&mut home.ssh(&server), &server, &["-R", forward]));
        assert_eq!(said, expected);
    }
}

/// The installed ssh, and this one with and without the daemon.
fn all(home: &Home, server: &Sshd) -> [Command; 3] {
    let mut stock = home.command("ssh");
    stock.arg("-F").arg(server.ssh_config());
    let mut private = home.trunkline();
    private
        .args(["--no-daemon", "ssh", "-F"])
        .arg(server.ssh_config());
    [stock, home.ssh(server), private]
}

/// A connection that is carried from this path, once somebody listens there.
fn connect_through(path: &Path) -> UnixStream {
    wait_until("the forwarding listens", || UnixStream::connect(path).is_ok());
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(says(&stream, "first"));
    stream
}

#[test]
fn what_a_killed_client_carries_ends_with_it() {
    let (server, home, port) = (server(), Home::new(), echo());
    let (path, bystander) = (home.path("forward"), home.path("bystander"));
    let forward = |path: &Path| format!("{}:127.0.0.1:{port}", path.display());
    let mut other = home
        .ssh(&server)
        .args(["-N", "-L", &forward(&bystander), server.alias()])
        .spawn()
        .unwrap();
    let kept = connect_through(&bystander);
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        for what in [&["-N", server.alias()][..], &[server.alias(), "sleep 600"]] {
            for mut ssh in all(&home, &server) {
                ssh.args(["-L", &forward(&path)]).args(what);
                let mut child = ssh.stdin(Stdio::null()).spawn().unwrap();
                let mut stream = connect_through(&path);
                kill_process(Pid::from_child(&child), signal).unwrap();
                child.wait().unwrap();
                let end = stream.read(&mut [0; 8]);
                let has_ended = match &end {
                    Ok(read) => *read == 0,
                    Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
                };
                assert!(has_ended, "{signal:?}, {ssh:?}: {end:?}");
                let _ = std::fs::remove_file(&path);
            }
        }
    }
    assert!(says(&kept, "last"), "another client's stays");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn what_is_carried_outlives_its_session() {
    let (server, home, port) = (server(), Home::new(), echo());
    let path = home.path("forward");
    let forward = format!("{}:127.0.0.1:{port}", path.display());
    for mut ssh in all(&home, &server) {
        ssh.args(["-L", &forward, server.alias(), "read line; echo over"]);
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ssh.spawn().unwrap();
        let stream = connect_through(&path);
        drop(child.stdin.take());
        let mut said = [0; 5];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"over\n");
        std::thread::sleep(Duration::from_millis(500));
        assert!(says(&stream, "afterwards"), "{ssh:?}");
        drop(stream);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let _ = std::fs::remove_file(&path);
    }
}
