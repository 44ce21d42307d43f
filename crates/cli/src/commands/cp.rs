//! `trunkline cp`: files and trees to and from hosts.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::error::ErrorKind;
use futures_util::StreamExt as _;
use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{Mode, OFlags};
use trunkline_control::client::ClientError;
use trunkline_control::protocol::{
    CopyEnd, CopyEvent, CopyOptions, CopyPlace, CopyProgress, CopyRequest, HostRequest, Reply, Request,
};
use trunkline_request::World;
use trunkline_request::copy::is_descriptor;
use trunkline_request::hosts::expand;
use trunkline_text::Printable;

use crate::backend::{Backend, host_request, runtime};
use crate::questions::Conversation;

/// Arguments of `trunkline cp`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "trunkline cp [OPTIONS] SOURCE… TARGET")]
pub(crate) struct Args {
    /// Copy directories and everything in them; symbolic links in them are copied as links.
    #[arg(short, long)]
    recursive: bool,
    /// Keep times and permissions, as scp does.
    #[arg(short, long)]
    preserve: bool,
    /// Skip files that exist on the target with the same time or a later one.
    #[arg(short, long)]
    update: bool,
    /// Skip files that exist on the target with the same content; both ends hash them.
    #[arg(long)]
    checksum: bool,
    /// Keep partial large files when a copy is interrupted, and resume from what both ends' hashes show to be right. This
    /// is the default.
    #[arg(long, overrides_with = "no_partial")]
    partial: bool,
    /// Do not keep partial files.
    #[arg(long)]
    no_partial: bool,
    /// Skip names that match; a pattern with a slash is matched against the whole path below the source.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Limit the rate, in bytes a second; K, M and G are powers of 1,024.
    #[arg(long, value_name = "RATE", value_parser = size)]
    bwlimit: Option<u64>,
    /// Write each file to the target's disk (fsync) before renaming it into place.
    #[arg(long)]
    fsync: bool,
    /// Show what would be copied, and copy nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Name everything that is copied or skipped.
    #[arg(short, long)]
    verbose: bool,
    /// Show progress even if standard error is not a terminal, as one line a second.
    #[arg(long)]
    progress: bool,
    /// Print one JSON object for each name, and a summary at the end.
    #[arg(long, conflicts_with = "progress")]
    json: bool,
    /// The most sessions for a large file. By default, as many as the distance makes worthwhile.
    #[arg(long, value_name = "NUMBER")]
    streams: Option<usize>,
    /// Copy to each of these hosts, as for `run`; the target is then `:PATH`.
    #[arg(short = 'H', long, value_name = "HOSTS")]
    hosts: Vec<String>,
    /// Hosts to copy to at the same time.
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Use this ssh_config file instead of the user's and the system's.
    #[arg(short = 'F', value_name = "FILE")]
    config: Option<OsString>,
    /// The port.
    #[arg(short = 'P', value_name = "PORT")]
    port: Option<OsString>,
    /// An option of ssh_config.
    #[arg(short = 'o', value_name = "KEY=VALUE")]
    option: Vec<OsString>,
    /// What to copy, and where: local paths, HOST:PATH or USER@HOST:PATH. Write a local path that contains a colon with a slash
    /// before it, as ./a:b.
    // Options may stand between them, which `num_args` would take for the end.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(run(args, backend))
}

