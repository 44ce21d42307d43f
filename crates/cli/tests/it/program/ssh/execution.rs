//! May it have run? What the engine says of a failure comes through the daemon, and without one, as it is.

use std::net::SocketAddr;
use std::process::Output;

use trunkline_testkit::HostEntry;
use trunkline_testkit::hostile::{RawServer, Wire};

use crate::home::{
    Home, assert_says, assert_status, describe, fail, finish, server, succeed, text, with_status,
};

/// Kind, execution and error of each host.
fn failures(output: &Output) -> Vec<(String, String, String, String)> {
    let mut told: Vec<_> = text(&output.stdout)
        .lines()
        .map(|line| {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            let word = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            (word("host"), word("kind"), word("execution"), word("error"))
        })
        .collect();
    told.sort();
    told
}

#[test]
fn a_failure_means_the_same_with_the_daemon_and_without() {
    let (good, jump, stranger, home) = (server(), server(), server(), Home::new());
    // sshd.c's words where PerSourcePenalties hold.
    let punishing = RawServer::from_connect(|mut wire: Wire| async move {
        wire.send_raw(b"Not allowed at this time\r\n").await?;
        wire.finish().await?;
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    // Its command has begun, as far as anybody can tell, and it is gone.
    let leaving = RawServer::script(|mut wire: Wire| async move {
        wire.authenticate().await?;
        wire.open_session().await?;
        wire.finish().await?;
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let entries = [
        good.host_entry("good"),
        good.host_entry("refused").with_address(nowhere),
        HostEntry {
            identities: stranger.host_entry("x").identities,
            ..good.host_entry("denied")
        },
        // The system's ssh says 255 of whatever failed: nobody knows.
        HostEntry {
            identities: stranger.host_entry("x").identities,
            ..good.host_entry("stock").with_line("VerifyHostKeyDNS yes")
        },
        HostEntry {
            known_hosts: stranger.known_hosts(),
            ..good.host_entry("unknown")
        },
        jump.host_entry("jump"),
        good.host_entry("behind")
            .with_address(nowhere)
            .with_line("ProxyJump jump"),
        punishing.host_entry("punishing"),
        leaving.host_entry("leaving"),
    ];
    let config = home.config(entries);
    let expected = [
        ("behind", "limit", "did not start"),
        ("denied", "authentication", "did not start"),
        ("good", "exited", "finished"),
        ("leaving", "network", "may have started"),
        ("punishing", "network", "did not start"),
        ("refused", "network", "did not start"),
        ("stock", "network", "may have started"),
        ("unknown", "host_key", "did not start"),
    ];
    for daemon in [true, false] {
        let mut run = home.trunkline();
        if !daemon {
            run.arg("--no-daemon");
        }
        run.args(["run", "-F"]).arg(&config).arg("--json");
        run.args([
            "-H",
            "good,refused,denied,stock,unknown,behind,punishing,leaving",
            "--",
            "exit 3",
        ]);
        let output = fail(1, &mut run);
        let told = failures(&output);
        let words: Vec<_> = told
            .iter()
            .map(|(host, kind, execution, _)| (host.as_str(), kind.as_str(), execution.as_str()))
            .collect();
        assert_eq!(words, expected, "daemon: {daemon}; {}", describe(&output));
        let (.., why) = told.iter().find(|(host, ..)| host == "punishing").unwrap();
        assert!(
            why.ends_with("the server said: Not allowed at this time"),
            "{why}"
        );
    }
}

#[test]
fn a_host_whose_time_is_up_says_whether_its_command_had_left() {
    let (good, home) = (server(), Home::new());
    let silent = RawServer::from_connect(|mut wire: Wire| async move {
        wire.until_closed().await;
        Ok(())
    })
    .unwrap();
    let config = home.config([good.host_entry("good"), silent.host_entry("silent")]);
    let run = |options: &[&str], command: &str| {
        let mut run = home.trunkline();
        run.args(["run", "--json", "-F"]).arg(&config).args(options);
        finish(run.args(["--", command]))
    };
    // The connection is there, so that the command leaves at once.
    assert_status(&run(&["-H", "good"], "true"), 0);
    let output = run(&["-H", "good,silent", "-t", "2"], "sleep 100");
    let words: Vec<_> = failures(&output)
        .into_iter()
        .map(|(host, kind, execution, _)| (host, kind, execution))
        .collect();
    let row = |host: &str, execution: &str| (host.to_owned(), "timeout".to_owned(), execution.to_owned());
    let expected = [row("good", "may have started"), row("silent", "did not start")];
    assert_eq!(words, expected, "{}", describe(&output));
}

#[test]
fn session_type_says_what_a_command_is() {
    let (server, home) = (server(), Home::new());
    let config = home.path("typed");
    let own = std::fs::read_to_string(server.ssh_config()).unwrap();
    for (lines, command) in [
        ("SessionType none", "echo ran"),
        ("SessionType none\nRemoteCommand echo ran", ""),
        ("SessionType subsystem", "no-such-subsystem"),
        ("SessionType subsystem\nRemoteCommand no-such-subsystem", ""),
        ("SessionType default", "echo ran"),
    ] {
        std::fs::write(&config, format!("{lines}\n{own}")).unwrap();
        let outcome = |program: &[&std::ffi::OsStr]| {
            let mut ssh = home.command("timeout");
            // Where nothing runs it stays.
            ssh.arg("5")
                .args(program)
                .arg("-F")
                .arg(&config)
                .arg(server.alias());
            if !command.is_empty() {
                ssh.arg(command);
            }
            let output = finish(ssh.stdin(std::process::Stdio::null()));
            let said = text(&output.stderr).replace('\r', "");
            (output.status.code(), text(&output.stdout), said)
        };
        let expected = outcome(&["ssh".as_ref()]);
        assert_eq!(
            outcome(&[crate::home::program().as_ref(), "ssh".as_ref()]),
            expected,
            "{lines}"
        );
    }
}

#[test]
fn a_configuration_from_a_pipe_is_not_taken_for_an_empty_one() {
    let (server, home) = (server(), Home::new());
    let config = std::fs::read(server.ssh_config()).unwrap();
    let with = |arguments: &[&str]| {
        let mut command = home.trunkline();
        crate::home::finish_with(command.args(arguments), &config)
    };
    // ssh reads it, and so ssh does it.
    let output = with_status(0, with(&["ssh", "-F", "/dev/stdin", server.alias(), "echo in"]));
    assert_eq!(text(&output.stdout), "in\n");
    for line in [
        &["run", "-F", "/dev/stdin", "-H", server.alias(), "true"][..],
        &[
            "cp",
            "-F",
            "/dev/stdin",
            "/dev/null",
            &format!("{}:", server.alias()),
        ],
    ] {
        let output = with(line);
        assert!(!output.status.success());
        assert_says(&output, "can be read only once");
    }
    // Nothing is in it, however often it is read.
    succeed(
        home.trunkline()
            .args(["ssh", "-G", "-F", "/dev/null", "anywhere"]),
    );
}
