//! One command on many hosts over several nodes that meet in NATS.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use trunkline_testkit::write_ssh_config;

use super::{Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::{Daemon, Lab};
use crate::measure::{self, Contestant, Samples, in_turns, output_text};

pub(super) const ROW: Row = Row {
    name: "fleet-scale",
    title: "`true` on many hosts over several nodes",
    measure,
};

const ALONE: &str = "trunkline run, one daemon";
const TWO_NODES: &str = "trunkline run --fleet, two nodes";
const THREE_NODES: &str = "trunkline run --fleet, three nodes";
const ANSIBLE: &str = "ansible -m raw -f 50";
const CLUSH: &str = "clush -f 50";

/// The maximum number of hosts of one light server: each takes a descriptor there.
const HOSTS_OF_A_BED: usize = 8_000;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    beside_one_daemon(lab, &mut outcome)?;
    at_scale(lab, &mut outcome)?;
    outcome.notes.push(
        "The nodes, their daemons, NATS and the servers share this machine's cores. From the start of the client to its end; warm: \
         the connections of an earlier run are there."
            .into(),
    );
    Ok(outcome)
}

/// The same hosts through one daemon and through two nodes.
fn beside_one_daemon(lab: &Lab, outcome: &mut Outcome) -> anyhow::Result<()> {
    let server = lab.server().any_loopback_address().start()?;
    let hosts: u8 = lab.size(200, 40);
    let (config, names) = (lab.path("scale_config"), lab.path("scale_names"));
    let entry = |n: u8| {
        server
            .host_entry(&format!("host{n:03}"))
            .with_address(([127, 0, 2, n], server.port()).into())
    };
    write_ssh_config(&config, (1..=hosts).map(entry))?;
    let list: String = (1..=hosts).map(|n| format!("host{n:03}\n")).collect();
    fs::write(&names, list)?;
    let fleet = Fleet::start(lab, "two", 2, &config)?;
    let daemon = lab.daemon()?;
    let alone = || {
        let mut run = daemon.trunkline();
        run.args(["run", "-F"]).arg(&config);
        measure::time(run.arg("-H").arg(printed_path(&names)).args(["--", "true"]))
    };
    let spread = || measure::time(&mut fleet.run(&names));
    let cold = [(ALONE, alone()?), (TWO_NODES, spread()?)];
    let runs = lab.size(5, 3);
    let repeated = |one: &dyn Fn() -> anyhow::Result<f64>| (0..runs).map(|_| one()).collect();
    let samples = in_turns(
        lab.size(5, 3),
        &mut [
            Contestant::new(ALONE, || repeated(&alone)),
            Contestant::new(TWO_NODES, || repeated(&spread)),
        ],
    );
    let warm = table(format!("{hosts} hosts, warm"), "s", samples);
    outcome.verdicts.push(Verdict {
        what: format!("{}: {TWO_NODES} / {ALONE}", warm.title),
        measured: ratio(warm.median(TWO_NODES), warm.median(ALONE)),
        target: Target::AtMost(1.15),
        unit: "of one daemon's",
    });
    outcome.tables.push(table(
        format!("{hosts} hosts, cold"),
        "s",
        cold.map(single).into(),
    ));
    outcome.tables.push(warm);
    Ok(())
}