async fn run(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let world = World::current().context("reading the environment")?;
    let (target, sources) = match &*args.paths {
        [sources @ .., target] if !sources.is_empty() => (target, sources),
        _ => clap::Error::raw(
            ErrorKind::TooFewValues,
            "cp needs a source and a target: trunkline cp SOURCE… TARGET\n",
        )
        .exit(),
    };
    let sources = sources
        .iter()
        .map(|source| args.place(source, &world))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let targets = args.targets(target, &world)?;
    let remote = |place: &CopyPlace| matches!(place, CopyPlace::Host(..));
    ensure!(
        sources.iter().any(remote) || targets.iter().any(|(_, place)| remote(place)),
        "no host is named: use cp(1) for local copies"
    );
    let shown = !args.json && (args.progress || std::io::stderr().is_terminal());
    let view = View {
        bar: bar(shown),
        shown,
        json: args.json,
        verbose: args.verbose || args.dry_run,
        targets: targets.len(),
        lines: shown && !std::io::stderr().is_terminal(),
        copies: Mutex::default(),
    };
    let opened = open_passed(&sources, &targets)?;
    let fds: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
    let questions = backend.questions();
    questions.hide_while_asking(&view.bar).await;
    let hosts = targets.iter().filter_map(|(name, place)| match place {
        CopyPlace::Host(request, _) => Some((name.clone(), request.destination.host.clone())),
        CopyPlace::Local(_) | CopyPlace::Passed(_) => None,
    });
    questions.name_hosts(hosts.collect()).await;
    let copies = targets.into_iter().map(|(name, target)| {
        let request = CopyRequest {
            sources: sources.clone(),
            target,
            options: args.options(&world),
            names: args.json || args.verbose || args.dry_run,
        };
        let (view, fds) = (&view, &fds);
        async move {
            let ended = converse(backend, request, fds, &name, view).await;
            (name, ended)
        }
    });
    let mut copies = futures_util::stream::iter(copies).buffer_unordered(args.jobs.into());
    let mut success = true;
    let mut broken = None;
    while let Some((name, ended)) = copies.next().await {
        match ended {
            Ok(ended) => {
                success &= ended.progress.failed == 0;
                view.ended(&name, &ended)?;
            }
            Err(error) if view.several() => {
                success = false;
                view.line(&format!("trunkline: {name}: {error:#}"));
            }
            Err(error) => broken = Some(error),
        }
    }
    view.bar.finish_and_clear();
    match broken {
        Some(error) => Err(error),
        None if success => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::FAILURE),
    }
}

impl Args {
    fn options(&self, world: &World) -> CopyOptions {
        let mut options = CopyOptions::default();
        options.recursive = self.recursive;
        options.preserve = self.preserve;
        options.update = self.update;
        options.checksum = self.checksum;
        options.partial = !self.no_partial;
        options.sync = self.fsync;
        options.dry_run = self.dry_run;
        options.exclude.clone_from(&self.exclude);
        options.limit = self.bwlimit;
        options.streams = self.streams;
        options.umask = world.umask;
        options
    }

    fn host(&self, destination: &str) -> anyhow::Result<HostRequest> {
        let mut ssh_args: Vec<OsString> = Vec::new();
        for (flag, value) in [("-F", &self.config), ("-p", &self.port)] {
            if let Some(value) = value {
                ssh_args.extend([flag.into(), value.clone()]);
            }
        }
        for option in &self.option {
            ssh_args.extend(["-o".into(), option.clone()]);
        }
        // Nobody asked `cp` for tunnels.
        ssh_args.extend(["-o".into(), "ClearAllForwardings=yes".into()]);
        host_request(destination, ssh_args)
    }

    fn place(&self, argument: &OsStr, world: &World) -> anyhow::Result<CopyPlace> {
        match split(argument) {
            // Only this process has its descriptors: to the daemon the same path leads to its own.
            Typed::Local(path) if is_descriptor(&path) => Ok(CopyPlace::Passed(path)),
            Typed::Local(path) => Ok(CopyPlace::Local(world.cwd.join(path))),
            Typed::Host(name, path) => Ok(CopyPlace::Host(Box::new(self.host(&name)?), path)),
            Typed::EveryHost(_) => bail!("{} names no host", argument.display()),
        }
    }

    /// Where to copy to: one place, or one on each host of `-H`.
    fn targets(&self, argument: &OsStr, world: &World) -> anyhow::Result<Vec<(String, CopyPlace)>> {
        if self.hosts.is_empty() {
            let name = argument.to_string_lossy().into_owned();
            return Ok(vec![(name, self.place(argument, world)?)]);
        }
        let Typed::EveryHost(path) = split(argument) else {
            bail!("with -H the target is a path on each of the hosts, written :PATH");
        };
        let mut targets: Vec<(String, CopyPlace)> = Vec::new();
        for expression in &self.hosts {
            for name in expand(expression, &world.cwd)? {
                if targets.iter().all(|(known, _)| *known != name) {
                    let place = CopyPlace::Host(Box::new(self.host(&name)?), path.clone());
                    targets.push((name, place));
                }
            }
        }
        ensure!(!targets.is_empty(), "no hosts match");
        Ok(targets)
    }
}

