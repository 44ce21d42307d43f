//! `trunkline fleet` and `run --fleet`: a NATS server, nodes in processes of their own, and real hosts.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trunkline_testkit::{Sshd, write_ssh_config};

use crate::home::{Home, assert_status, describe, end_of, finish, sshd, text, wait_until, wait_until_or};

/// A fleet; all of its processes end with their homes.
struct Site {
    /// Of whoever submits, and of NATS.
    home: Home,
    nodes: Vec<(Home, Child)>,
    server: Sshd,
}

impl Site {
    fn start(nodes: usize) -> Self {
        let (server, home) = (sshd().any_loopback_address().start().unwrap(), Home::new());
        let config = home.path("config");
        let entries = (1..=6).map(|n| {
            let addr = ([127, 0, 1, n], server.port()).into();
            server.host_entry(&format!("box{n}")).at(addr)
        });
        write_ssh_config(&config, entries).unwrap();

        // Free now; nobody else takes it before the server does, but for bad luck.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let (nats, store) = (home.path("nats.conf"), home.path("store"));
        let settings = format!("listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n");
        fs::write(&nats, settings).unwrap();
        let mut command = home.command("nats-server");
        command
            .arg("-c")
            .arg(&nats)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        drop(
            command
                .spawn()
                .expect("nats-server is needed: scripts/need nats-server=nats-server"),
        );

        let url = format!("nats://127.0.0.1:{port}");
        wait_until_or("the fleet is made", || {
            let output = finish(home.trunkline().args(["fleet", "init", &url]));
            match output.status.success() {
                true => Ok(()),
                false => Err(describe(&output)),
            }
        });
        let key = finish(home.trunkline().args(["fleet", "key"]));
        assert_status(&key, 0);
        let mut site = Self {
            home,
            nodes: Vec::new(),
            server,
        };
        for n in 1..=nodes {
            let home = Home::new();
            let mut join = home.trunkline();
            join.args(["fleet", "join", &url, "--name", &format!("node{n}")]);
            join.args(["--allow", text(&key.stdout).trim(), "--ssh-config"])
                .arg(&config);
            let child = join.stderr(Stdio::null()).spawn().unwrap();
            site.nodes.push((home, child));
        }
        wait_until_or("each node has its share", || {
            let status = site.status();
            let told = status["nodes"].as_array().unwrap();
            let all: u64 = told.iter().filter_map(|node| node["shards"].as_u64()).sum();
            let each = told
                .iter()
                .all(|node| node["state"] == "up" && node["shards"] != 0);
            match told.len() == nodes && all == 256 && each {
                true => Ok(()),
                false => Err(status.to_string()),
            }
        });
        site
    }

