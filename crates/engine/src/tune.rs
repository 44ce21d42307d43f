//! Tuning: measures a path, and remembers what moves data fastest on it.
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | the order of measurements, within a budget of time and bytes |
//! | `flow` | a session over which data is timed |
//! | `sample` | the data: text and random bytes |
//! | `rsync` | rsync over plain ssh, run for real |
//! | `advice` | options for plain ssh, scp and rsync |
//! | `local` | measurements of this machine alone |
//! | `choice` | the best settings by the figures |

mod advice;
mod choice;
mod flow;
mod local;
mod plan;
mod rsync;
mod sample;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream;

use crate::config::{HostConfig, Request};
use crate::connection::ConnectionInfo;
use crate::connection::session::Command;
use crate::engine::{Engine, Host};
use crate::error::Error;
use crate::interaction::Interaction;
use crate::memory::tuned;
pub use crate::memory::tuned::{Choice, Rates, from_facts, recall, remember};
use crate::prompt::Answerer;
use crate::sftp::Sftp;
use crate::transfer::{NEAR, SESSIONS_A_CONNECTION, usual_streams};
use flow::{Lane, Moved, Names};
pub use local::measure_local;
use plan::{Budget, Cell, Shape, Slot, Stage};
use rsync::{Rsync, Variant, Work};
pub(crate) use sample::Samples;
pub use trunkline_request::tuning::{
    Advice, CipherRow, Direction, Link, LocalReport, LocalRow, Report, RequestRow, RsyncRow, SIZES,
    SignatureRow, Step, StreamsRow, TuneOptions,
};

/// Keeps the better of the old and the new measurement, because disturbances only slow measurements. Returns their
/// difference as a fraction of the better.
fn keep(rates: &mut Rates, direction: Direction, rate: f64) -> Option<f64> {
    let kept = match direction {
        Direction::Down => &mut rates.down,
        Direction::Up => &mut rates.up,
    };
    let before = kept.replace(kept.map_or(rate, |kept| kept.max(rate)))?;
    Some(1.0 - before.min(rate) / before.max(rate).max(1.0))
}

/// Returns how often everything is measured.
fn rounds(options: &TuneOptions) -> usize {
    if options.full { 3 } else { 2 }
}

fn longest(options: &TuneOptions) -> Duration {
    Duration::from_millis(if options.full { 2000 } else { 500 })
}

/// Measures the path to a host, on separate connections and within a budget; remembers nothing.
///
/// Calls `watch` as each measurement begins. When `stop` completes, ends with an error. In all cases the files on the
/// server are removed.
///
/// # Errors
/// There is no connection or no place for files, or a connection was lost; or [`Error::NeedsSystemSsh`].
pub async fn tune(
    engine: &Engine,
    request: &Request,
    interaction: &Interaction,
    options: &TuneOptions,
    watch: &(dyn Fn(Step) + Send + Sync),
    stop: impl Future<Output = ()>,
) -> Result<Report, Error> {
    let config = engine.resolve(request).await?;
    let mut tuning = Tuning {
        engine: engine.isolate(None),
        request: request.clone(),
        interaction: interaction.clone(),
        config,
        options: options.clone(),
        watch,
        begun: Instant::now(),
        samples: Samples::new(),
        lanes: HashMap::new(),
        names: None,
        length: 0,
        rtt: Duration::ZERO,
        largest: 0,
        differences: Vec::new(),
        report: Report::default(),
    };
    let measured = tokio::select! {
        measured = tuning.measure() => measured,
        () = stop => Err(Error::Cancelled("its results are not kept")),
    };
    tuning.clean_up().await;
    measured?;
    Ok(tuning.report)
}

/// A tuning in progress.
struct Tuning<'a> {
    engine: Engine,
    request: Request,
    interaction: Interaction,
    /// The configuration.
    config: Arc<HostConfig>,
    options: TuneOptions,
    watch: &'a (dyn Fn(Step) + Send + Sync),
    begun: Instant,
    samples: Samples,
    /// The lanes by cipher and compression.
    lanes: HashMap<(&'static str, bool), Lane>,
    names: Option<Names>,
    /// The length of the files that are read.
    length: u64,
    rtt: Duration,
    /// The largest request that the server accepts.
    largest: u32,
    /// The differences between repeated measurements.
    differences: Vec<f64>,
    report: Report,
}