/// Opens what is to be passed, in the order in which it is expected: anew, so that nothing about what was open changes for
/// whoever has it, too.
fn open_passed(sources: &[CopyPlace], targets: &[(String, CopyPlace)]) -> anyhow::Result<Vec<OwnedFd>> {
    let mut opened = Vec::new();
    for source in sources {
        if let CopyPlace::Passed(path) = source {
            ensure!(
                targets.len() == 1,
                "{} can be read once, and there are {} hosts",
                path.display(),
                targets.len()
            );
            opened.push(open_stream(path, OFlags::RDONLY)?);
        }
    }
    for (_, target) in targets {
        if let CopyPlace::Passed(path) = target {
            opened.push(open_stream(path, OFlags::WRONLY)?);
        }
    }
    ensure!(
        opened.len() <= 3,
        "no more than three descriptors can be copied at once"
    );
    Ok(opened)
}

fn open_stream(path: &Path, access: OFlags) -> anyhow::Result<OwnedFd> {
    let doing = || format!("opening {}", path.display());
    let is_fifo = std::fs::metadata(path).with_context(doing)?.file_type().is_fifo();
    let mut flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
    // Nothing waits for the other end here; reads and writes do so where the copy is made.
    flags.set(OFlags::NONBLOCK, is_fifo);
    rustix::fs::open(path, flags, Mode::empty()).with_context(doing)
}

/// An end of the copy as it was typed.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Local(PathBuf),
    Host(String, Vec<u8>),
    /// `:PATH`
    EveryHost(Vec<u8>),
}

/// scp's rule: a colon before any slash ends a host. An address with colons of its own stands in brackets.
fn split(argument: &OsStr) -> Typed {
    let bytes = argument.as_bytes();
    let bracket = match bytes.iter().position(|byte| *byte == b'@') {
        Some(at) if bytes.get(at + 1) == Some(&b'[') => Some(at + 1),
        _ if bytes.first() == Some(&b'[') => Some(0),
        _ => None,
    };
    let closed = bracket.and_then(|open| {
        let close = open + bytes[open..].windows(2).position(|two| two == b"]:")?;
        Some((open, close))
    });
    if let Some((open, close)) = closed {
        let host = [&bytes[..open], &bytes[open + 1..close]].concat();
        if let Ok(host) = String::from_utf8(host) {
            return Typed::Host(host, bytes[close + 2..].to_vec());
        }
    }
    let local = || Typed::Local(Path::new(argument).to_owned());
    match bytes.iter().position(|byte| matches!(byte, b':' | b'/')) {
        Some(0) if bytes[0] == b':' => Typed::EveryHost(bytes[1..].to_vec()),
        Some(at) if bytes[at] == b':' => match String::from_utf8(bytes[..at].to_vec()) {
            Ok(host) => Typed::Host(host, bytes[at + 1..].to_vec()),
            Err(_) => local(),
        },
        _ => local(),
    }
}

/// `10M`: bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        unit => return Err(format!("unknown unit {unit}: use K, M or G")),
    };
    let number: f64 = digits.parse().map_err(|_| "a number, such as 10M".to_owned())?;
    let bytes = number * unit as f64;
    if !bytes.is_finite() || bytes < 1.0 {
        return Err("a number above zero".into());
    }
    Ok(bytes as u64)
}