/// As many hosts as one machine can pretend.
fn at_scale(lab: &Lab, outcome: &mut Outcome) -> anyhow::Result<()> {
    let hosts: usize = lab.size(20_000, 1_000);
    let mut beds = Beds::start(lab, hosts)?;
    let fleet = Fleet::start(lab, "three", 3, &beds.config)?;
    let cold = measure::time(&mut fleet.run(&beds.names))?;
    let before = fleet.traffic()?;
    let warm = measure::time(&mut fleet.run(&beds.names))?;
    let after = fleet.traffic()?;
    let per_host = |field: &str| -> anyhow::Result<f64> {
        let count = |told: &Value| told[field].as_f64().context("NATS tells no traffic");
        Ok((count(&after)? - count(&before)?) / hosts as f64)
    };
    let executed = beds.executions()?;
    ensure!(
        executed == 2 * hosts,
        "{executed} commands for {hosts} hosts twice"
    );
    let memory = fleet.memory()?;
    drop(fleet);
    let seconds = vec![
        single((&format!("{THREE_NODES}, cold"), cold)),
        single((&format!("{THREE_NODES}, warm"), warm)),
    ];
    outcome.tables.push(table(format!("{hosts} hosts"), "s", seconds));
    outcome
        .tables
        .push(table(format!("{hosts} hosts: most memory"), "MiB", memory));
    let traffic = [
        ("messages to NATS", "in_msgs"),
        ("messages from NATS", "out_msgs"),
        ("bytes to NATS", "in_bytes"),
        ("bytes from NATS", "out_bytes"),
    ];
    let traffic: Vec<Samples> = traffic
        .into_iter()
        .map(|(name, field)| Ok(single((name, per_host(field)?))))
        .collect::<anyhow::Result<_>>()?;
    outcome
        .tables
        .push(table(format!("{hosts} hosts, warm: for each host"), "", traffic));
    let patience = Duration::from_secs(lab.size(600, 60));
    let mut others = Vec::new();
    for (name, command) in [(ANSIBLE, ansible(lab, &beds)), (CLUSH, clush(&beds))] {
        others.push(
            match command.and_then(|command| beds.measure_reach(command, patience)) {
                Ok(rate) => single((name, rate)),
                Err(error) => Samples {
                    name: name.to_owned(),
                    rounds: Vec::new(),
                    failure: Some(format!("{error:#}")),
                },
            },
        );
    }
    others.insert(0, single((&format!("{THREE_NODES}, warm"), hosts as f64 / warm)));
    others.insert(0, single((&format!("{THREE_NODES}, cold"), hosts as f64 / cold)));
    let title = format!("{hosts} hosts, as far as {} s last", patience.as_secs());
    outcome.tables.push(table(title, "hosts a second", others));
    Ok(())
}

fn table(title: String, unit: &'static str, samples: Vec<Samples>) -> Table {
    Table { title, unit, samples }
}

/// Returns a single measurement as samples.
fn single((name, figure): (&str, f64)) -> Samples {
    Samples {
        name: name.to_owned(),
        rounds: vec![vec![figure]],
        failure: None,
    }
}

fn printed_path(file: &Path) -> String {
    format!("@{}", file.display())
}

fn ansible(lab: &Lab, beds: &Beds) -> anyhow::Result<Command> {
    let playbook = lab.peers.ansible.command()?.get_program().to_owned();
    let mut command = Command::new(PathBuf::from(playbook).with_file_name("ansible"));
    command
        .args(["all", "-f", "50", "-m", "raw", "-a", "true", "-i"])
        .arg(&beds.names)
        .env("ANSIBLE_SSH_ARGS", format!("-F {}", beds.config.display()))
        .env("ANSIBLE_HOME", lab.path("ansible_home"))
        .env("LC_ALL", "C.UTF-8")
        .env_remove("SSH_AUTH_SOCK");
    Ok(command)
}

fn clush(beds: &Beds) -> anyhow::Result<Command> {
    let mut command = Command::new("clush");
    command
        .args(["-q", "-f", "50", "-o"])
        .arg(format!("-F {}", beds.config.display()))
        .arg("--hostfile")
        .arg(&beds.names)
        .arg("true")
        .env_remove("SSH_AUTH_SOCK");
    Ok(command)
}

/// NATS, and nodes with a daemon each.
struct Fleet {
    operator: Daemon,
    nodes: Vec<(Daemon, Child)>,
    nats: Child,
    monitor: u16,
}

impl Fleet {
    fn start(lab: &Lab, name: &str, count: usize, config: &Path) -> anyhow::Result<Self> {
        let (port, monitor) = (free_port()?, free_port()?);
        let nats = Command::new("nats-server")
            .args([
                "-a",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-m",
                &monitor.to_string(),
            ])
            .arg("-js")
            .arg("-sd")
            .arg(lab.path(&format!("nats-{name}")))
            // It ends with this program: see `trunkline_testkit::directory`.
            .env("TMPDIR", lab.path(""))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("running nats-server")?;
        let mut fleet = Self {
            operator: lab.daemon()?,
            nodes: Vec::new(),
            nats,
            monitor,
        };
        let url = format!("nats://127.0.0.1:{port}");
        wait_for("the fleet", || {
            measure::time(fleet.operator.trunkline().args(["fleet", "init", &url])).is_ok()
        })?;
        let key = fleet.operator.trunkline().args(["fleet", "key"]).output()?;
        let key = output_text("trunkline fleet key", key)?;
        for number in 1..=count {
            let daemon = lab.daemon()?;
            let mut join = daemon.trunkline();
            join.args(["fleet", "join", &url, "--name", &format!("node{number}")]);
            join.args(["--allow", key.trim(), "--ssh-config"]).arg(config);
            let log = fs::File::create(lab.path(&format!("{name}-node{number}.log")))?;
            let child = join.stdin(Stdio::null()).stderr(log).spawn()?;
            fleet.nodes.push((daemon, child));
        }
        wait_for("the nodes", || {
            fleet.shares().is_some_and(|shares| {
                shares.len() == count && shares.iter().sum::<u64>() == 256 && !shares.contains(&0)
            })
        })?;
        Ok(fleet)
    }