/// The longest file that is read repeatedly: the server keeps it in memory.
const LONGEST_FILE: u64 = 32 * 1024 * 1024;

impl Tuning<'_> {
    async fn measure(&mut self) -> Result<(), Error> {
        let info = self.measure_link().await?;
        let usual = (info.cipher, info.compressed);
        let mut ciphers = info.server_ciphers.clone();
        // The untuned settings come first: all others are compared with them.
        ciphers.sort_by_key(|cipher| *cipher != usual.0);
        ciphers.retain(|cipher| self.config.ciphers.iter().any(|allowed| allowed == cipher));
        let mut compresses = info.server_compresses;
        if info.answered == Answerer::Person {
            ciphers.retain(|cipher| *cipher == usual.0);
            compresses = false;
            self.note(
                "each connection would ask you to log in again, so ciphers, compression and several connections were not \
                 measured: use a key of an agent's for that",
            );
        }
        for stage in Stage::after_link(self.rtt) {
            // The best so far.
            let choice = choice::decide(&self.report, usual.0, usual.1);
            let best = ciphers.iter().copied().find(|cipher| *cipher == choice.cipher);
            let best = best.unwrap_or(usual.0);
            match stage {
                Stage::Link => {}
                Stage::Ciphers => self.measure_ciphers(&ciphers, usual).await?,
                Stage::Compression => {
                    ciphers.sort_by_key(|cipher| *cipher != best);
                    let cells = plan::compression_cells(&ciphers, compresses);
                    self.measure_cells(stage, &cells).await?;
                    if !info.server_compresses {
                        self.note("the server does not support compression");
                    }
                }
                Stage::Requests => self.measure_requests((best, choice.compression)).await?,
                Stage::Streams => self.measure_streams(&choice).await?,
                Stage::Rsync => {
                    // ssh uses the first cipher of its own list that the server accepts.
                    let ours = self.config.ciphers.iter();
                    let mut common = ours.filter(|name| info.server_ciphers.contains(&name.as_str()));
                    let stock = common.next().cloned().unwrap_or_default();
                    let compresses = self.config.compression && info.server_compresses;
                    self.report.advice = advice::for_ssh(&self.report, &stock, compresses);
                    let ssh = self.report.advice.first().map(|advice| advice.options.clone());
                    self.measure_rsync(&ssh.unwrap_or_default()).await?;
                    let for_rsync = advice::for_rsync(&self.report.rsync);
                    self.report.advice.extend(for_rsync);
                }
            }
        }
        self.report.seconds = self.begun.elapsed().as_secs_f64();
        let choice = choice::decide(&self.report, usual.0, usual.1);
        let usual_streams =
            Direction::BOTH.map(|direction| usual_streams(self.rtt, u64::MAX, direction == Direction::Up));
        self.report.verdict = choice::verdict(&self.report, &choice, usual.1, usual_streams);
        self.report.choice = Choice {
            rsync: advice::rsync_options(&self.report.advice, choice.compression),
            ..choice
        };
        Ok(())
    }

    /// Measures every cipher; the first is the usual one.
    async fn measure_ciphers(
        &mut self,
        ciphers: &[&'static str],
        usual: (&'static str, bool),
    ) -> Result<(), Error> {
        self.measure_cells(Stage::Ciphers, &plan::cipher_cells(ciphers))
            .await?;
        let best = choice::decide(&self.report, usual.0, usual.1).cipher;
        let rival = ciphers.iter().copied().find(|cipher| *cipher == best);
        if let Some(rival) = rival.filter(|rival| *rival != usual.0) {
            // Measure both again: among many ciphers, the fastest may be so by chance.
            self.measure_cells(Stage::Ciphers, &plan::cipher_cells(&[usual.0, rival]))
                .await?;
        }
        Ok(())
    }

    /// Measures the round trip and rate of a session as configured, and creates the files that other stages read.
    async fn measure_link(&mut self) -> Result<ConnectionInfo, Error> {
        self.tell(Stage::Link, 0, 3, "connecting");
        let host = self.host(None)?;
        let connection = host.connect().await?;
        let info = connection.info().cloned().ok_or_else(|| Error::Closed {
            host: self.config.original_host.clone(),
            why: "the engine was shut down".into(),
        })?;
        self.report = Report {
            host: self.config.original_host.clone(),
            address: format!(
                "{}@{}:{}",
                self.config.user, self.config.hostname, self.config.port
            ),
            server: info.server.clone(),
            program: env!("CARGO_PKG_VERSION").into(),
            machine: local::machine(),
            measured: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            ..Report::default()
        };
        self.tell(Stage::Link, 1, 3, "round trips");
        let mut rtt = Duration::MAX;
        for _ in 0..PINGS {
            rtt = rtt.min(connection.ping(PATIENCE).await?);
        }
        self.rtt = rtt;
        self.report.link.rtt = rtt.as_secs_f64();

        let sftp = host.sftp().await?;
        let limits = sftp.limits().await?;
        self.largest = limits.max_read.min(limits.max_write);
        let names = Names::new(&flow::directory(&sftp, self.options.directory.as_deref()).await?);
        let mut lane = Lane::new(sftp, &self.samples, self.rtt);
        // Noted before the files are created: every created file is removed.
        self.names = Some(names.clone());
        lane.create(&names).await?;
        self.tell(Stage::Link, 2, 3, "rates");
        let mut wanted = FIRST_UNDER_WAY;
        for compressible in [false, true] {
            let filled = self
                .find_rate(&lane, Direction::Up, compressible, true, &mut wanted)
                .await?;
            lane.length = match lane.length {
                0 => filled.bytes,
                length => length.min(filled.bytes),
            };
            if !compressible {
                let _first = keep(&mut self.report.link.rates, Direction::Up, filled.rate);
            }
        }
        self.length = lane.length;
        let moved = self
            .find_rate(&lane, Direction::Down, false, false, &mut wanted)
            .await?;
        let _first = keep(&mut self.report.link.rates, Direction::Down, moved.rate);
        self.lanes.insert((info.cipher, info.compressed), lane);
        Ok(info)
    }

    /// Measures the rate of a session when only the round trip of its path is known: puts more and more bytes under way
    /// until that changes nothing. With `fill`, writes the files that are read later. `wanted` is the amount that
    /// sufficed before, and is updated. Each step takes several round trips, so there are few of them.
    async fn find_rate(
        &mut self,
        lane: &Lane,
        direction: Direction,
        compressible: bool,
        fill: bool,
        wanted: &mut f64,
    ) -> Result<Moved, Error> {
        const STEP: f64 = 8.0;
        let mut rate = None;
        *wanted = (*wanted / STEP).max(FIRST_UNDER_WAY);
        loop {
            let left = self.time_left(Stage::Link);
            let slot = left.share(8, self.rtt, rate, longest(&self.options));
            let shape = Shape::holding(*wanted, self.largest);
            let moved = if fill {
                let moved = lane.fill(compressible, shape, slot, LONGEST_FILE).await?;
                self.report.bytes += moved.bytes;
                moved
            } else {
                self.run(lane, direction, compressible, shape, slot, 0).await?
            };
            let window = *wanted / self.rtt.as_secs_f64().max(1e-6);
            let gained = rate.is_none_or(|rate| moved.rate > rate * 1.2);
            if moved.rate > window / 2.0 && gained && *wanted < plan::MOST_UNDER_WAY {
                *wanted *= STEP;
            } else if rate.is_some() {
                return Ok(moved);
            }
            // Roughly known by now: the next measurement lasts long enough to be meaningful.
            rate = Some(moved.rate);
        }
    }

    /// Measures cells in rounds, in their order, as long as the stage's part of the budget lasts.
    async fn measure_cells(&mut self, stage: Stage, cells: &[Cell]) -> Result<(), Error> {
        let rounds = rounds(&self.options);
        let slot = self.slot(stage, cells.len() * rounds);
        self.open_lanes(cells).await?;
        // Without those of the first cipher nothing could be decided.
        let needed = cells
            .iter()
            .take_while(|cell| cell.cipher == cells[0].cipher)
            .count();
        let mut done = 0;
        'rounds: for _ in 0..rounds {
            for cell in cells {
                if done >= needed && self.is_spent(stage) {
                    break 'rounds;
                }
                let Some(lane) = self.lanes.remove(&(cell.cipher, cell.compression)) else {
                    continue;
                };
                let what = format!(
                    "{}{}, {}, {}",
                    cell.cipher,
                    if cell.compression { " with zlib" } else { "" },
                    if cell.compressible { "text" } else { "random bytes" },
                    cell.direction.as_str()
                );
                self.tell(stage, done, cells.len() * rounds, &what);
                let shape = self.filling(cell.direction, cell.compressible && cell.compression);
                let moved = self
                    .run(&lane, cell.direction, cell.compressible, shape, slot, 0)
                    .await;
                self.lanes.insert((cell.cipher, cell.compression), lane);
                self.keep_cell(cell, moved?.rate);
                done += 1;
            }
        }
        if done < cells.len() {
            self.note(&format!(
                "{}: {} of {} measurements fit into the limits",
                stage.as_str(),
                done,
                cells.len()
            ));
        }
        Ok(())
    }

    /// Opens the lanes for cells, a few at a time.
    async fn open_lanes(&mut self, cells: &[Cell]) -> Result<(), Error> {
        let mut wanted: Vec<(&'static str, bool)> = Vec::new();
        for cell in cells {
            let key = (cell.cipher, cell.compression);
            if !wanted.contains(&key) && !self.lanes.contains_key(&key) {
                wanted.push(key);
            }
        }
        let this = &*self;
        let opened: Vec<_> = stream::iter(wanted)
            .map(|key| async move { (key, this.lane(key).await) })
            .buffered(LOGINS)
            .collect()
            .await;
        for (key, lane) in opened {
            match lane {
                Ok(Some(lane)) => {
                    self.lanes.insert(key, lane);
                }
                Ok(None) => self.note(&format!("{}: the server did not agree to it", key.0)),
                Err(error) => self.note(&format!("{}: {error}", key.0)),
            }
        }
        Ok(())
    }

    /// Opens a session with this cipher and compression; returns `None` if the server agreed to others.
    async fn lane(&self, (cipher, compression): (&'static str, bool)) -> Result<Option<Lane>, Error> {
        let host = self.host(Some((cipher, compression)))?;
        host.warm().await?;
        let is = |info: &ConnectionInfo| info.cipher == cipher && info.compressed == compression;
        if !host.connection().info().is_some_and(is) {
            return Ok(None);
        }
        let mut lane = Lane::new(host.sftp().await?, &self.samples, self.rtt);
        if let Some(names) = &self.names {
            lane.open(names, self.length).await?;
        }
        Ok(Some(lane))
    }

    /// Measures request sizes and depths, with the best settings so far.
    async fn measure_requests(&mut self, best: (&'static str, bool)) -> Result<(), Error> {
        let Some(lane) = self.lanes.remove(&best) else {
            return Ok(());
        };
        let measured = self.measure_shapes(&lane).await;
        self.lanes.insert(best, lane);
        measured
    }

    async fn measure_shapes(&mut self, lane: &Lane) -> Result<(), Error> {
        let usual = self.filling(Direction::Down, false).depth;
        let shapes = plan::shapes(self.largest, usual, self.options.full);
        let rounds = rounds(&self.options);
        let measurements = shapes.len() * 2 * rounds;
        let slot = self.slot(Stage::Requests, measurements);
        let mut done = 0;
        for _ in 0..rounds {
            for &shape in &shapes {
                for direction in Direction::BOTH {
                    // At least one in each direction.
                    if done > 1 && self.is_spent(Stage::Requests) {
                        break;
                    }
                    let Shape { size, depth } = shape;
                    let what = format!("{depth} x {size} bytes, {}", direction.as_str());
                    self.tell(Stage::Requests, done, measurements, &what);
                    let moved = self.run(lane, direction, false, shape, slot, 0).await?;
                    self.keep_request(shape, direction, moved.rate);
                    done += 1;
                }
            }
        }
        if done < shapes.len() * 2 {
            self.note(&format!(
                "request sizes: {done} of {} measurements fit into the limits",
                shapes.len() * 2
            ));
        }
        self.report.requests.sort_by_key(|row| (row.size, row.depth));
        Ok(())
    }

    /// Measures numbers of sessions, with the best settings so far, on as many connections as a copy has.
    async fn measure_streams(&mut self, choice: &Choice) -> Result<(), Error> {
        let config = tuned::apply(choice, self.config.clone(), &self.request);
        let host = self.engine.host_with(config, &self.request, &self.interaction)?;
        let rounds = rounds(&self.options);
        let numbers = if self.options.full { 9 } else { 3 };
        let measurements = numbers * 2 * rounds;
        let slot = self.slot(Stage::Streams, measurements);
        let mut lanes: Vec<Lane> = Vec::new();
        let mut tried: [Vec<(usize, f64)>; 2] = Default::default();
        let mut done = 0;
        loop {
            let before = done;
            for (direction, tried) in Direction::BOTH.into_iter().zip(&mut tried) {
                // At least the usual number in each direction.
                if !tried.is_empty() && self.is_spent(Stage::Streams) {
                    continue;
                }
                let usual = usual_streams(self.rtt, u64::MAX, direction == Direction::Up);
                let Some(streams) = plan::next_streams(usual, self.options.full, tried) else {
                    continue;
                };
                let of = measurements.max(done + rounds);
                self.tell(Stage::Streams, done, of, &format!("opening {streams}"));
                self.open_streams(&host, &mut lanes, streams).await?;
                let some = &lanes[..streams.min(lanes.len())];
                let mut best: f64 = 0.0;
                for _ in 0..rounds {
                    let what = format!("{}, {}", some.len(), direction.as_str());
                    self.tell(Stage::Streams, done, of, &what);
                    let rate = self.run_together(some, direction, slot).await?;
                    self.keep_streams(some.len(), direction, rate);
                    best = best.max(rate);
                    done += 1;
                }
                tried.push((streams, best));
            }
            if done == before {
                break;
            }
        }
        self.report.streams.sort_by_key(|row| row.streams);
        Ok(())
    }

    /// Opens sessions, a few at a time, until there are `streams`, or the server accepts no more.
    async fn open_streams(
        &mut self,
        host: &Host,
        lanes: &mut Vec<Lane>,
        streams: usize,
    ) -> Result<(), Error> {
        // More would wait for each other.
        let streams = host.most_sessions().map_or(streams, |most| streams.min(most));
        let this = &*self;
        let opened: Vec<_> = stream::iter(lanes.len()..streams)
            .map(|nth| this.stream(host, nth))
            .buffered(LOGINS)
            .collect()
            .await;
        for lane in opened {
            match lane {
                Ok(lane) => lanes.push(lane),
                Err(error) if lanes.is_empty() => return Err(error),
                Err(error) => {
                    let note = format!("no more than {} sessions: {error}", lanes.len());
                    if !self.report.notes.contains(&note) {
                        self.note(&note);
                    }
                }
            }
        }
        Ok(())
    }

    async fn stream(&self, host: &Host, nth: usize) -> Result<Lane, Error> {
        let apart = self.rtt < NEAR || nth.is_multiple_of(SESSIONS_A_CONNECTION);
        let sftp = if apart {
            host.sftp_apart().await?
        } else {
            host.sftp().await?
        };
        let mut lane = Lane::new(sftp, &self.samples, self.rtt);
        if let Some(names) = &self.names {
            lane.open(names, self.length).await?;
        }
        Ok(lane)
    }

    /// Measures rsync over the system's ssh, if both ends have it. `ssh` are the best options found for plain ssh.
    async fn measure_rsync(&mut self, ssh: &[String]) -> Result<(), Error> {
        let Some(names) = self.names.clone() else {
            return Ok(());
        };
        if !rsync::is_here(&self.request) {
            self.note("rsync: not installed on this machine");
            return Ok(());
        }
        let host = self.host(None)?;
        let there = match host.start(&Command::exec("command -v rsync")).await {
            Ok(looking) => looking.output_within(None, 64 * 1024, |_| ()).await,
            Err(error) => Err(error),
        };
        if !there.is_ok_and(|output| output.is_some_and(|output| output.status.success())) {
            self.note("rsync: the server has none, or runs no commands");
            return Ok(());
        }
        let sftp = host.sftp().await?;
        let variants = Variant::all(ssh);
        let runs = (variants.len() * rsync::RUNS) as u64;
        let rate = self.report.link.rates.up.unwrap_or(1e6);
        let most = (rate * RSYNC_SECONDS) as u64;
        let bytes = most
            .min(self.time_left(Stage::Rsync).bytes / runs)
            .clamp(1 << 20, LONGEST_FILE / 2);
        let prepared = Rsync::prepare(&self.request, &sftp, names.rsync, &self.samples, bytes);
        let outcome = match prepared {
            Ok(mut rsync) => self.run_rsync(&mut rsync, &variants).await,
            Err(why) => Err(why),
        };
        if let Err(why) = outcome {
            self.note(&format!("rsync: {why}"));
        }
        Ok(())
    }

    async fn run_rsync(&mut self, rsync: &mut Rsync, variants: &[Variant]) -> Result<(), String> {
        self.tell(Stage::Rsync, 0, variants.len() * rsync::RUNS, "as it is");
        let one = rsync.run(&variants[0]).await?;
        let left = self.time_left(Stage::Rsync);
        let fits = |variants: &[&Variant]| {
            let runs = (variants.len() * rsync::RUNS) as u64;
            one.as_secs_f64() * runs as f64 <= left.time.as_secs_f64() && rsync.bytes() * runs <= left.bytes
        };
        let mut variants: Vec<&Variant> = variants.iter().collect();
        for work in [Work::Changed, Work::New] {
            if !fits(&variants) {
                let count = variants.len();
                variants.retain(|variant| variant.work != work);
                self.note(&format!(
                    "rsync, {}: left out: {} runs of {:.1} s each do not fit into the limits",
                    work.as_str(),
                    (count - variants.len()) * rsync::RUNS,
                    one.as_secs_f64()
                ));
            }
        }
        let runs = variants.len() * rsync::RUNS;
        let bytes = rsync.bytes();
        let mut rows: Vec<RsyncRow> = variants.iter().map(|variant| variant.row(bytes)).collect();
        for run in 0..rsync::RUNS {
            for (nth, variant) in variants.iter().enumerate() {
                let what = format!("{}, {}", rows[nth].work, rows[nth].options.join(" "));
                self.tell(Stage::Rsync, run * variants.len() + nth, runs, &what);
                rows[nth].seconds.push(rsync.run(variant).await?.as_secs_f64());
                self.report.bytes += bytes;
            }
        }
        self.report.rsync = rows;
        Ok(())
    }

    /// Measures the rates of several sessions together.
    async fn run_together(&mut self, lanes: &[Lane], direction: Direction, slot: Slot) -> Result<f64, Error> {
        let shape = self.filling(direction, false);
        let slot = Slot {
            bytes: slot.bytes / lanes.len() as u64,
            ..slot
        };
        let step = self.length / lanes.len() as u64;
        let begun = Instant::now();
        let flows = lanes
            .iter()
            .zip(0..)
            .map(|(lane, nth)| lane.run(direction, false, shape, slot, step * nth));
        let moved: u64 = try_join_all(flows).await?.iter().map(|moved| moved.bytes).sum();
        self.report.bytes += moved;
        Ok(flow::rate(moved, begun.elapsed(), self.rtt))
    }

    async fn run(
        &mut self,
        lane: &Lane,
        direction: Direction,
        compressible: bool,
        shape: Shape,
        slot: Slot,
        start: u64,
    ) -> Result<Moved, Error> {
        let moved = lane.run(direction, compressible, shape, slot, start).await?;
        self.report.bytes += moved.bytes;
        Ok(moved)
    }

    /// Returns the shape that keeps the path busy.
    fn filling(&self, direction: Direction, compressed: bool) -> Shape {
        let rates = self.report.link.rates;
        let rate = match direction {
            Direction::Down => rates.down,
            Direction::Up => rates.up,
        };
        // Compression shrinks the text to a fifth.
        let rate = rate.unwrap_or(1e6) * if compressed { 5.0 } else { 1.0 };
        Shape::filling(rate, self.rtt, self.largest)
    }

    fn keep_cell(&mut self, cell: &Cell, rate: f64) {
        let rows = &mut self.report.ciphers;
        let is = |row: &CipherRow| row.cipher == cell.cipher && row.compression == cell.compression;
        let at = rows.iter().position(is).unwrap_or_else(|| {
            rows.push(CipherRow {
                cipher: cell.cipher.to_owned(),
                compression: cell.compression,
                compressible: Rates::default(),
                incompressible: Rates::default(),
            });
            rows.len() - 1
        });
        let row = &mut rows[at];
        let rates = if cell.compressible {
            &mut row.compressible
        } else {
            &mut row.incompressible
        };
        let difference = keep(rates, cell.direction, rate);
        self.note_difference(difference);
    }

    /// Records the difference between repeated measurements, which shows how much rates vary by chance.
    fn note_difference(&mut self, difference: Option<f64>) {
        self.differences.extend(difference);
        self.report.noise = choice::noise(&self.differences);
    }

    fn keep_request(&mut self, shape: Shape, direction: Direction, rate: f64) {
        let Shape { size, depth } = shape;
        let rows = &mut self.report.requests;
        let at = rows
            .iter()
            .position(|row| (row.size, row.depth) == (size, depth))
            .unwrap_or_else(|| {
                rows.push(RequestRow {
                    size,
                    depth,
                    rates: Rates::default(),
                });
                rows.len() - 1
            });
        let difference = keep(&mut rows[at].rates, direction, rate);
        self.note_difference(difference);
    }

    fn keep_streams(&mut self, streams: usize, direction: Direction, rate: f64) {
        let rows = &mut self.report.streams;
        let at = rows
            .iter()
            .position(|row| row.streams == streams)
            .unwrap_or_else(|| {
                rows.push(StreamsRow {
                    streams,
                    rates: Rates::default(),
                });
                rows.len() - 1
            });
        let difference = keep(&mut rows[at].rates, direction, rate);
        self.note_difference(difference);
    }

    /// Returns the host as configured, or with only this cipher and compression.
    fn host(&self, only: Option<(&'static str, bool)>) -> Result<Host, Error> {
        let config = match only {
            None => self.config.clone(),
            Some((cipher, compression)) => Arc::new(HostConfig {
                ciphers: [cipher.to_owned()].into(),
                compression,
                ..(*self.config).clone()
            }),
        };
        self.engine.host_with(config, &self.request, &self.interaction)
    }

    fn time_left(&self, stage: Stage) -> Slot {
        let budget = Budget {
            time: self.options.time,
            bytes: self.options.bytes,
            rtt: self.rtt,
        };
        budget.remaining(stage, self.begun.elapsed(), self.report.bytes)
    }

    fn slot(&self, stage: Stage, measurements: usize) -> Slot {
        let Rates { down, up } = self.report.link.rates;
        let slower = down.into_iter().chain(up).min_by(f64::total_cmp);
        self.time_left(stage)
            .share(measurements, self.rtt, slower, longest(&self.options))
    }

    fn is_spent(&self, stage: Stage) -> bool {
        let left = self.time_left(stage);
        left.time.is_zero() || left.bytes == 0
    }

    fn tell(&self, stage: Stage, done: usize, of: usize, what: &str) {
        (self.watch)(Step {
            stage: stage.as_str().into(),
            done,
            of,
            what: what.to_owned(),
        });
    }

    fn note(&mut self, note: &str) {
        self.report.notes.push(note.to_owned());
    }

    /// Removes the files from the server, over a remaining session or a new one.
    async fn clean_up(&mut self) {
        let Some(names) = self.names.take() else { return };
        let lane = self
            .lanes
            .values()
            .find(|lane| lane.sftp().link().end_reason().is_none());
        let sftp: Option<Sftp> = match lane {
            Some(lane) => Some(lane.sftp().clone()),
            None => match self.host(None) {
                Ok(host) => host.sftp().await.ok(),
                Err(_) => None,
            },
        };
        let Some(sftp) = sftp else { return };
        for name in names.all() {
            let removed = tokio::time::timeout(PATIENCE, sftp.remove(name)).await;
            let is_gone = match removed {
                Ok(Ok(())) => true,
                Ok(Err(error)) => error.is_no_such_file(),
                Err(_) => false,
            };
            if !is_gone {
                tracing::warn!("{name} on {} could not be removed", self.config.original_host);
            }
        }
    }
}

/// The number of measured round trips; the shortest counts.
const PINGS: usize = 5;
/// The time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most connections made at once: half of what sshd's MaxStartups allows before it drops any.
const LOGINS: usize = 4;
/// The time of a file for rsync at the rate of one session: longer than ssh and rsync take to start.
const RSYNC_SECONDS: f64 = 0.3;
/// The initial number of bytes under way.
const FIRST_UNDER_WAY: f64 = 64e3;
