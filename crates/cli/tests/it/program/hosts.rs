//! `ls`, `check`, `close`, `warm`, `explain`.

use std::io::Read as _;
use std::process::Command;

use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{
    Home, assert_has, assert_says, assert_status, closed_address, describe, fail, finish, server, succeed,
    text, wait_until,
};
use crate::tty::Terminal;

/// A command about the server's host.
fn command_for(home: &Home, server: &Sshd, words: &[&str]) -> Command {
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
    assert_status(&home.run_on(&server, "true"), 0);
    let hosts = home.ls();
    assert_eq!(hosts[0]["name"], server.alias());
    assert_eq!(
        hosts[0]["address"],
        format!("{}@127.0.0.1:{}", server.user(), server.port())
    );
    assert_eq!(hosts[0]["transport"], "native");
    assert_eq!(hosts[0]["pinned"], false);
    let connection = &hosts[0]["connections"][0];
    assert!(
        connection["handshake"]["server"]
            .as_str()
            .unwrap()
            .starts_with("SSH-2.0-OpenSSH"),
        "{hosts}"
    );
    assert!(connection["received"].as_u64().unwrap() > 0);
    assert!(connection["rtt"].as_f64().unwrap() > 0.0, "{hosts}");
    assert!(connection["closes_in"].as_f64().unwrap() <= 600.0, "{hosts}");
    let table = text(&finish(home.trunkline().arg("ls")).stdout);
    assert_has(&table, "HOST");
    assert_has(&table, server.alias());
    assert_has(&table, "warm");
}

#[test]
fn what_is_used_or_kept_does_not_close_by_itself() {
    let (server, home) = (server(), Home::new());
    succeed(&mut command_for(&home, &server, &["warm", "--pin"]));
    let pinned = home.ls();
    assert_eq!(pinned[0]["connections"][0]["closes_in"], serde_json::Value::Null);
    succeed(&mut command_for(&home, &server, &["close"]));
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut child = home
        .ssh(&server)
        .args([server.alias(), "cat"])
        .stdin(reader)
        .spawn()
        .unwrap();
    // One that was opened at the same time, and is not used, may stand before it.
    let mut used = serde_json::Value::Null;
    wait_until("the session runs", || {
        let hosts = home.ls();
        let connections = hosts[0]["connections"].as_array().cloned().unwrap_or_default();
        let found = connections
            .into_iter()
            .find(|connection| connection["sessions"] == 1);
        found.map(|connection| used = connection).is_some()
    });
    assert_eq!(used["closes_in"], serde_json::Value::Null, "{used}");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the session has ended", || home.sessions() == 0);
    assert!(home.ls()[0]["connections"][0]["closes_in"].is_number());
}

#[test]
fn ls_shows_changes_until_it_is_interrupted() {
    use std::io::{BufRead as _, BufReader};
    let (server, home) = (server(), Home::new());
    let mut child = home
        .trunkline()
        .args(["ls", "--watch=1", "--json"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut documents = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&documents.next().unwrap().unwrap()).unwrap();
    assert_eq!(next(), serde_json::json!([]));
    assert_status(&home.run_on(&server, "true"), 0);
    while next() == serde_json::json!([]) {}
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(crate::home::end_of(&mut child, "ls --watch").success());
}

#[test]
fn a_watched_table_leaves_the_screen_as_it_was() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let mut command = home.trunkline();
    command.args(["ls", "-w"]);
    let mut terminal = Terminal::start(&command);
    terminal.expect("\u{1b}[?1049h");
    terminal.answer("warm", "\u{3}");
    let left = terminal.expect("\u{1b}[?1049l");
    assert!(left.contains("\u{1b}[?25h"), "{left:?}");
    terminal.expect("warm");
    assert!(terminal.end().success());
}

#[test]
fn status_describes_the_daemon_and_starts_none() {
    let (server, home) = (server(), Home::new());
    let none = fail(1, home.trunkline().arg("status"));
    assert!(text(&none.stdout).starts_with("the daemon is not running"));
    let none = fail(1, home.trunkline().args(["status", "--json"]));
    assert_eq!(text(&none.stdout), "null\n");
    assert!(home.daemon().is_none());
    assert_status(&home.run_on(&server, "true"), 0);
    let shown = succeed(home.trunkline().arg("status"));
    let pid = home.daemon().unwrap().as_raw_nonzero();
    let shown = text(&shown.stdout);
    assert_has(&shown, &format!("process      {pid}, running for "));
    assert_has(&shown, "1 connection to 1 host, 0 sessions, 0 tunnels");
    let json = finish(home.trunkline().args(["status", "--json"]));
    let status: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["pid"], pid.get());
    assert_eq!(status["socket"], home.socket().to_str().unwrap());
    assert!(status["memory"].as_u64().unwrap() > 1024 * 1024, "{status}");
}

#[test]
fn tables_are_no_wider_than_the_terminal() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
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
    let none = fail(255, &mut command_for(&home, &server, &["check"]));
    assert_says(&none, "no connection: the daemon is not running");
    assert_status(&home.run_on(&server, "true"), 0);
    let alive = succeed(&mut command_for(&home, &server, &["check"]));
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
    fail(255, &mut command_for(&home, &server, &["check"]));
    // The next command has a new connection.
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(server.authentications(), 2);
}

