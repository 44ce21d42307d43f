//! Sessions of stock ssh.

use std::io::{Read, Write};
use std::process::Stdio;
use std::thread;

use rustix::process::{Signal, kill_process};
use trunkline_testkit::{Relay, noise, write_ssh_config};

use super::stock::Stock;
use crate::home::{
    assert_prints, assert_says, assert_status, end_of, finish, finish_with, server, sshd, succeed, text,
    wait_until, with_status,
};

#[test]
fn a_command_has_its_status_and_output_over_the_daemons_connection() {
    let stock = Stock::new(server());
    for status in [0, 1, 7, 255] {
        assert_status(&stock.run(format!("exit {status}")), status);
    }
    let output = with_status(7, stock.run("echo out; echo err >&2; exit 7"));
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("out\n".into(), "err\n".into())
    );
    stock.assert_logins(1);
}

#[test]
fn a_command_that_a_signal_ends_makes_ssh_exit_as_over_its_own_connection() {
    let stock = Stock::new(server());
    let own = finish(stock.server.ssh().arg(stock.server.alias()).arg("kill -TERM $$"));
    let shared = stock.run("kill -TERM $$");
    assert_eq!(shared.status.code(), own.status.code());
}

#[test]
fn a_gigabyte_passes_both_ways_unchanged() {
    const BLOCKS: u64 = 1024;
    let stock = Stock::new(server());
    let mut child = stock
        .ssh()
        .args([stock.server.alias(), "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut block = noise(1 << 20, 1);
            for nth in 0..BLOCKS {
                block[..8].copy_from_slice(&nth.to_le_bytes());
                input.write_all(&block).unwrap();
            }
        });
        let (mut expected, mut block) = (noise(1 << 20, 1), vec![0; 1 << 20]);
        for nth in 0..BLOCKS {
            expected[..8].copy_from_slice(&nth.to_le_bytes());
            output.read_exact(&mut block).unwrap();
            assert!(
                block == expected,
                "what cat was given comes back, at block {nth} too"
            );
        }
        assert_eq!(output.read(&mut block).unwrap(), 0, "and nothing else");
    });
    assert_eq!(end_of(&mut child, "ssh").code(), Some(0));
    stock.assert_logins(1);
}

#[test]
fn an_empty_command_is_the_login_shell_and_reads_its_input() {
    let stock = Stock::new(server());
    let output = with_status(
        4,
        finish_with(
            stock.ssh().args(["-T", stock.server.alias()]),
            b"echo $((6*7)); exit 4\n",
        ),
    );
    assert_prints(&output, "42");
}

#[test]
fn variables_travel_by_send_env_and_set_env() {
    let stock = Stock::new(sshd().config("AcceptEnv FIRST SECOND").start().unwrap());
    let output = finish(
        stock
            .ssh()
            .args(["-o", "SendEnv=FIRST", "-o", "SetEnv=SECOND=b=c"])
            .env("FIRST", "a\u{e4}")
            .args([stock.server.alias(), "echo $FIRST $SECOND"]),
    );
    assert_eq!(text(&output.stdout), "a\u{e4} b=c\n");
    stock.assert_logins(1);
}

#[test]
fn more_clients_at_once_than_a_connection_may_have_sessions_all_succeed() {
    let stock = Stock::new(sshd().config("MaxSessions 10").start().unwrap());
    stock.warm();
    let gate = stock.home.path("gate");
    let wait = format!(
        "while ! test -e {}; do sleep 0.01; done; echo done",
        gate.display()
    );
    thread::scope(|scope| {
        let clients: Vec<_> = (0..40).map(|_| scope.spawn(|| stock.run(&wait))).collect();
        wait_until("all of them run", || {
            stock.home.sessions() == 40 && stock.server.authentications() >= 4
        });
        std::fs::write(&gate, "").unwrap();
        for client in clients {
            let output = client.join().unwrap();
            assert_status(&output, 0);
            assert_eq!(
                (text(&output.stdout), text(&output.stderr)),
                ("done\n".into(), String::new())
            );
        }
    });
    assert!(
        stock.server.authentications() <= 10,
        "nobody made a connection of their own"
    );
}

