//! Views of a fleet: metrics of its nodes, `top --fleet`, `serve-ui --fleet`.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;
use crate::home::{finish_with, program, succeed, with_status};
use crate::watching::browser::Browser;
use crate::watching::screen::{Page, Tmux};

/// Returns the sum of a node's samples with these beginnings.
fn sum(text: &str, beginning: &str) -> f64 {
    let samples = text.lines().filter(|line| line.starts_with(beginning));
    let values = samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn nodes_count_what_they_do_and_prometheus_own_linter_finds_nothing() {
    let site = Site::start(2);
    assert_status(&site.run(&["-H", "box[1-6]"], "echo out"), 0);
    let mut all = String::new();
    for (home, _) in &site.nodes {
        let printed = succeed(home.trunkline().args(["metrics", "--fleet"]));
        let linted = with_status(
            0,
            finish_with(
                home.command("promtool").args(["check", "metrics"]),
                &printed.stdout,
            ),
        );
        let printed = text(&printed.stdout);
        assert_eq!(text(&linted.stderr), "", "{printed}");
        assert_eq!(sum(&printed, "trunkline_fleet_members{state=\"up\"}"), 2.0);
        assert!(
            sum(&printed, "trunkline_fleet_lease_remaining_seconds ") > 0.0,
            "{printed}"
        );
        let socket = home.trunkline_dir().join("fleet-metrics.sock");
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        all.push_str(&printed);
    }
    for (samples, expected) in [
        ("trunkline_fleet_owned_shards{", 256.0),
        ("trunkline_fleet_hosts_total{fate=\"succeeded\"}", 6.0),
        ("trunkline_fleet_claims_total{outcome=\"ok\"}", 6.0),
        ("trunkline_fleet_execution_duration_seconds_count ", 6.0),
        ("trunkline_fleet_start_delay_seconds_count ", 6.0),
        ("trunkline_fleet_output_messages_total ", 6.0),
        ("trunkline_fleet_output_bytes_total ", 24.0),
        ("trunkline_fleet_nats_connected ", 2.0),
        ("trunkline_fleet_frozen ", 0.0),
    ] {
        assert_eq!(sum(&all, samples), expected, "{samples}: {all}");
    }
    let home = Home::new();
    let (first, _) = &site.nodes[0];
    let file = home.path("fleet.prom");
    let write = || {
        finish(
            first
                .trunkline()
                .args(["metrics", "--fleet", "--textfile"])
                .arg(&file),
        )
    };
    assert_status(&write(), 0);
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .contains("\ntrunkline_fleet_build_info")
    );
    succeed(first.trunkline().args(["fleet", "leave"]));
    assert_status(&write(), 1);
    assert!(!file.exists());
}

/// Two streams: one whose command runs on five hosts, and one whose command ends at once and is begun again.
fn stand(site: &Site) {
    let stream = |arguments: &[&str], command: &str| {
        let mut stream = site.home.trunkline();
        stream.args(["stream", "--fleet", "--detach"]).args(arguments);
        succeed(stream.args(["--", command]));
    };
    stream(&["box1", "box2", "box3", "box4", "box5"], "exec sleep 600");
    let again = [
        "--restart",
        "always",
        "--retry-min",
        "1",
        "--retry-max",
        "1",
        "box6",
    ];
    stream(&again, "true");
}

fn cancel_streams(site: &Site) {
    for stream in site.status()["streams"].as_array().unwrap() {
        let id = stream["stream"].as_str().unwrap();
        succeed(site.home.trunkline().args(["fleet", "cancel", id]));
    }
}