#[test]
fn close_names_the_hosts_that_had_nothing_to_close() {
    let (server, home) = (server(), Home::new());
    assert_status(&home.run_on(&server, "true"), 0);
    let output = fail(255, command_for(&home, &server, &["close"]).arg("127.0.0.9"));
    assert_eq!(text(&output.stdout), "testbed: closed 1 connection\n");
    assert!(
        text(&output.stderr).starts_with("trunkline: 127.0.0.9: no connection to close\n2 hosts in "),
        "{}",
        describe(&output)
    );
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
    let output = succeed(&mut command_for(&home, &server, &["close"]));
    assert_eq!(
        text(&output.stdout),
        "closing 1 connection when its sessions end\n"
    );
    assert_eq!(home.ls()[0]["connections"][0]["closing"], true);
    // New commands get a new connection, the old session its end.
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(server.authentications(), 2);
    drop(input);
    assert_eq!(crate::home::end_of(&mut child, "ssh").code(), Some(3));

    // What is to end later is still there, and can be ended now.
    let (child, _input) = start();
    succeed(&mut command_for(&home, &server, &["close"]));
    let hosts = home.ls();
    assert!(hosts.to_string().contains(r#""sessions":1"#), "{hosts}");
    let output = finish(&mut command_for(&home, &server, &["close", "--now"]));
    assert_eq!(
        text(&output.stdout),
        "closed 1 connection\n",
        "{}",
        describe(&output)
    );
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 255);
    assert_says(&output, "may have started");
    // Closing what is not there.
    wait_until("all are closed", || {
        !finish(&mut command_for(&home, &server, &["close"]))
            .status
            .success()
    });
    succeed(home.trunkline().args(["close", "--all"]));
}

/// As OpenSSH's master does when it is asked to stop.
#[test]
fn close_lets_a_client_go_on_that_has_nothing_but_forwardings() {
    let (server, home) = (server(), Home::new());
    let port = trunkline_testkit::free_port();
    let mut forwarding = home
        .ssh(&server)
        .args([
            "-N",
            "-L",
            &format!("127.0.0.1:{port}:127.0.0.1:{}", server.port()),
        ])
        .arg(server.alias())
        .spawn()
        .unwrap();
    let greeting = || {
        let mut greeting = [0; 4];
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.read_exact(&mut greeting).ok()?;
        Some(greeting)
    };
    wait_until("it listens", || greeting().is_some());
    let output = finish(&mut command_for(&home, &server, &["close"]));
    assert_eq!(
        text(&output.stdout),
        "closing 1 connection when its sessions end\n"
    );
    // It is used, and stays.
    assert_status(&home.run_on(&server, "true"), 0);
    assert_eq!(greeting(), Some(*b"SSH-"));
    assert_eq!(
        server.authentications(),
        2,
        "what is held takes no other connection"
    );
    assert_eq!(forwarding.try_wait().unwrap(), None);

    succeed(&mut command_for(&home, &server, &["close", "--now"]));
    assert_eq!(crate::home::end_of(&mut forwarding, "ssh").code(), Some(255));
}

#[test]
fn warm_says_that_a_connection_of_its_own_closes_with_it() {
    let (server, home) = (server(), Home::new());
    let output = succeed(command_for(&home, &server, &["warm", "--pin"]).arg("--no-daemon"));
    assert_eq!(
        text(&output.stdout),
        "testbed: connected, and closed again (--no-daemon)\n"
    );
}

#[test]
fn a_pinned_connection_outlives_the_idle_timeout() {
    let (pinned, other, home) = (server(), server(), Home::new());
    home.settings("idle_timeout = 1\n");
    let output = succeed(&mut command_for(&home, &pinned, &["warm", "--pin"]));
    assert_eq!(text(&output.stdout), "testbed: connected, kept until closed\n");
    // A connection that is not pinned shows when the timeout has passed.
    succeed(&mut command_for(&home, &other, &["warm"]));
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
    assert_status(&home.run_on(&pinned, "true"), 0);
    assert_eq!(pinned.authentications(), 1);
}

#[test]
fn warm_tells_of_each_host_that_cannot_be_reached() {
    let (server, home) = (server(), Home::new());
    let config = home.path("config");
    let closed = closed_address();
    write_ssh_config(
        &config,
        [
            server.host_entry("up"),
            server.host_entry("down").with_address(closed),
        ],
    )
    .unwrap();
    let output = fail(
        255,
        home.trunkline()
            .args(["warm", "-F"])
            .arg(&config)
            .args(["up", "down"]),
    );
    assert_eq!(text(&output.stdout), "up: connected\n");
    assert_says(&output, "Connection refused");
}

#[test]
fn explain_names_the_transport_and_the_reason() {
    let (server, home) = (server(), Home::new());
    finish(&mut command_for(&home, &server, &["warm"]));
    let short = text(&finish(&mut command_for(&home, &server, &["explain"])).stdout);
    let port = format!("  port {} (default: 22)", server.port());
    for part in [
        &*port,
        "  warm, up for ",
        ", closes in 9 min, ",
        "    SSH-2.0-OpenSSH",
    ] {
        assert!(short.contains(part), "{part} is not in\n{short}");
    }
    assert!(!short.contains("ipqos"), "{short}");
    let json = finish(&mut command_for(&home, &server, &["explain", "--json"]));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["sharing"]["user"], server.user());
    assert_eq!(json["connections"][0]["sessions"], 0);
    assert_eq!(
        json["memory"]["server"].as_str(),
        json["connections"][0]["handshake"]["server"].as_str()
    );
    let native = text(&finish(&mut command_for(&home, &server, &["explain", "--all"])).stdout);
    let address = format!("127.0.0.1:{}", server.port());
    for part in [
        &*address,
        "transport: native",
        "key that worked: SHA256:",
        "proxycommand: none",
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
            .with_line("GSSAPIAuthentication yes")
            .with_line("ForwardX11 yes")],
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
