//! The cost of being watched: metrics, the audit trail and recordings.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use trunkline_testkit::{Sshd, write_ssh_config};

use super::{Outcome, Row, Table, Target, Verdict, ratio};
use crate::lab::{Daemon, Lab};
use crate::measure::{self, Contestant, in_turns};

pub(super) const ROW: Row = Row {
    name: "metrics",
    title: "what metrics, the audit trail and recordings cost",
    measure,
};

const OPEN_METRICS: &str = "OpenMetrics, which Prometheus asks for";
const PLAIN_TEXT: &str = "Prometheus' own text";
const UNREAD: &str = "metrics that nobody reads";
const SCRAPED: &str = "metrics scraped once a second";
const OFF: &str = "neither audit trail nor recordings";
const AUDITED: &str = "audit = \"on\"";
const STRICT: &str = "audit = \"strict\"";
const RECORDED: &str = "recorded";

/// The amount of a terminal's output in one run: a program's output, not the data of a copy.
const TERMINAL_BYTES: u64 = 32 << 20;

fn measure(lab: &Lab) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome {
        notes: vec![
            "The daemon counts always, which is a few additions for each packet; what can be left out is that somebody \
             reads. It has all hosts of the first table connected while it is scraped."
                .into(),
            "A round's figure for `true` is the mean of all its commands, not their median: a scrape meets few of them."
                .into(),
        ],
        ..Outcome::default()
    };
    scrapes(lab, &mut outcome)?;
    trails(lab, &mut outcome)?;
    Ok(outcome)
}

/// Reading metrics, and what that costs others.
fn scrapes(lab: &Lab, outcome: &mut Outcome) -> anyhow::Result<()> {
    let hosts: u32 = lab.size(1000, 100);
    let server = lab
        .server()
        .config("Compression no")
        .any_loopback_address()
        .start()?;
    let config = many(lab, &server, hosts)?;
    let daemon = lab.daemon()?;
    let mut connect = daemon.trunkline();
    connect
        .arg("run")
        .arg("-F")
        .arg(&config)
        .arg("-H")
        .arg(format!("h[0-{}]", hosts - 1));
    measure::time(connect.args(["--", "true"]))?;
    let socket = daemon.metrics();
    let connected = scrape(&socket, true)?
        .lines()
        .filter(|line| line.starts_with("trunkline_connections{") && line.contains("\"connected\""))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok())
        .sum::<u32>();
    ensure!(connected >= hosts, "{connected} of {hosts} hosts are connected");

    let times = lab.size(50, 20);
    let reading = |name: &'static str, open_metrics| {
        let socket = &socket;
        Contestant::new(name, move || {
            let one = || {
                let begun = Instant::now();
                scrape(socket, open_metrics)?;
                Ok(1e3 * begun.elapsed().as_secs_f64())
            };
            (0..times).map(|_| one()).collect()
        })
    };
    let table = Table {
        title: format!("one scrape of {hosts} connected hosts"),
        unit: "ms",
        samples: in_turns(5, &mut [reading(OPEN_METRICS, true), reading(PLAIN_TEXT, false)]),
    };
    outcome.verdicts.push(Verdict {
        what: format!("a scrape of {hosts} hosts"),
        measured: table.median(OPEN_METRICS),
        target: Target::AtMost(10.0),
        unit: "ms",
    });
    outcome.tables.push(table);

    let pid = daemon.pid().context("the daemon has ended")?;
    let (before, scrapes) = (measure::cpu_of(pid)?, lab.size(1000, 200));
    for _ in 0..scrapes {
        scrape(&socket, true)?;
    }
    let cpu = (measure::cpu_of(pid)? - before).as_secs_f64();
    outcome.verdicts.push(Verdict {
        what: "CPU time of the daemon for one scrape a second".into(),
        measured: Some(100.0 * cpu / f64::from(scrapes)),
        target: Target::AtMost(1.0),
        unit: "% of a core",
    });

    let works = [(UNREAD, false), (SCRAPED, true)];
    let work = |measure: &dyn Fn() -> anyhow::Result<f64>, rounds| {
        let contestant = |(name, scraped): (&'static str, bool)| {
            let socket = &socket;
            Contestant::new(name, move || {
                let _scraping = scraped.then(|| Scraping::start(socket));
                Ok(vec![measure()?])
            })
        };
        in_turns(rounds, &mut works.map(contestant))
    };
    let rounds = lab.size(9, 5);
    let warm = Table {
        title: format!("a warm `true` by trunkline ssh, {hosts} hosts connected"),
        unit: "ms",
        samples: work(&|| true_for(&daemon, &config, lab.size(4, 2)), rounds),
    };
    let bulk = Table {
        title: format!("one download, {hosts} hosts connected"),
        unit: "GB/s",
        samples: work(&|| download(&daemon, &config, lab.size(2 << 30, 1 << 30)), rounds),
    };
    outcome.verdicts.extend([
        Verdict {
            what: "warm latency with scraping".into(),
            measured: ratio(warm.median(SCRAPED), warm.median(UNREAD)),
            target: Target::AtMost(1.01),
            unit: "of that without",
        },
        Verdict {
            what: "bulk throughput with scraping".into(),
            measured: ratio(bulk.median(SCRAPED), bulk.median(UNREAD)),
            target: Target::AtLeast(0.99),
            unit: "of that without",
        },
    ]);
    outcome.tables.extend([warm, bulk]);
    Ok(())
}

