//! The processes of one course: NATS servers, nodes with their daemons, and the paths between them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nkeys::KeyPair;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use trunkline_fleet::bucket::{Access, Bucket, Charter};
use trunkline_fleet::order::OrderedHost;
use trunkline_fleet::state::Terms;
use trunkline_request::destination::Destination;
use trunkline_testkit::{LightServer, Relay, directory};

use crate::fleet::TestFleet;
use crate::log::{last_words, log_at};
use crate::nats::{Nats, charter, create};

/// Into how many shards the hosts of a course are divided.
pub(super) const SHARDS: u16 = 16;

/// Everything that a course has, and takes with it.
pub(super) struct Site {
    pub(super) servers: Vec<Nats>,
    pub(super) nodes: Vec<Node>,
    pub(super) bucket: Bucket,
    pub(super) key: KeyPair,
}

impl Site {
    pub(super) async fn start(random: &mut StdRng, hosts: &LightServer, terms: Terms) -> Self {
        let servers = match random.random_range(0..3) {
            0 => Nats::cluster(),
            _ => vec![Nats::start("")],
        };
        let urls = servers.iter().map(|server| server.access().servers);
        let access = Access {
            servers: urls.collect::<Vec<_>>().join(","),
            ..servers[0].access()
        };
        let charter = Charter {
            terms,
            ..charter(SHARDS)
        };
        let bucket = create(&access, charter, servers.len()).await;
        let key = KeyPair::new_user();
        let count = random.random_range(3..=5);
        let mut nodes: Vec<Node> = (0..count)
            .map(|number| Node::new(number, &servers, &key, &hosts.ssh_config()))
            .collect();
        nodes.iter_mut().for_each(Node::start);
        Self {
            servers,
            nodes,
            bucket,
            key,
        }
    }
}

/// A command that takes so many milliseconds, for a host of a light server.
pub(crate) fn draw(group: u8, number: u16, takes: u64, mark: &str) -> OrderedHost {
    let name = LightServer::host(group, number);
    OrderedHost {
        destination: Destination::parse_hop(&name).unwrap(),
        command: format!("draw {takes} # {mark} {name}").into_bytes(),
        name,
    }
}

/// A node: `trunkline-fleet join`, and the daemon that it starts.
pub(crate) struct Node {
    pub(super) name: String,
    directory: TempDir,
    /// Its paths to the servers.
    relays: Vec<Relay>,
    process: Option<Child>,
}

impl Node {
    fn new(number: usize, servers: &[Nats], submitter: &KeyPair, ssh_config: &Path) -> Self {
        let name = format!("n{number}");
        let directory = directory().unwrap();
        let relay = |server: &Nats| Relay::start(([127, 0, 0, 1], server.port()).into()).unwrap();
        let relays: Vec<Relay> = servers.iter().map(relay).collect();
        let urls = relays
            .iter()
            .map(|relay| format!("nats://127.0.0.1:{}", relay.port()));
        let text = format!(
            "url = {:?}\nprefix = \"test\"\nname = {name:?}\nat_once = 6\nssh_config = {ssh_config:?}\n[[allow]]\nsubmitters = \
             [{:?}]\nhosts = [\"*\"]\n",
            urls.collect::<Vec<_>>().join(","),
            submitter.public_key()
        );
        fs::write(directory.path().join("fleet.toml"), text).unwrap();
        Self {
            name,
            directory,
            relays,
            process: None,
        }
    }

    /// A node of a fleet, whose hosts are those of a light server.
    pub(crate) fn member(fleet: &TestFleet, number: usize, hosts: &LightServer) -> Self {
        Self::new(
            number,
            std::slice::from_ref(&fleet.nats),
            &fleet.key,
            &hosts.ssh_config(),
        )
    }

    pub(crate) fn start(&mut self) {
        self.start_as(Command::new(env!("CARGO_BIN_EXE_trunkline-fleet")).arg("join"));
    }

