//! `trunkline fleet` and `run --fleet`: a NATS server, nodes in processes of their own, and real hosts.

mod input;
mod watched;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trunkline_testkit::{Sshd, SshdBuilder, free_port};

use crate::home::{
    Home, assert_has, assert_prints, assert_says, assert_status, boxes, describe, end_of, fail, finish, sshd,
    succeed, text, wait_until, wait_until_or, with_status,
};

/// A fleet; all of its processes end with their homes.
struct Site {
    /// Of whoever submits, and of NATS.
    home: Home,
    nodes: Vec<(Home, Child)>,
    server: Sshd,
}

impl Site {
    fn start(nodes: usize) -> Self {
        Self::with_nodes(nodes, Home::new(), sshd())
    }

    fn with_nodes(nodes: usize, home: Home, server: SshdBuilder) -> Self {
        let server = server.any_loopback_address().start().unwrap();
        let config = home.config(boxes(&server, 6));

        let port = free_port();
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
        let key = succeed(home.trunkline().args(["fleet", "key"]));
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
        let output = succeed(self.home.trunkline().args(["fleet", "status", "--json"]));
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
            succeed(home.trunkline().args(["fleet", "leave"]));
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
    let output = with_status(1, site.run(&["-H", "nowhere.invalid"], "true"));
    assert_says(&output, "nowhere.invalid");
    // What the node allows is what its file says at this moment, and nothing where that says nothing.
    let file = site.nodes[0].0.trunkline_dir().join("fleet.toml");
    let other = site.nodes[1].0.trunkline_dir().join("fleet.toml");
    let settings = fs::read_to_string(&file).unwrap();
    for (text, why) in [
        (settings.split("[[allow]]").next().unwrap(), "takes nothing from"),
        ("allow = 7", "fleet.toml line 1: "),
    ] {
        fs::write(&file, text).unwrap();
        fs::write(&other, text).unwrap();
        let output = with_status(1, site.run(&["-H", "box1"], "true"));
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
    assert_eq!(end_of(&mut interrupted, "the run").signal(), Some(2));
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
    let output = with_status(0, attach(job["job"].as_str().unwrap()));
    assert_prints(&output, "was here");
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

/// The stream that the status lists last.
fn stream_of(site: &Site) -> String {
    let status = site.status();
    let stream = status["streams"].as_array().unwrap().last().unwrap();
    stream["stream"].as_str().unwrap().to_owned()
}

fn lines(path: &std::path::Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().matches('\n').count()
}

/// A stream whose node is killed, and which is followed again into the file that it was written to before.
#[test]
fn a_stream_goes_on_without_its_node_and_without_who_follows_it() {
    let mut site = Site::start(2);
    let (file, gate) = (site.home.path("box1.log"), site.home.path("gate"));
    // Each line of the gate is told once, by whichever command finds it first.
    fs::write(&gate, "").unwrap();
    let mut begin = site.home.trunkline();
    begin.args(["stream", "--fleet", "--detach", "box1", "--"]);
    let output = succeed(begin.arg(format!("echo begun; exec tail -f {}", gate.display())));
    assert_says(&output, "fleet attach");
    let (stream, target) = (stream_of(&site), format!("file:{}", file.display()));
    let follow = || {
        let mut attach = site.home.trunkline();
        attach.args(["fleet", "attach", &stream, "--mark-gaps", "--to", &target]);
        attach
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    // Not written anew: `tail` would begin again with a file that it finds empty.
    let append = |line: &str| {
        let mut gate = fs::OpenOptions::new().append(true).open(&gate).unwrap();
        // In one write, so that nobody reads a line without its end.
        gate.write_all(format!("{line}\n").as_bytes()).unwrap();
    };
    let mut followed = "begun\n".to_owned();
    let mut first = follow();
    wait_until("the command has begun", || lines(&file) == 1);
    // Whoever leaves right after a line has come: it is not told again.
    for nth in 0..8 {
        append(&nth.to_string());
        followed += &format!("{nth}\n");
        wait_until("a line has come", || lines(&file) == nth + 2);
        kill_process(Pid::from_child(&first), Signal::INT).unwrap();
        assert_eq!(end_of(&mut first, "following").signal(), Some(2));
        first = follow();
    }
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    assert_eq!(end_of(&mut first, "following").signal(), Some(2));

    // Meanwhile the stream goes on.
    append("last");
    followed += "last\n";
    let mut second = follow();
    wait_until("what came meanwhile is there", || {
        lines(&file) >= followed.lines().count()
    });
    assert_eq!(fs::read_to_string(&file).unwrap(), followed);

    // Two do not write one file.
    let mut other = site.home.trunkline();
    other.args(["fleet", "attach", &stream, "--to", &target]);
    let output = fail(255, &mut other);
    assert_says(&output, "is followed into");

    // The nodes are lost with their commands, and one comes again: a mark says what that means.
    for (_, node) in &mut site.nodes {
        // Until it has ended, its home has a node.
        node.kill().unwrap();
        node.wait().unwrap();
    }
    let (home, _) = &site.nodes[0];
    let mut again = home.trunkline();
    let mut again = again
        .args(["fleet", "join"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the command has begun again", || {
        fs::read_to_string(&file).unwrap().matches("begun\n").count() == 2
    });
    let all = fs::read_to_string(&file).unwrap();
    assert_has(&all, "output may be missing here: begun again on node");

    succeed(site.home.trunkline().args(["fleet", "cancel", &stream]));
    assert_eq!(end_of(&mut second, "following").code(), Some(1));
    wait_until("nothing runs", || {
        site.nodes.iter().all(|(home, _)| home.sessions() == 0)
    });
    assert_eq!(site.status()["streams"][0]["ended"], 1);
    succeed(home.trunkline().args(["fleet", "leave"]));
    assert_eq!(end_of(&mut again, "the node").code(), Some(0));
}

#[test]
fn a_stream_of_a_fleet_is_shown_as_any_other_and_ends_with_ctrl_c() {
    let site = Site::start(1);
    let mut ended = site.home.trunkline();
    ended.args(["stream", "--fleet", "--to", "-", "box1", "box2", "--"]);
    let output = fail(1, ended.arg("echo out; echo err >&2; exit 3"));
    assert_prints(&output, "box2");
    assert_prints(&output, "out");
    assert_says(&output, "box1: the command ended with status 3");
    assert_says(&output, "err");

    let begun = site.home.path("begun");
    let mut stream = site.home.trunkline();
    stream.args(["stream", "--fleet", "--to", "-", "box1", "--"]);
    stream.arg(format!("touch {}; exec sleep 600", begun.display()));
    let mut stream = stream.stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the command has begun", || begun.exists());
    kill_process(Pid::from_child(&stream), Signal::INT).unwrap();
    assert_eq!(end_of(&mut stream, "the stream").signal(), Some(2));
    let told = std::io::read_to_string(stream.stderr.take().unwrap()).unwrap();
    assert_has(&told, "Ctrl-C ends it");
    assert_has(&told, "is cancelled");
    wait_until("nothing runs", || site.nodes[0].0.sessions() == 0);

    for (words, why) in [
        (["--to", "nats:$JS.API.x"], "cannot be written to"),
        (["--to", "file:one.log"], "put {host} into its path"),
    ] {
        let mut refused = site.home.trunkline();
        refused
            .args(["stream", "--fleet"])
            .args(words)
            .args(["box1", "box2", "--", "true"]);
        let output = fail(255, &mut refused);
        assert_says(&output, why);
    }
    site.leave();
}
