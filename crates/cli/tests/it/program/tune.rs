//! `trunkline tune`: what it prints, and what other commands make of it.

use std::fs;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use trunkline_testkit::{Direction, Relay};

use crate::home::{
    Home, assert_prints, assert_says, assert_status, describe, fail, finish, server, succeed, text,
    with_status,
};
use crate::tty::Terminal;

#[test]
fn what_is_measured_is_printed_drawn_remembered_and_forgotten() {
    let (server, home) = (server(), Home::new());
    // On half a megabyte a second there is no doubt about compression.
    let relay = Relay::start(server.addr()).unwrap();
    for direction in [Direction::ToServer, Direction::ToClient] {
        relay.set_rate(direction, Some(500_000));
    }
    let config = server.ssh_config_via("narrow", relay.addr()).unwrap();
    let directory = home.path("directory");
    fs::create_dir(&directory).unwrap();
    let page = home.path("report.html");
    let tune = |arguments: &[&str]| {
        let mut command = home.trunkline();
        command
            .arg("tune")
            .arg("-F")
            .arg(&config)
            .args(arguments)
            .arg("narrow");
        finish(&mut command)
    };
    let explained = || {
        let mut command = home.trunkline();
        let output = succeed(command.arg("explain").arg("-F").arg(&config).arg("narrow"));
        text(&output.stdout)
    };
    // The daemon runs, and has an opinion on the host, before there is anything to remember.
    assert!(!explained().contains("tuned"));

    let (page_name, directory_name) = (page.display().to_string(), directory.display().to_string());
    let options = [
        "--json",
        "--time",
        "8",
        "--size",
        "64M",
        "--directory",
        &directory_name,
        "--report",
        &page_name,
    ];
    let measured = || {
        let output = with_status(0, tune(&options));
        let report = serde_json::from_slice(&output.stdout).unwrap();
        (output, report)
    };
    let (mut output, mut report): (_, serde_json::Value) = measured();
    // On a machine so busy that what is measured is its other work, one measures again.
    for _ in 0..4 {
        if report["choice"]["compression"] == true {
            break;
        }
        (output, report) = measured();
    }
    assert_eq!(report["choice"]["compression"], true, "{report:#}");
    assert!(report["ciphers"][0]["incompressible"]["down"].as_f64().unwrap() > 0.0);
    assert!(report["link"]["rtt"].as_f64().unwrap() > 0.0);
    assert!(fs::read_dir(&directory).unwrap().next().is_none());

    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 5, "{page}");
    assert!(page.contains("prefers-color-scheme: dark"));
    // Nothing is fetched, and no colour is fixed.
    for foreign in ["src=", "href=", "url(", "@import", "#010101", "#030301"] {
        assert!(!page.contains(foreign), "{foreign}");
    }

    assert!(explained().contains("tuned for copies: aes"), "{}", explained());
    let source = home.path("log");
    fs::write(&source, "the same line again\n".repeat(20_000)).unwrap();
    let copied = |path: &str| {
        let mut command = home.trunkline();
        command.args(["cp", "--json", "-F"]).arg(&config);
        let output = succeed(
            command
                .arg(&source)
                .arg(format!("narrow:{directory_name}/{path}")),
        );
        text(&output.stdout)
    };
    assert!(copied("a").contains("with zlib"), "{}", describe(&output));

    let mut setup = home.trunkline();
    let output = succeed(setup.args(["setup", "rsync", "--file"]).arg(home.path("profile")));
    assert_prints(&output, "measured best with");

    let output = tune(&["--forget"]);
    assert_status(&output, 0);
    assert!(!explained().contains("tuned"));
    assert!(!copied("b").contains("with zlib"));
}

/// However little fits into the budget: one session, chosen because nothing else was measured, would be ten times slower
/// than what copies do without tuning.
#[test]
fn far_away_sessions_are_chosen_only_beside_the_usual_number() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    relay.set_rtt(Duration::from_millis(60));
    let config = server.ssh_config_via("far", relay.addr()).unwrap();
    let mut command = home.trunkline();
    command.args(["tune", "--json", "--time", "1", "--size", "64M", "-F"]);
    let output = succeed(command.arg(config).arg("far"));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["streams"].as_array().unwrap();
    let rtt = report["link"]["rtt"].as_f64().unwrap();
    // As many windows as 300 MB/s take.
    for (direction, window) in [("up", 2e6), ("down", 8e6)] {
        let usual = (300e6 * rtt / window).ceil() as usize;
        let row = rows.iter().find(|row| row["streams"] == usual);
        assert!(
            row.is_some_and(|row| row["rates"][direction].is_f64()),
            "{direction}: {report:#}"
        );
    }
}

#[test]
fn an_error_does_not_begin_behind_the_progress() {
    let (server, home) = (server(), Home::new());
    let relay = Relay::start(server.addr()).unwrap();
    relay.set_rate(Direction::ToServer, Some(500_000));
    let config = server.ssh_config_via("narrow", relay.addr()).unwrap();
    let mut command = home.trunkline();
    let mut terminal = Terminal::start(command.args(["tune", "-F"]).arg(config).arg("narrow"));
    terminal.expect("1/");
    let is_daemon = |pid: &rustix::process::Pid| {
        fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid()))
            .is_ok_and(|name| name.trim_end() == "trunklined")
    };
    for daemon in home.processes().iter().filter(|pid| is_daemon(pid)) {
        kill_process(*daemon, Signal::KILL).unwrap();
    }
    let before = terminal.expect("trunkline: narrow: the daemon ended");
    assert!(before.ends_with("\r\u{1b}[2K"), "{before:?}");
    terminal.end();
}

#[test]
fn a_table_is_for_people() {
    let (server, home) = (server(), Home::new());
    let mut command = home.trunkline();
    command.args(["--no-daemon", "tune", "--time", "3", "--size", "64M", "-F"]);
    let output = succeed(command.arg(server.ssh_config()).arg(server.alias()));
    let table = text(&output.stdout);
    for words in [
        "round trip",
        "CIPHER",
        "aes128-gcm ",
        "SESSIONS",
        "`trunkline cp` uses",
    ] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    assert_says(
        &output,
        &format!("measuring {} for up to 3 s and 64.00 MiB", server.alias()),
    );
}

#[test]
fn this_machine_alone_is_measured_without_a_host() {
    let home = Home::new();
    let output = succeed(home.trunkline().args(["tune", "--local", "--json"]));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |list: &str| -> Vec<String> {
        let rows = report[list].as_array().unwrap().iter();
        rows.map(|row| row["algorithm"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(names("ciphers").contains(&"chacha20-poly1305@openssh.com".to_owned()));
    assert_eq!(names("macs").len(), 2);
    assert!(names("signatures").contains(&"ssh-ed25519".to_owned()));
    assert!(!home.socket().exists());

    let output = fail(2, home.trunkline().args(["tune"]));
    assert_says(&output, "<HOST>...");
}