    /// In a mount namespace of its own, where its state is on a disk of 2 MiB.
    pub(crate) fn start_on_a_small_disk(&mut self) {
        let state = self.directory.path().join("state");
        fs::create_dir(&state).unwrap();
        let mut unshare = Command::new("unshare");
        unshare
            .arg("-m")
            .args((!is_root()).then_some("-r"))
            .args(["sh", "-c"])
            .arg("mount -t tmpfs -o size=2m,mode=0700 tmpfs \"$1\" && exec \"$0\" join")
            .arg(env!("CARGO_BIN_EXE_trunkline-fleet"))
            .arg(&state);
        self.start_as(&mut unshare);
    }

    /// Leaves no room on its small disk.
    pub(crate) fn fill_disk(&self) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &pid, "-m"]);
        if !is_root() {
            enter.args(["-U", "--preserve-credentials"]);
        }
        let filler = self.directory.path().join("state/filler");
        // That it ends for want of room is the point.
        let filled = enter
            .args(["sh", "-c", "cat /dev/zero >\"$0\" 2>/dev/null; test -s \"$0\""])
            .arg(filler)
            .status()
            .unwrap();
        assert!(filled.success());
    }

    pub(crate) fn start_as(&mut self, command: &mut Command) {
        let process = command
            .env("TRUNKLINE_DIR", self.directory.path())
            .env_remove("SSH_AUTH_SOCK")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log_at(&self.directory.path().join("node.log")))
            .spawn()
            .unwrap();
        self.process = Some(process);
    }

    /// Starts it again where it has ended: it does where NATS does not answer at its beginning.
    pub(super) fn see_to(&mut self) {
        let has_ended = |process: &mut Child| !matches!(process.try_wait(), Ok(None));
        if self.process.as_mut().is_none_or(has_ended) {
            self.start();
        }
    }

    /// As SIGKILL ends it; of all that it has, or of the node alone.
    pub(super) fn kill(&mut self, with_daemon: bool) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if with_daemon {
            self.signal_daemon(Signal::KILL);
        }
    }

    pub(super) fn stop(&self, with_daemon: bool) {
        self.signal(Signal::STOP, with_daemon);
    }

    pub(super) fn go_on(&self) {
        self.signal(Signal::CONT, true);
    }

    fn signal(&self, signal: Signal, with_daemon: bool) {
        if let Some(process) = &self.process {
            let _ = kill_process(Pid::from_child(process), signal);
        }
        if with_daemon {
            self.signal_daemon(signal);
        }
    }

    fn signal_daemon(&self, signal: Signal) {
        for pid in daemons_of(self.directory.path()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Nothing passes any more between it and NATS: the path has gone dark, or connections break and are refused.
    pub(super) fn cut_off(&self, is_dark: bool) {
        for relay in &self.relays {
            match is_dark {
                true => relay.stall(),
                false => {
                    relay.refuse();
                    relay.reset();
                }
            }
        }
    }

    pub(super) fn reconnect(&self) {
        for relay in &self.relays {
            relay.resume();
            relay.accept();
        }
    }

    /// Returns the memory maps of the process of this name, the node or its daemon.
    pub(crate) fn maps_of(&self, name: &str) -> String {
        let node = self
            .process
            .as_ref()
            .and_then(|node| Pid::from_raw(node.id().cast_signed()));
        let pid = match name {
            "trunklined" => daemons_of(self.directory.path()).first().copied(),
            _ => node,
        };
        let path = format!("/proc/{}/maps", pid.unwrap().as_raw_nonzero());
        fs::read_to_string(path).unwrap()
    }

    /// The end of what it has said.
    pub(crate) fn log(&self) -> String {
        last_words(&self.name, &self.directory.path().join("node.log"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill(true);
        // A daemon that was being started when it was looked for.
        while self.directory.path().join("control.sock").exists() {
            let daemons = daemons_of(self.directory.path());
            if daemons.is_empty() {
                break;
            }
            for pid in daemons {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The daemons that were started with this directory.
fn daemons_of(directory: &Path) -> Vec<Pid> {
    let wanted = format!("TRUNKLINE_DIR={}", directory.display());
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_daemon = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let name = words.split(|byte| *byte == 0).next().unwrap_or_default();
        name.ends_with(b"trunklined")
            && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|variables| {
                variables
                    .split(|byte| *byte == 0)
                    .any(|variable| variable == wanted.as_bytes())
            })
    };
    pids.filter(is_daemon).filter_map(Pid::from_raw).collect()
}