async fn converse(
    backend: &Backend,
    request: CopyRequest,
    fds: &[BorrowedFd<'_>],
    name: &str,
    view: &View,
) -> anyhow::Result<CopyEnd> {
    let client = backend.connect().await?;
    client.send_with(&Request::Copy(Box::new(request)), fds).await?;
    let mut talk = Conversation::new(client, backend.questions());
    loop {
        let reply = match talk.next().await {
            Err(ClientError::Gone) => {
                bail!("the daemon ended; run the same command again to resume the copy")
            }
            reply => reply?,
        };
        let _quiet = talk.quiet().await?;
        match reply {
            Reply::Progress(progress) => view.progress(name, progress),
            Reply::Names(events) => view.names(name, events)?,
            Reply::Copied(ended) => return Ok(ended),
            Reply::Notice(text) => view.line(text.trim_end()),
            Reply::Failed(failure) => bail!(failure.message),
            _ => {}
        }
    }
}

/// What is shown while the copy goes on.
struct View {
    bar: ProgressBar,
    shown: bool,
    json: bool,
    verbose: bool,
    /// How many copies there are, each to a target of its own.
    targets: usize,
    /// The progress goes where no bar can be drawn, in lines.
    lines: bool,
    copies: Mutex<Copies>,
}

/// How far each of the copies is, by its target.
#[derive(Default)]
struct Copies {
    by_target: HashMap<String, CopyProgress>,
    /// When a line was last written.
    written: Option<Instant>,
}

/// Between two lines of progress: what is written into a log is to be read some day.
const LINES: Duration = Duration::from_secs(1);

impl View {
    fn several(&self) -> bool {
        self.targets > 1
    }

    /// Shows how far one copy is, and with it all of them together.
    fn progress(&self, name: &str, progress: CopyProgress) {
        if !self.shown {
            return;
        }
        let current = Printable::line(&progress.current);
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.by_target.insert(name.to_owned(), progress);
        let all = |value: fn(&CopyProgress) -> u64| copies.by_target.values().map(value).sum::<u64>();
        let (bytes, total) = (all(|copy| copy.bytes), all(|copy| copy.total_bytes));
        let counted = all(|copy| copy.counted.into()) == self.targets as u64;
        let more = if counted { "" } else { "+" };
        let failed = match all(|copy| copy.failed) {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        let (done, found) = (
            all(|copy| copy.files + copy.skipped),
            all(|copy| copy.total_files),
        );
        let names = format!("{done}/{found}{more}{failed}");
        if !self.lines {
            self.bar.set_length(total.max(1));
            self.bar.set_position(bytes);
            return self.bar.set_message(format!("{names}  {}", current));
        }
        if copies.written.is_none_or(|written| written.elapsed() >= LINES) {
            copies.written = Some(Instant::now());
            eprintln!("{}/{}{more} {names}", BinaryBytes(bytes), BinaryBytes(total));
        }
    }

    /// A line among those of the copy's other messages.
    fn line(&self, line: &str) {
        let line = Printable::text(line);
        self.bar.suspend(|| eprintln!("{line}"));
    }

    fn names(&self, name: &str, events: Vec<CopyEvent>) -> anyhow::Result<()> {
        let mut out = Vec::new();
        for event in events {
            let prefix = if self.several() {
                format!("{name}: ")
            } else {
                String::new()
            };
            if self.json {
                writeln!(out, "{}", json_event(name, &event))?;
                continue;
            }
            match event {
                CopyEvent::Failed { message, .. } => {
                    self.line(&format!("trunkline: {prefix}{}", Printable::line(&message)));
                }
                CopyEvent::Copied { path, .. } if self.verbose => {
                    writeln!(out, "{prefix}{}", Printable::line(&path))?;
                }
                CopyEvent::Skipped { path } if self.verbose => {
                    writeln!(out, "{prefix}{} is there", Printable::line(&path))?;
                }
                _ => {}
            }
        }
        self.bar.suspend(|| std::io::stdout().write_all(&out))?;
        Ok(())
    }

    fn ended(&self, name: &str, ended: &CopyEnd) -> anyhow::Result<()> {
        if self.json {
            let mut out = std::io::stdout().lock();
            return Ok(writeln!(out, "{}", json_end(name, ended))?);
        }
        let summary = summary(ended);
        self.line(&if self.several() {
            format!("{name}: {summary}")
        } else {
            summary
        });
        Ok(())
    }
}

fn draw_target(shown: bool) -> ProgressDrawTarget {
    if shown {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A bar on standard error; silent where it is not `shown`, and the callers need not know.
fn bar(shown: bool) -> ProgressBar {
    let target = draw_target(shown);
    let template = "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {msg}";
    let style = ProgressStyle::with_template(template).expect("the template's keys are indicatif's own");
    ProgressBar::with_draw_target(Some(1), target).with_style(style)
}

/// `3 files, 1.20 GiB in 2.1 s (585.14 MiB/s), 2 sessions, aes128-gcm@openssh.com`
fn summary(ended: &CopyEnd) -> String {
    let CopyEnd {
        progress,
        elapsed,
        ciphers,
    } = ended;
    let mut parts = vec![format!(
        "{} copied, {} in {:.1} s ({}/s)",
        progress.files,
        BinaryBytes(progress.bytes - progress.resumed.min(progress.bytes)),
        elapsed.as_secs_f64(),
        BinaryBytes(per_second(progress, *elapsed))
    )];
    if progress.resumed > 0 {
        parts.push(format!(
            "{} were there from an earlier copy",
            BinaryBytes(progress.resumed)
        ));
    }
    if progress.skipped > 0 {
        parts.push(format!("{} left out", progress.skipped));
    }
    if progress.failed > 0 {
        parts.push(format!("{} failed", progress.failed));
    }
    let plural = if progress.streams == 1 { "" } else { "s" };
    parts.push(format!("{} session{plural}", progress.streams));
    parts.extend(ciphers.iter().cloned());
    if progress.compressed {
        parts.push("compressed".into());
    }
    parts.join(", ")
}

fn per_second(progress: &CopyProgress, elapsed: Duration) -> u64 {
    let moved = progress.bytes - progress.resumed.min(progress.bytes);
    (moved as f64 / elapsed.as_secs_f64().max(1e-3)) as u64
}

fn json_event(target: &str, event: &CopyEvent) -> serde_json::Value {
    let (what, path, more) = match event {
        CopyEvent::Copied { path, length } => ("copied", path, serde_json::json!({ "bytes": length })),
        CopyEvent::Skipped { path } => ("skipped", path, serde_json::json!({})),
        CopyEvent::Failed { path, message, .. } => ("failed", path, serde_json::json!({ "error": message })),
    };
    let mut line = serde_json::json!({ "event": what, "target": target });
    // A path that is no text is given in base64 as well.
    line["path"] = String::from_utf8_lossy(path).into();
    if std::str::from_utf8(path).is_err() {
        use base64::Engine as _;
        line["path_base64"] = base64::engine::general_purpose::STANDARD.encode(path).into();
    }
    if let (Some(line), serde_json::Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}

fn json_end(target: &str, ended: &CopyEnd) -> serde_json::Value {
    let progress = &ended.progress;
    serde_json::json!({
        "event": "summary",
        "target": target,
        "bytes": progress.bytes,
        "resumed_bytes": progress.resumed,
        "copied": progress.files,
        "skipped": progress.skipped,
        "failed": progress.failed,
        "sessions": progress.streams,
        "compressed": progress.compressed,
        "ciphers": ended.ciphers,
        "seconds": ended.elapsed.as_secs_f64(),
        "bytes_per_second": per_second(progress, ended.elapsed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart_as_scp_does() {
        let host = |name: &str, path: &str| Typed::Host(name.into(), path.into());
        for (typed, means) in [
            ("a", Typed::Local("a".into())),
            ("./a:b", Typed::Local("./a:b".into())),
            ("/a:b", Typed::Local("/a:b".into())),
            ("web1:", host("web1", "")),
            ("me@web1:a/b:c", host("me@web1", "a/b:c")),
            ("[::1]:/x", host("::1", "/x")),
            ("me@[fe80::1%eth0]:x", host("me@fe80::1%eth0", "x")),
            (":/x", Typed::EveryHost("/x".into())),
        ] {
            assert_eq!(split(OsStr::new(typed)), means, "{typed}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1000"), Ok(1000));
        assert_eq!(size("1.5K"), Ok(1536));
        assert_eq!(size("10MiB"), Ok(10 << 20));
        for wrong in ["", "M", "-1", "0", "5x", "inf"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