    /// Returns the number of shards of each node.
    fn shares(&self) -> Option<Vec<u64>> {
        let output = self
            .operator
            .trunkline()
            .args(["fleet", "status", "--json"])
            .output();
        let status: Value = serde_json::from_slice(&output.ok()?.stdout).ok()?;
        let nodes = status["nodes"].as_array()?;
        nodes.iter().map(|node| node["shards"].as_u64()).collect()
    }

    fn run(&self, names: &Path) -> Command {
        let mut run = self.operator.trunkline();
        run.args(["run", "--fleet", "-n", "-H"]).arg(printed_path(names));
        run.args(["--", "true"]);
        run
    }

    /// Returns the traffic of NATS so far.
    fn traffic(&self) -> anyhow::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.monitor))?;
        stream.write_all(b"GET /varz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("NATS answers nothing")?;
        Ok(serde_json::from_str(body)?)
    }

    /// The most memory that each process has had, in MiB.
    fn memory(&self) -> anyhow::Result<Vec<Samples>> {
        let mut all = Vec::new();
        let mut add = |name: String, pid: u32| -> anyhow::Result<()> {
            let mebibytes = measure::peak_memory_of(pid)? as f64 / f64::from(1 << 20);
            all.push(single((&name, mebibytes)));
            Ok(())
        };
        for (number, (daemon, node)) in (1..).zip(&self.nodes) {
            add(format!("node {number}"), node.id())?;
            add(
                format!("its daemon {number}"),
                daemon.pid().context("a daemon has ended")?,
            )?;
        }
        add("nats-server".into(), self.nats.id())?;
        Ok(all)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for (_, node) in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = self.nats.kill();
        let _ = self.nats.wait();
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_so() {
        ensure!(
            begun.elapsed() < Duration::from_secs(60),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Light servers, in processes of their own, with one configuration and one list for all their hosts.
struct Beds {
    beds: Vec<Bed>,
    config: PathBuf,
    names: PathBuf,
}

struct Bed {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Beds {
    fn start(lab: &Lab, hosts: usize) -> anyhow::Result<Self> {
        let mut all = Self {
            beds: Vec::new(),
            config: lab.path("light_config"),
            names: lab.path("light_names"),
        };
        let (mut config, mut names) = (String::new(), String::new());
        for (group, first) in (0_u8..).zip((0..hosts).step_by(HOSTS_OF_A_BED)) {
            let mut child = Command::new(lab.program("trunkline-testbed")?)
                .arg("--light")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let stdin = child.stdin.take().context("no input")?;
            let stdout = BufReader::new(child.stdout.take().context("no output")?);
            let mut bed = Bed { child, stdin, stdout };
            let told = bed.read_report()?;
            let file = told["ssh_config"].as_str().context("no configuration")?;
            let pattern = format!("127.{}.*", group + 1);
            config += &fs::read_to_string(file)?.replace("127.*", &pattern);
            all.beds.push(bed);
            for number in 1..=HOSTS_OF_A_BED.min(hosts - first) {
                names += &trunkline_testkit::LightServer::host(group, u16::try_from(number)?);
                names.push('\n');
            }
        }
        fs::write(&all.config, config)?;
        fs::write(&all.names, names)?;
        Ok(all)
    }

    /// Returns the number of commands that all hosts have executed so far.
    fn executions(&mut self) -> anyhow::Result<usize> {
        let mut all = 0;
        for bed in &mut self.beds {
            let told = bed.ask()?;
            all += usize::try_from(told["executions"].as_u64().context("no count")?)?;
        }
        Ok(all)
    }

    /// Returns the number of hosts a second that a program reaches, until it ends or this time has passed.
    fn measure_reach(&mut self, mut command: Command, patience: Duration) -> anyhow::Result<f64> {
        let before = self.executions()?;
        let name = command.get_program().display().to_string();
        let begun = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("running {name}"))?;
        while begun.elapsed() < patience && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let _ = child.kill();
        child.wait()?;
        let reached = self.executions()? - before;
        ensure!(reached > 0, "{name} has reached no host");
        Ok(reached as f64 / seconds)
    }
}

impl Bed {
    fn read_report(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).context("a light server tells nothing")
    }

    fn ask(&mut self) -> anyhow::Result<Value> {
        self.stdin.write_all(b"\n")?;
        self.read_report()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
