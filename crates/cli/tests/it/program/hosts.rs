//! `ls`, `check`, `close`, `warm`, `explain`.

use std::process::Command;

use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{Home, assert_status, describe, finish, server, text, wait_until};
use crate::tty::Terminal;

/// A command about the server's host.
fn about(home: &Home, server: &Sshd, words: &[&str]) -> Command {
    let mut command = home.trunkline();
    command
        .arg(words[0])
        .arg("-F")
        .arg(server.ssh_config())
        .args(&words[1..])
        .arg(server.alias());
    command
}

#[test]
fn ls_lists_connections_for_people_and_programs() {
    let (server, home) = (server(), Home::new());
    assert_eq!(
        text(&finish(home.trunkline().arg("ls")).stdout),
        "no connections\n"
    );
    assert!(home.daemon().is_none(), "looking starts no daemon");
    assert_eq!(home.ls(), serde_json::json!([]));
    assert_status(&home.on(&server, "true"), 0);
    let hosts = home.ls();
    assert_eq!(hosts[0]["name"], server.alias());
    assert_eq!(
        hosts[0]["address"],
        format!("{}@127.0.0.1:{}", server.user(), server.port())
    );
    assert_eq!(hosts[0]["transport"], "native");
    assert_eq!(hosts[0]["pinned"], false);
    let connection = &hosts[0]["connections"][0];
    assert_eq!(connection["ready"], true);
    assert!(
        connection["server"]
            .as_str()
            .unwrap()
            .starts_with("SSH-2.0-OpenSSH"),
        "{hosts}"
    );
    assert!(connection["received"].as_u64().unwrap() > 0);
    let table = text(&finish(home.trunkline().arg("ls")).stdout);
    assert!(
        table.contains("HOST") && table.contains(server.alias()) && table.contains("warm"),
        "{table}"
    );
}

#[test]
fn tables_are_no_wider_than_the_terminal() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.on(&server, "true"), 0);
    let whole = text(&finish(home.trunkline().arg("ls")).stdout);
    assert!(whole.lines().any(|line| line.chars().count() > 60), "{whole}");
    let program = home.trunkline();
    // The terminal's size is set before the program starts.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "stty cols 60; \"$0\" ls; echo end-of-table"])
        .arg(program.get_program());
    for (name, value) in program
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)))
    {
        shell.env(name, value);
    }
    let mut terminal = Terminal::start(&shell);
    let shown = terminal.expect("end-of-table");
    assert!(terminal.end().success());
    assert!(shown.contains("HOST") && shown.contains("warm"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
}

#[test]
fn check_tells_a_live_connection_from_none_and_from_a_dead_one() {
    let (server, home) = (server(), Home::new());
    let none = finish(&mut about(&home, &server, &["check"]));
    assert_status(&none, 255);
    assert!(
        text(&none.stderr).contains("no connection: the daemon is not running"),
        "{}",
        describe(&none)
    );
    assert_status(&home.on(&server, "true"), 0);
    let alive = finish(&mut about(&home, &server, &["check"]));
    assert_status(&alive, 0);
    assert!(
        text(&alive.stdout).starts_with("testbed: alive, round trip "),
        "{}",
        describe(&alive)
    );
    server.kill_connections();
    wait_until("the loss is noticed", || {
        home.ls()
            .as_array()
            .unwrap()
            .iter()
            .all(|host| host["connections"] == serde_json::json!([]))
    });
    assert_status(&finish(&mut about(&home, &server, &["check"])), 255);
    // The next command has a new connection.
    assert_status(&home.on(&server, "true"), 0);
    assert_eq!(server.authentications(), 2);
}

#[test]
fn close_lets_sessions_end_unless_told_otherwise() {
    let (server, home) = (server(), Home::new());
    let begun = home.path("begun");
    let start = || {
        let _ = std::fs::remove_file(&begun);
        let (reader, writer) = std::io::pipe().unwrap();
        let command = format!("touch {}; cat; exit 3", begun.display());
        let child = home
            .ssh(&server)
            .args([server.alias(), &command])
            .stdin(reader)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the command has begun", || begun.exists());
        (child, writer)
    };
    let (mut child, input) = start();
    let output = finish(&mut about(&home, &server, &["close"]));
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "closed 1 connection\n");
    // New commands get a new connection, the old session its end.
    assert_status(&home.on(&server, "true"), 0);
    assert_eq!(server.authentications(), 2);
    drop(input);
    assert_eq!(crate::home::end_of(&mut child, "ssh").code(), Some(3));

    let (child, _input) = start();
    assert_status(&finish(&mut about(&home, &server, &["close", "--now"])), 0);
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 255);
    assert!(
        text(&output.stderr).contains("may have started"),
        "{}",
        describe(&output)
    );
    // Closing what is not there.
    wait_until("all are closed", || {
        !finish(&mut about(&home, &server, &["close"])).status.success()
    });
    assert_status(&finish(home.trunkline().args(["close", "--all"])), 0);
}

