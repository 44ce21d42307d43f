//! `trunkline run`: one command on many hosts.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use trunkline_testkit::{Relay, Sshd, write_ssh_config};

use crate::home::{Home, assert_status, describe, finish, server, sshd, text};

/// A server that is many hosts, box1 and so on, each at an address of its own.
struct Fleet {
    server: Sshd,
    home: Home,
    config: PathBuf,
}

impl Fleet {
    fn of(hosts: u8) -> Self {
        // More logins at once than sshd would take by default.
        let builder = sshd().any_loopback_address().config("MaxStartups 100:30:200");
        let (server, home) = (builder.start().unwrap(), Home::new());
        let config = home.path("config");
        let entries = (1..=hosts).map(|n| {
            let addr = ([127, 0, 1, n], server.port()).into();
            server.host_entry(&format!("box{n}")).at(addr)
        });
        write_ssh_config(&config, entries).unwrap();
        Self { server, home, config }
    }

    fn run(&self, options: &[&str], command: &str) -> Output {
        finish(self.command(options).args(["--", command]))
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut run = self.home.trunkline();
        run.args(["run", "-F"]).arg(&self.config).args(options);
        run
    }
}

/// The lines of `--json`, by host.
fn json(output: &Output) -> std::collections::BTreeMap<String, serde_json::Value> {
    let lines = text(&output.stdout);
    let objects = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    objects
        .map(|object| (object["host"].as_str().unwrap().to_owned(), object))
        .collect()
}

#[test]
fn hosts_are_named_by_ranges_patterns_files_and_inventories() {
    let fleet = Fleet::of(4);
    let names = |options: &[&str]| {
        let output = fleet.run(&[options, &["--json"]].concat(), "true");
        assert_status(&output, 0);
        json(&output).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(&["-H", "box[1-3]"]), ["box1", "box2", "box3"]);
    assert_eq!(names(&["-H", "box2,box4", "-H", "box2"]), ["box2", "box4"]);
    assert_eq!(names(&["-H", "box*"]), ["box1", "box2", "box3", "box4"]);
    let list = fleet.home.path("list");
    fs::write(&list, "box1\n# not this\nbox3\n").unwrap();
    assert_eq!(names(&["-H", &format!("@{}", list.display())]), ["box1", "box3"]);
    let inventory = fleet.home.path("hosts.ini");
    let port = fleet.server.port();
    let ini = format!("[web]\nbox[1:2]\nw9 ansible_host=127.0.1.4 ansible_port={port}\n[db]\nbox3\n");
    fs::write(&inventory, ini).unwrap();
    let inventory = inventory.to_str().unwrap();
    assert_eq!(
        names(&["-i", inventory, "--limit", "!w9"]),
        ["box1", "box2", "box3"]
    );
    assert_eq!(names(&["-i", inventory, "-H", "db"]), ["box3"]);
    let output = fleet.run(&["-H", "nothing*"], "true");
    assert_status(&output, 255);
    assert!(text(&output.stderr).contains("nothing*"), "{}", describe(&output));
}

#[test]
fn json_tells_everything_about_each_host() {
    let fleet = Fleet::of(2);
    let output = fleet.run(
        &["-H", "box[1-2]", "--json"],
        "echo out; printf '\\377' >&2; exit 3",
    );
    assert_status(&output, 1);
    let hosts = json(&output);
    for name in ["box1", "box2"] {
        let host = &hosts[name];
        assert_eq!((&host["kind"], &host["status"]), (&"exited".into(), &3.into()));
        assert_eq!(
            (&host["stdout"], &host["stderr_base64"]),
            (&"out\n".into(), &"/w==".into())
        );
        assert_eq!(
            (&host["execution"], &host["warm"]),
            (&"finished".into(), &false.into())
        );
        assert!(host["error"].is_null() && host["signal"].is_null() && host["seconds"].is_number());
    }
    let again = json(&fleet.run(&["-H", "box[1-2]", "--json"], "kill -KILL $$"));
    assert_eq!(
        (&again["box1"]["kind"], &again["box1"]["signal"]),
        (&"signaled".into(), &"KILL".into())
    );
    assert_eq!(again["box1"]["warm"], true);
}