#[test]
fn a_client_that_is_interrupted_takes_its_command_with_it() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let stock = Stock::new(server());
        stock.warm();
        let before = stock.home.descriptors();
        let mut ssh = stock.ssh();
        ssh.args([stock.server.alias(), "echo $$; exec sleep 1000"]);
        let mut child = ssh.stdout(Stdio::piped()).spawn().unwrap();
        let mut pid = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.stdout.take().unwrap()),
            &mut pid,
        )
        .unwrap();
        kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        end_of(&mut child, "ssh");
        // sshd closes the command's pipes; one that does not write does not notice, but its session is gone.
        wait_until("the session is gone", || stock.home.sessions() == 0);
        stock.home.wait_for_descriptors(&before);
        stock.warm();
        stock.assert_logins(1);
    }
}

#[test]
fn ssh_says_so_and_exits_when_the_daemon_is_killed_under_it() {
    let stock = Stock::new(server());
    let mut ssh = stock.ssh();
    ssh.args(["-v", stock.server.alias(), "echo begun; exec sleep 1000"]);
    let mut child = ssh.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    kill_process(stock.home.daemon().unwrap(), Signal::KILL).unwrap();
    let status = end_of(&mut child, "ssh");
    assert_eq!(status.code(), Some(255));
    // The next one finds a socket that nobody serves, and makes its own connection; asking again brings the socket back.
    let output = stock.run("echo alone");
    assert_status(&output, 0);
    let logins = stock.server.authentications();
    stock.listen().unwrap();
    stock.warm();
    stock.warm();
    stock.assert_logins(logins + 1);
}

#[test]
fn a_connection_that_is_lost_ends_the_session_and_says_why() {
    let server = server();
    let relay = Relay::start(server.addr()).unwrap();
    let config = server.ssh_config_via(server.alias(), relay.addr()).unwrap();
    let stock = Stock::with_config(server, config);
    let mut ssh = stock.ssh();
    ssh.args([stock.server.alias(), "echo begun; exec sleep 1000"]);
    let mut child = ssh.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    relay.reset();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(end_of(&mut child, "ssh").code(), Some(255));
    assert!(said.contains("may have started"), "{said}");
    stock.warm();
    stock.assert_logins(2);
}

#[test]
fn a_host_that_cannot_be_reached_is_left_to_ssh_itself() {
    let mut server = server();
    let config = server.ssh_config();
    server.stop();
    let stock = Stock::with_config(server, config);
    let output = with_status(255, stock.run("true"));
    assert_says(&output, "Connection refused");
    // From now on nobody is kept waiting for what did not work a moment ago.
    let failure = stock.listen().unwrap_err();
    assert!(failure.message.contains("refused"), "{}", failure.message);
}

#[test]
fn a_host_that_wants_a_password_is_left_to_ssh_itself_which_asks() {
    let server = sshd()
        .password("open sesame")
        .authentication_methods("password")
        .start()
        .unwrap();
    let stock = Stock::new(server);
    let mut ssh = stock.ssh();
    ssh.args(["-o", "BatchMode=no", stock.server.alias(), "echo in"]);
    if let Some(askpass) = stock.server.askpass() {
        ssh.env("SSH_ASKPASS", askpass)
            .env("SSH_ASKPASS_REQUIRE", "force");
    }
    let output = succeed(&mut ssh);
    assert_eq!(text(&output.stdout), "in\n");
}

#[test]
fn an_unknown_host_key_is_left_to_ssh_itself() {
    let server = server();
    let entry = server.host_entry(server.alias());
    let mut unknown = entry.clone();
    unknown.known_hosts = "/dev/null".into();
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config");
    write_ssh_config(&config, [unknown]).unwrap();
    let stock = Stock::with_config(server, config);
    let output = with_status(255, stock.run("true"));
    assert_says(&output, "Host key verification failed");
}

#[test]
fn what_the_connection_does_not_forward_is_left_to_ssh_itself() {
    let stock = Stock::new(server());
    stock.warm();
    for option in ["ForwardAgent=yes", "ForwardX11=yes"] {
        let mut ssh = stock.ssh();
        ssh.args(["-o", option, stock.server.alias(), "echo own"]);
        let output = succeed(ssh.env("SSH_AUTH_SOCK", "/nowhere").env("DISPLAY", ":0"));
        assert_prints(&output, "own");
        assert_says(&output, "forward");
    }
    stock.assert_logins(3);
}

#[test]
fn a_client_leaves_no_descriptor_behind() {
    let stock = Stock::new(server());
    stock.warm();
    let before = stock.home.descriptors();
    for _ in 0..5 {
        assert_status(&stock.run("cat"), 0);
    }
    stock.home.wait_for_descriptors(&before);
}