/// The audit trail and recordings, each with a daemon of its own.
fn trails(lab: &Lab, outcome: &mut Outcome) -> anyhow::Result<()> {
    let server = lab.server().config("Compression no").start()?;
    let config = lab.path("trails");
    write_ssh_config(&config, [server.host_entry("h0")])?;
    let daemons = [
        (OFF, ""),
        (AUDITED, "audit = \"on\"\n"),
        (STRICT, "audit = \"strict\"\n"),
        (RECORDED, "record_hosts = [\"*\"]\n"),
    ];
    let daemons = daemons
        .into_iter()
        .map(|(name, settings)| {
            let daemon = lab.daemon_with(settings)?;
            measure::time(&mut daemon.ssh(&config, "h0", "true"))?;
            Ok((name, daemon))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let work = |names: &[&str], measure: &dyn Fn(&Daemon) -> anyhow::Result<f64>, rounds| {
        let mut contestants: Vec<_> = daemons
            .iter()
            .filter(|(name, _)| names.contains(name))
            .map(|(name, daemon)| Contestant::new(*name, move || Ok(vec![measure(daemon)?])))
            .collect();
        in_turns(rounds, &mut contestants)
    };
    let rounds = lab.size(9, 3);
    outcome.tables.extend([
        Table {
            title: "a warm `true` by trunkline ssh, with an audit trail".into(),
            unit: "ms",
            samples: work(
                &[OFF, AUDITED, STRICT],
                &|daemon| true_for(daemon, &config, lab.size(2, 1)),
                rounds,
            ),
        },
        Table {
            title: "one download, with an audit trail".into(),
            unit: "GB/s",
            samples: work(
                &[OFF, AUDITED, STRICT],
                &|daemon| download(daemon, &config, lab.size(1 << 30, 512 << 20)),
                rounds,
            ),
        },
        Table {
            title: format!("{} MiB of lines on a terminal", TERMINAL_BYTES >> 20),
            unit: "MB/s",
            samples: work(&[OFF, RECORDED], &|daemon| on_terminal(daemon, &config), rounds),
        },
    ]);
    Ok(())
}

/// Hosts `h0` and up, each an address of one server.
fn many(lab: &Lab, server: &Sshd, hosts: u32) -> anyhow::Result<PathBuf> {
    let mut entries = Vec::new();
    for n in 0..hosts {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + n);
        let address = SocketAddr::new(address.into(), server.port());
        server.trust_at(address)?;
        entries.push(server.host_entry(&format!("h{n}")).with_address(address));
    }
    let config = lab.path("watched");
    write_ssh_config(&config, entries)?;
    Ok(config)
}

/// Milliseconds of a warm `true`: the mean of as many as run in so many seconds.
fn true_for(daemon: &Daemon, config: &Path, seconds: u64) -> anyhow::Result<f64> {
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < Duration::from_secs(seconds) {
        measure::time(&mut daemon.ssh(config, "h0", "true"))?;
        count += 1;
    }
    Ok(1e3 * begun.elapsed().as_secs_f64() / f64::from(count))
}

/// GB/s of a download of so many bytes.
fn download(daemon: &Daemon, config: &Path, bytes: u64) -> anyhow::Result<f64> {
    let seconds = measure::time(&mut daemon.ssh(config, "h0", &format!("head -c {bytes} /dev/zero")))?;
    Ok(bytes as f64 / seconds / 1e9)
}

/// MB/s of lines that a session with a terminal shows.
fn on_terminal(daemon: &Daemon, config: &Path) -> anyhow::Result<f64> {
    let mut ssh = daemon.trunkline();
    ssh.args(["ssh", "-tt", "-F"]).arg(config).args(["h0", "--"]);
    // Without the server's terminal's own work on each line.
    ssh.arg(format!(
        "stty -opost; yes 'a line of what a program prints' | head -c {TERMINAL_BYTES}"
    ));
    Ok(TERMINAL_BYTES as f64 / measure::time(&mut ssh)? / 1e6)
}

/// Reads all metrics, as Prometheus does.
fn scrape(socket: &Path, open_metrics: bool) -> anyhow::Result<String> {
    let accept = match open_metrics {
        true => "application/openmetrics-text;version=1.0.0",
        false => "text/plain",
    };
    let mut stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
    stream.write_all(
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")
            .as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("\ntrunkline_build_info{"),
        "{}",
        answer.lines().next().unwrap_or("no answer")
    );
    Ok(answer)
}

/// Somebody who reads metrics once a second, until this is dropped.
struct Scraping {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scraping {
    fn start(socket: &Path) -> Self {
        let (stop, stopped) = mpsc::channel();
        let socket = socket.to_owned();
        let thread = std::thread::spawn(move || {
            loop {
                if let Err(error) = scrape(&socket, true) {
                    eprintln!("  scraping: {error:#}");
                }
                if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Scraping {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