#[test]
fn lines_of_hosts_are_never_mixed() {
    let fleet = Fleet::of(10);
    let output = fleet.run(
        &["-H", "box[1-10]"],
        "for i in $(seq 300); do echo \"$SSH_CONNECTION $i\"; done; printf end",
    );
    assert_status(&output, 0);
    let mut count = 0;
    for line in text(&output.stdout).lines() {
        let (host, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line:?}"));
        let number: u8 = host.trim().strip_prefix("box").unwrap().parse().unwrap();
        assert!(
            rest == "end" || rest.contains(&format!(" 127.0.1.{number} ")),
            "{line:?}"
        );
        count += 1;
    }
    assert_eq!(count, 10 * 301);
}

#[test]
fn one_host_that_cannot_be_reached_leaves_the_others_alone() {
    let fleet = Fleet::of(20);
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = fs::read_to_string(&fleet.config).unwrap();
    config = format!("{}\n{config}", fleet.server.host_entry("box7").at(closed));
    fs::write(&fleet.config, config).unwrap();
    let output = fleet.run(&["-H", "box[1-20]", "-j", "3", "--json"], "echo ran");
    assert_status(&output, 1);
    let hosts = json(&output);
    assert_eq!(hosts.len(), 20);
    assert_eq!(hosts.values().filter(|host| host["status"] == 0).count(), 19);
    let down = &hosts["box7"];
    assert_eq!(
        (&down["kind"], &down["execution"]),
        (&"network".into(), &"did not start".into())
    );
    assert!(
        down["error"].as_str().unwrap().contains("Connection refused"),
        "{down}"
    );
    let summary = text(&output.stderr);
    assert!(
        summary.contains("19 succeeded") && summary.contains("1 failed"),
        "{summary}"
    );
}

#[test]
fn a_stalled_host_costs_only_its_own_time() {
    let fleet = Fleet::of(3);
    let relay = Relay::to(fleet.server.addr()).unwrap();
    fleet.server.trust_at(relay.addr()).unwrap();
    relay.stall();
    let config = fs::read_to_string(&fleet.config).unwrap();
    fs::write(
        &fleet.config,
        format!(
            "{}\n{config}",
            fleet.server.host_entry("stalled").at(relay.addr())
        ),
    )
    .unwrap();
    let output = fleet.run(&["-H", "stalled,box[1-3]", "--timeout", "3", "--json"], "true");
    assert_status(&output, 1);
    let hosts = json(&output);
    assert_eq!(hosts["stalled"]["kind"], "timeout");
    assert_eq!(hosts["stalled"]["execution"], "did not start");
    // It is the last: the others did not wait for it.
    assert!(
        text(&output.stdout)
            .lines()
            .last()
            .unwrap()
            .contains("\"stalled\"")
    );
    assert_eq!(hosts.values().filter(|host| host["status"] == 0).count(), 3);
}

#[test]
fn equal_output_is_shown_once() {
    let fleet = Fleet::of(4);
    let output = fleet.run(
        &["-H", "box[1-4]", "--collate"],
        "case \"$SSH_CONNECTION\" in *127.0.1.4*) echo odd;; *) echo even;; esac",
    );
    assert_status(&output, 0);
    let shown = text(&output.stdout);
    assert_eq!(
        (shown.matches("even").count(), shown.matches("odd").count()),
        (1, 1),
        "{shown}"
    );
    assert!(shown.contains("box[1-3]"), "{shown}");
}

#[test]
fn output_goes_to_files_too() {
    let fleet = Fleet::of(2);
    let folder = fleet.home.path("out/put");
    let options = ["-H", "box[1-2]", "-O", folder.to_str().unwrap()];
    assert_status(&fleet.run(&options, "echo out; echo err >&2"), 0);
    for host in ["box1", "box2"] {
        assert_eq!(
            fs::read_to_string(folder.join(format!("{host}.stdout"))).unwrap(),
            "out\n"
        );
        assert_eq!(
            fs::read_to_string(folder.join(format!("{host}.stderr"))).unwrap(),
            "err\n"
        );
    }
}

#[test]
fn many_commands_cost_one_login_a_host() {
    let (server, home) = (server(), Home::new());
    for _ in 0..3 {
        let mut run = home.trunkline();
        run.args(["run", "-F"])
            .arg(server.ssh_config())
            .args(["-H", server.alias(), "--", "exit", "2"]);
        assert_status(&finish(&mut run), 1);
    }
    let output = home.on(&server, "exit 7");
    assert_status(&output, 7);
    assert_eq!(server.authentications(), 1);
}