    fn status(&self) -> Value {
        let output = finish(self.home.trunkline().args(["fleet", "status", "--json"]));
        assert_status(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn run(&self, options: &[&str], command: &str) -> Output {
        let mut run = self.home.trunkline();
        run.args(["run", "--fleet", "-n"]).args(options);
        finish(run.args(["--", command]))
    }

    /// Begins a run, and waits until its command has made the file `begun`.
    fn begin(&self, options: &[&str], command: &str) -> Child {
        let begun = self.home.path("begun");
        let mut run = self.home.trunkline();
        run.args(["run", "--fleet", "-n"]).args(options).arg("--");
        let child = run
            .arg(format!("touch {}; {command}", begun.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the command has begun", || begun.exists());
        child
    }

    /// Has all nodes leave, which ends them.
    fn leave(mut self) {
        for (home, node) in &mut self.nodes {
            assert_status(&finish(home.trunkline().args(["fleet", "leave"])), 0);
            assert_eq!(end_of(node, "the node").code(), Some(0));
        }
    }
}

#[test]
fn a_fleet_runs_a_command_as_run_does() {
    let site = Site::start(2);
    let config = site.home.path("config");
    for command in [
        "echo from {host}; echo trouble >&2",
        "echo no; exit 3",
        "kill -TERM $$",
    ] {
        let hosts = ["-H", "box[1-6]", "--collate"];
        let mut run = site.home.trunkline();
        run.args(["run", "-n", "-F"]).arg(&config).args(hosts);
        let alone = finish(run.args(["--", command]));
        let fleet = site.run(&hosts, command);
        assert_eq!(alone.status.code(), fleet.status.code(), "{}", describe(&fleet));
        assert_eq!(text(&alone.stdout), text(&fleet.stdout), "{}", describe(&fleet));
    }
    let output = site.run(&["-H", "nowhere.invalid"], "true");
    assert_status(&output, 1);
    assert!(
        text(&output.stderr).contains("nowhere.invalid"),
        "{}",
        describe(&output)
    );
    // What the node allows is what its file says at this moment, and nothing where that says nothing.
    let file = site.nodes[0].0.trunkline_dir().join("fleet.toml");
    let other = site.nodes[1].0.trunkline_dir().join("fleet.toml");
    let settings = fs::read_to_string(&file).unwrap();
    for (text, why) in [
        (settings.split("[[allow]]").next().unwrap(), "takes no jobs of"),
        ("allow = 7", "fleet.toml is not valid"),
    ] {
        fs::write(&file, text).unwrap();
        fs::write(&other, text).unwrap();
        let output = site.run(&["-H", "box1"], "true");
        assert_status(&output, 1);
        assert!(text_of(&output).contains(why), "{}", describe(&output));
    }
    fs::write(&file, &settings).unwrap();
    fs::write(&other, &settings).unwrap();
    assert_status(&site.run(&["-H", "box1"], "true"), 0);
    site.leave();
}

fn text_of(output: &Output) -> String {
    text(&output.stderr) + &text(&output.stdout)
}

#[test]
fn an_interrupted_job_ends_everywhere_and_a_killed_client_loses_nothing() {
    let site = Site::start(1);
    let mut interrupted = site.begin(&["-H", "box1"], "exec sleep 600");
    kill_process(Pid::from_child(&interrupted), Signal::INT).unwrap();
    assert_eq!(end_of(&mut interrupted, "the run").code(), Some(130));
    wait_until("nothing runs", || site.nodes[0].0.sessions() == 0);

    fs::remove_file(site.home.path("begun")).unwrap();
    let go = site.home.path("go");
    let command = format!(
        "while ! [ -e {} ]; do sleep 0.05; done; echo was here",
        go.display()
    );
    let mut killed = site.begin(&["-H", "box2"], &command);
    killed.kill().unwrap();
    killed.wait().unwrap();
    fs::write(go, "").unwrap();
    wait_until("the job has ended", || {
        let status = site.status();
        let jobs = status["jobs"].as_array().unwrap();
        jobs.iter().any(|job| job["succeeded"] == 1)
    });
    let status = site.status();
    let jobs = status["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["succeeded"] == 1).unwrap();
    let attach = |job: &str| finish(site.home.trunkline().args(["fleet", "attach", job]));
    let output = attach(job["job"].as_str().unwrap());
    assert_status(&output, 0);
    assert!(text(&output.stdout).contains("was here"), "{}", describe(&output));
    assert_status(&attach("000000000000"), 255);
    site.leave();
}

/// A node that is stopped for longer than its leases last, and goes on as if nothing had been.
#[test]
fn a_node_that_slept_through_the_end_of_its_leases_runs_nothing_again() {
    let site = Site::start(2);
    let ledger = site.home.path("ledger");
    fs::create_dir(&ledger).unwrap();
    let command = format!("echo ran >> {}/{{host}}; sleep 0.3; echo done", ledger.display());
    let mut run = site.begin(&["-H", "box[1-6]", "-j", "2", "--json"], &command);
    let (_, node) = &site.nodes[0];
    kill_process(Pid::from_child(node), Signal::STOP).unwrap();
    wait_until("the other node has all shards", || {
        let status = site.status();
        let nodes = status["nodes"].as_array().unwrap();
        nodes
            .iter()
            .any(|node| node["name"] == "node2" && node["shards"] == 256)
    });
    kill_process(Pid::from_child(node), Signal::CONT).unwrap();

    let output = std::io::read_to_string(run.stdout.take().unwrap()).unwrap();
    end_of(&mut run, "the run");
    let told: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told.len(), 6, "{output}");
    for host in &told {
        let name = host["host"].as_str().unwrap();
        let ran = fs::read_to_string(ledger.join(name)).unwrap_or_default();
        let ran = ran.lines().count();
        match host["status"].as_i64() {
            Some(0) => assert_eq!(ran, 1, "{host}"),
            _ if host["execution"] == "did not start" => assert_eq!(ran, 0, "{host}"),
            _ => assert!(ran <= 1, "{host}"),
        }
    }
    drop(site.server);
}
