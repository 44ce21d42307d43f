//! What is said of forwardings that fail, beside what the installed ssh says of the same.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};

use trunkline_testkit::{Sshd, leave_socket};

use crate::home::{Home, assert_status, finish, server, text};

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
    let said = arguments(&mut home.ssh(&server), &server, &["-L", &forward]);
    assert_status(&said, 0);
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