#[test]
fn a_pinned_connection_outlives_the_idle_timeout() {
    let (pinned, other, home) = (server(), server(), Home::new());
    home.settings("idle_timeout = 1\n");
    let output = finish(&mut about(&home, &pinned, &["warm", "--pin"]));
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "testbed: connected, kept until closed\n");
    // A connection that is not pinned shows when the timeout has passed.
    assert_status(&finish(&mut about(&home, &other, &["warm"])), 0);
    let has = |server: &Sshd| {
        let address = format!("{}@127.0.0.1:{}", server.user(), server.port());
        let hosts = home.ls();
        hosts
            .as_array()
            .unwrap()
            .iter()
            .any(|host| host["address"] == address && host["connections"] != serde_json::json!([]))
    };
    wait_until("the other connection is closed", || !has(&other));
    assert!(has(&pinned));
    assert_status(&home.on(&pinned, "true"), 0);
    assert_eq!(pinned.authentications(), 1);
}

#[test]
fn warm_tells_of_each_host_that_cannot_be_reached() {
    let (server, home) = (server(), Home::new());
    let config = home.path("config");
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    write_ssh_config(
        &config,
        [server.host_entry("up"), server.host_entry("down").at(closed)],
    )
    .unwrap();
    let output = finish(
        home.trunkline()
            .args(["warm", "-F"])
            .arg(&config)
            .args(["up", "down"]),
    );
    assert_status(&output, 255);
    assert_eq!(text(&output.stdout), "up: connected\n");
    assert!(
        text(&output.stderr).contains("Connection refused"),
        "{}",
        describe(&output)
    );
}

#[test]
fn explain_names_the_transport_and_the_reason() {
    let (server, home) = (server(), Home::new());
    finish(&mut about(&home, &server, &["warm"]));
    let native = text(&finish(&mut about(&home, &server, &["explain"])).stdout);
    let address = format!("127.0.0.1:{}", server.port());
    for part in [
        &*address,
        "transport: native",
        "key that worked: SHA256:",
        "proxy: none",
        "identitiesonly: yes",
        "rekeylimit: default none",
        "ipqos: 0x10 0x08",
    ] {
        assert!(native.contains(part), "{part} is not in\n{native}");
    }
    let config = home.path("config");
    write_ssh_config(
        &config,
        [server
            .host_entry("box")
            .with("GSSAPIAuthentication yes")
            .with("ForwardX11 yes")],
    )
    .unwrap();
    let mut command = home.trunkline();
    command
        .args(["explain", "-F"])
        .arg(&config)
        .arg("box")
        .env("DISPLAY", ":1");
    let other = text(&finish(&mut command).stdout);
    assert!(
        other.contains("transport: openssh") && other.to_lowercase().contains("forwardx11"),
        "{other}"
    );
}