#[test]
fn top_shows_nodes_shards_moves_jobs_and_streams_as_they_change() {
    let mut site = Site::start(2);
    let tmux = Tmux { home: &site.home };
    let line = format!(
        "{} top --fleet --interval 200ms; echo ended $?; exec cat",
        program()
    );
    tmux.run(&["new-session", "-d", "-x", "80", "-y", "24", &line]);
    tmux.expect("2 nodes up; 256 shards; 0 open jobs");
    tmux.expect("node2");
    assert_status(&site.run(&["-H", "box[1-6]"], "exit 3"), 1);
    tmux.run(&["send-keys", "4"]);
    tmux.expect("done");
    tmux.run(&["resize-window", "-x", "200", "-y", "40"]);
    tmux.expect("SUBMITTER");
    tmux.expect("exit status 3");
    tmux.run(&["send-keys", "Enter"]);
    tmux.expect("box1");
    tmux.expect("Details");
    tmux.run(&["send-keys", "Escape"]);
    tmux.expect_no("Details");
    tmux.run(&["send-keys", "2"]);
    tmux.expect("OF THE SITE");
    tmux.run(&["send-keys", "3"]);
    tmux.expect("No shard has moved since this was opened.");
    tmux.run(&["send-keys", "5"]);
    tmux.expect("The fleet keeps no stream.");
    stand(&site);
    tmux.expect("2 streams");
    tmux.expect("node1 node2");
    tmux.run(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.expect("RESTARTS");
    // The one whose command ends, and is begun again.
    let status = site.status();
    let streams = status["streams"].as_array().unwrap();
    let again = streams.iter().find(|stream| stream["hosts"] == 1).unwrap();
    tmux.run(&[
        "send-keys",
        "/",
        again["stream"].as_str().unwrap(),
        "Enter",
        "Enter",
    ]);
    tmux.expect("begun again");
    tmux.run(&["send-keys", "Escape"]);
    tmux.expect_no("begun again");
    tmux.run(&["send-keys", "Escape"]);
    tmux.expect_no("with \"");
    cancel_streams(&site);
    tmux.expect("ended");
    tmux.run(&["send-keys", "3"]);
    site.nodes[1].1.kill().unwrap();
    site.nodes[1].1.wait().unwrap();
    tmux.expect("1 up, 1 lost; 256 shards;");
    tmux.expect("lost");
    succeed(site.nodes[0].0.trunkline().args(["fleet", "leave"]));
    tmux.run(&["send-keys", "1"]);
    tmux.expect("has left");
    tmux.expect(" free;");
    tmux.run(&["send-keys", "q"]);
    tmux.expect("ended 0");
}

#[test]
fn the_page_shows_the_fleet_in_every_window_and_what_it_is_told_as_text() {
    let site = Site::start(2);
    let page = Page::serve_with(&site.home, &["--fleet"]);
    let mut browser = Browser::open(&site.home, &page.url);
    browser.expect("2\nnodes up");
    assert_status(&site.run(&["-H", "box[1-6]"], "exit 3"), 1);
    let shown = browser.expect("done");
    for wanted in [
        "node1",
        "node2",
        "Jobs (1)",
        "Hosts that no site claims",
        "exit status 3",
    ] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert_eq!(browser.value("document.querySelectorAll('.map i').length"), 256);
    assert!(shown.contains("The fleet keeps no stream."), "{shown}");
    stand(&site);
    let shown = browser.expect("Streams (2)");
    assert!(!shown.contains("The fleet keeps no stream."), "{shown}");
    browser.expect("node1, node2");
    browser.expect("5\nhosts streaming");
    let again = "[...document.querySelectorAll('#streams tbody tr')].some((row) => Number(row.cells[8].textContent) > 0)";
    wait_until("a command was begun again", || browser.value(again) == true);
    let status = site.status();
    let running: u64 = status["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["running"].as_u64().unwrap())
        .sum();
    assert!(running >= 5, "{status}");
    let from = "performance.getEntriesByType('resource').every(({ name }) => name.startsWith(location.href))";
    assert_eq!(browser.value(from), true);
    for width in [390, 768, 1280, 2560] {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        browser.call("Emulation.setDeviceMetricsOverride", &size);
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= width, "{wide} on {width}");
    }
    cancel_streams(&site);
    browser.expect("0\nhosts streaming");
    succeed(site.nodes[0].0.trunkline().args(["fleet", "drain"]));
    let shown = browser.expect("node1\tnode2\tleft");
    assert!(shown.contains("draining"), "{shown}");
}
