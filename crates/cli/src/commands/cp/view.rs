//! The display of a copy: its progress, its names, and how it ended.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{
    BinaryBytes, HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use trunkline_control::protocol::{CopyEnd, CopyEvent, CopyProgress};
use trunkline_request::copy::Waiting;
use trunkline_text::{Printable, count_of};

use crate::hints;
use crate::report::alike;
use crate::report::fold::fold;
use crate::report::grid::{Grid, wrap};
use crate::terminal;
use crate::terminal::live;

/// The display of a running copy.
pub(super) struct View {
    /// Counts only bytes that must be moved, so that its rate and remaining time are right.
    bar: ProgressBar,
    /// Bytes that earlier copies have already moved.
    resumed: Arc<AtomicU64>,
    shows: Shows,
    /// The number of copies, one for each host.
    hosts: usize,
    begun: Instant,
    copies: Mutex<Copies>,
}

/// The user's choice of output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    pub(super) progress: bool,
    /// Shows progress as lines, since no bar can be drawn.
    pub(super) lines: bool,
    pub(super) json: bool,
    pub(super) names: bool,
    /// Shows what changes, and why.
    pub(super) changes: bool,
    /// Skipped files are known to be up to date.
    pub(super) compares: bool,
    /// Only compares both ends; a difference is a failure.
    pub(super) check: bool,
    /// Shows a table at the end.
    pub(super) stats: bool,
    /// Shows only errors.
    pub(super) quiet: bool,
    pub(super) dry_run: bool,
    /// Standard output is the copy's target.
    pub(super) stdout_is_taken: bool,
}

/// The progress of each copy, by its host.
#[derive(Default)]
struct Copies {
    by_host: HashMap<String, CopyProgress>,
    /// Shows a bar instead of words.
    has_bar: bool,
    /// The time at which a line was last written.
    written: Option<Instant>,
    /// The bytes moved, and the names done and found, since when they are the same.
    at_rest: Option<([u64; 3], Instant)>,
    /// The findings of a dry run for each host: paths and their lines.
    to_come: HashMap<String, Vec<(Vec<u8>, String)>>,
    /// The number of equal failures in one directory, by their text.
    failures: HashMap<String, Repeated>,
    /// With several hosts: their failures.
    of_hosts: BTreeMap<String, Vec<String>>,
    succeeded: usize,
    ended: Vec<CopyEnd>,
}

/// Failures with the same reason.
#[derive(Default)]
struct Repeated {
    count: usize,
    last: String,
}

/// The number of equal failures in one directory that get a line each.
const MOST_ALIKE: usize = 10;

/// The pause between lines of progress, which may end up in a log.
const LINES: Duration = Duration::from_secs(1);

/// Shorter copies show no bar, which would only flash.
const UNSEEN: Duration = Duration::from_millis(250);

/// A copy that has not moved for so long says what it waits for: the files of a server's /proc may never end.
const SILENT: Duration = Duration::from_secs(5);

impl Copies {
    /// Returns for how long nothing has moved, if that is long.
    fn silence(&mut self, moved: [u64; 3], now: Instant) -> Option<Duration> {
        let since = match self.at_rest {
            Some((known, since)) if known == moved => since,
            _ => now,
        };
        self.at_rest = Some((moved, since));
        Some(now.duration_since(since)).filter(|silence| *silence >= SILENT)
    }
}

impl View {
    pub(super) fn new(shows: Shows, hosts: usize) -> Self {
        let resumed = Arc::default();
        Self {
            bar: bar(shows.progress, &resumed),
            resumed,
            shows,
            hosts,
            begun: Instant::now(),
            copies: Mutex::default(),
        }
    }

    pub(super) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    pub(super) fn several(&self) -> bool {
        self.hosts > 1
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the progress of all copies after that of one has changed.
    pub(super) fn progress(&self, host: &str, progress: CopyProgress) {
        if !self.shows.progress || !self.shows.lines && self.begun.elapsed() < UNSEEN {
            return;
        }
        let waiting = progress.waiting.as_ref().map(waits);
        let current = Printable::line(&progress.current);
        let mut copies = self.copies();
        copies.by_host.insert(host.to_owned(), progress);
        let all = |value: fn(&CopyProgress) -> u64| copies.by_host.values().map(value).sum::<u64>();
        let (bytes, total) = (all(|copy| copy.bytes), all(|copy| copy.total_bytes));
        let counted = all(|copy| copy.counted.into()) == self.hosts as u64;
        let more = if counted { "" } else { "+" };
        let failed = match all(|copy| copy.failed) {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        let (done, found) = (
            all(|copy| copy.files + copy.adjusted + copy.skipped),
            all(|copy| copy.total_files),
        );
        let resumed = all(|copy| copy.resumed).min(bytes);
        let silence = copies.silence([bytes, done, found], Instant::now());
        let waiting = waiting.or_else(|| Some(silent(current.as_str(), silence?)));
        // Files that are up to date need not be moved; a bar would count their bytes.
        let checks = self.shows.compares && bytes == 0;
        let names = names_done(checks, done, found, more) + &failed;
        if !self.shows.lines {
            self.resumed.store(resumed, Ordering::Relaxed);
            self.bar.set_length(total.saturating_sub(resumed).max(1));
            self.bar.set_position(bytes - resumed);
            // Until the total is known, a bar has nothing to show.
            let has_bar = total > 0 && waiting.is_none() && !checks;
            if has_bar != std::mem::replace(&mut copies.has_bar, has_bar) {
                self.bar.set_style(style(has_bar, &self.resumed));
            }
            return self.bar.set_message(match waiting {
                Some(waiting) => waiting,
                None => format!("{names}  {}", live::short_path(current.as_str())),
            });
        }
        let has_news = found > 0 || waiting.is_some();
        if has_news && copies.written.is_none_or(|written| written.elapsed() >= LINES) {
            copies.written = Some(Instant::now());
            match waiting {
                Some(waiting) => eprintln!("{waiting}"),
                None if total > 0 && !checks => {
                    eprintln!("{}/{}{more} {names}", BinaryBytes(bytes), BinaryBytes(total));
                }
                None => eprintln!("{names}"),
            }
        }
    }

    /// Prints a line beside the bar.
    pub(super) fn line(&self, line: &str) {
        let width = terminal::width(std::io::stderr());
        let line = Printable::text(line).to_string();
        self.bar.suspend(|| eprintln!("{}", wrap(&line, 2, width)));
    }

    pub(super) fn names(&self, host: &str, events: Vec<CopyEvent>) -> anyhow::Result<()> {
        let prefix = match self.several() {
            true => format!("{host}: "),
            false => String::new(),
        };
        let (mut out, mut lines) = (Vec::new(), Vec::new());
        for event in events {
            if self.shows.json {
                writeln!(out, "{}", json_event(host, &event))?;
                continue;
            }
            match event {
                // The directory's own failure has a line.
                CopyEvent::Failed { below: true, .. } if !self.shows.names => {}
                CopyEvent::Failed {
                    path,
                    message,
                    errno,
                    obstacle,
                    ..
                } => self.report_failure(host, &path, hints::of_file(&message, obstacle), errno),
                CopyEvent::Note { message } => self.line(&format!("{prefix}{message}")),
                event => lines.extend(
                    self.shows
                        .line(&event)
                        .map(|(path, line)| (path, prefix.clone() + &line)),
                ),
            }
        }
        if self.shows.dry_run {
            self.copies()
                .to_come
                .entry(host.to_owned())
                .or_default()
                .extend(lines);
        } else {
            for (_, line) in lines {
                writeln!(out, "{line}")?;
            }
        }
        self.print(&out)
    }

    fn print(&self, out: &[u8]) -> anyhow::Result<()> {
        self.bar.suspend(|| match self.shows.stdout_is_taken {
            true => std::io::stderr().write_all(out),
            false => std::io::stdout().write_all(out),
        })?;
        Ok(())
    }

    /// Prints the findings of a dry run, sorted by name.
    fn print_sorted(&self, host: &str) -> anyhow::Result<()> {
        let mut lines = self.copies().to_come.remove(host).unwrap_or_default();
        lines.sort();
        let lines: String = lines.into_iter().map(|(_, line)| line + "\n").collect();
        self.print(lines.as_bytes())
    }

    /// Reports a failed name. With one host it is printed at once, except if many fail alike; with several, a table
    /// follows at the end.
    fn report_failure(&self, host: &str, path: &[u8], message: String, errno: Option<i32>) {
        let mut copies = self.copies();
        if self.several() {
            let messages = copies.of_hosts.entry(host.to_owned()).or_default();
            messages.push(message);
            return;
        }
        let alike = copies
            .failures
            .entry(reason_of(path, &message, errno))
            .or_default();
        alike.count += 1;
        if self.shows.names || alike.count <= MOST_ALIKE {
            drop(copies);
            self.line(&format!("trunkline: {}", Printable::line(&message)));
        } else {
            alike.last = message;
        }
    }

    /// Prints how many more names failed than were shown.
    fn more_failures(&self) {
        let mut failures: Vec<_> = std::mem::take(&mut self.copies().failures).into_iter().collect();
        failures.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (_, Repeated { count, last }) in failures {
            if !last.is_empty() {
                let more = count - MOST_ALIKE;
                let last = Printable::line(&last);
                self.line(&format!("trunkline: {more} more failed alike, the last: {last}"));
            }
        }
    }

    /// Reports the end of a copy. Returns true if everything was copied.
    pub(super) fn report_end(&self, host: &str, ended: CopyEnd) -> anyhow::Result<bool> {
        let CopyProgress {
            failed,
            files,
            adjusted,
            deleted,
            ..
        } = ended.progress;
        let success = failed == 0 && (!self.shows.check || files + adjusted + deleted == 0);
        self.print_sorted(host)?;
        if self.shows.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", json_end(host, &ended))?;
        } else if !self.several() {
            self.more_failures();
            // If a single name was not copied, its error is enough.
            let all = &ended.progress;
            let done = all.files + all.adjusted + all.skipped + all.deleted + all.bytes;
            let has_begun = done > 0 || failed > 1 || success;
            if !self.shows.quiet && has_begun {
                let line = summary(&ended, self.shows);
                self.line(&line);
            }
            if self.shows.stats {
                self.print(stats(&ended).as_bytes())?;
            }
        }
        let mut copies = self.copies();
        copies.succeeded += usize::from(success);
        copies.ended.push(ended);
        Ok(success)
    }

    /// Reports that one of several copies could not start or continue.
    pub(super) fn report_broken(&self, host: &str, error: &anyhow::Error) {
        if self.shows.json {
            return self.line(&format!("trunkline: {host}: {error:#}"));
        }
        let message = format!("{error:#}");
        self.copies()
            .of_hosts
            .entry(host.to_owned())
            .or_default()
            .push(message);
    }

    /// Reports that the user has interrupted the copies.
    pub(super) fn report_interrupt(&self, advice: &str) {
        self.bar.finish_and_clear();
        let done = self.copies().succeeded;
        self.line(&match self.several() {
            true => format!(
                "trunkline: interrupted with {done} of {} hosts done: {advice}",
                self.hosts
            ),
            false => format!("trunkline: interrupted: {advice}"),
        });
    }

    /// Reports the end of all copies.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
        if !self.several() || self.shows.json {
            return;
        }
        let width = terminal::width(std::io::stderr());
        let mut copies = self.copies();
        if !self.shows.quiet {
            let line = summary_of_all(&copies, self.hosts, self.begun.elapsed(), self.shows);
            eprintln!("{}", wrap(&line, 2, width));
        }
        let failures = std::mem::take(&mut copies.of_hosts);
        eprint!("{}", table_of_failures(failures, width));
    }
}

/// Returns the key under which equal failures of a directory are counted.
fn reason_of(path: &[u8], message: &str, errno: Option<i32>) -> String {
    if errno != Some(rustix::io::Errno::NOSPC.raw_os_error()) {
        return without_name(path, message);
    }
    // The number of bytes differs between files with the same reason.
    let directory = path.rsplitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default();
    format!("no space left for {}", Printable::line(directory))
}

/// Removes the path's last part from a message, so that the same failure in a directory has the same text.
fn without_name(path: &[u8], message: &str) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = Printable::line(name);
    // A path relative to the user's home may be a name alone.
    let found = ["/", ":"].iter().find_map(|before| {
        let name = format!("{before}{name}");
        Some((message.rfind(&name)?, name.len()))
    });
    match found {
        Some((at, length)) => format!("{}{}", &message[..at], &message[at + length..]),
        None => message.to_owned(),
    }
}

/// Returns a table with a row for each set of equal failures, most hosts first.
fn table_of_failures(failures: BTreeMap<String, Vec<String>>, width: Option<u16>) -> String {
    /// Messages shown of each host; the others are counted.
    const MOST_MESSAGES: usize = 3;
    if failures.is_empty() {
        return String::new();
    }
    let mut rows: BTreeMap<Vec<String>, Vec<(String, Vec<String>)>> = BTreeMap::new();
    for (host, mut messages) in failures {
        let more = messages.len().saturating_sub(MOST_MESSAGES);
        messages.truncate(MOST_MESSAGES);
        if more > 0 {
            messages.push(format!("and {more} more"));
        }
        let bare = host.rsplit('@').next().unwrap_or_default();
        for message in &mut messages {
            // The row already shows the host's name.
            if let Some(rest) = message.strip_prefix(&format!("{host}:")) {
                *message = rest.trim_start().to_owned();
            }
        }
        let keys = messages.iter().map(|message| alike::key(message, &[&host, bare]));
        rows.entry(keys.collect()).or_default().push((host, messages));
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|hosts| std::cmp::Reverse(hosts.len()));
    let mut table = Grid::new(["HOSTS", "ERROR"]);
    for row in rows {
        let lines = (0..row[0].1.len()).map(|nth| {
            let shown = alike::fold(row.iter().map(|(_, messages)| messages[nth].as_str()));
            Printable::line(shown).into_string()
        });
        let error = lines.collect::<Vec<_>>().join("\n");
        let hosts = fold(row.iter().map(|(host, _)| host));
        table.row([Printable::line(hosts).into_string(), error]);
    }
    table.draw(width)
}

/// Returns, for example, `40 hosts in 2.1 s: 38 succeeded, 2 failed; 80 copied, 1.20 GiB (585.14 MiB/s)`.
fn summary_of_all(copies: &Copies, hosts: usize, elapsed: Duration, shows: Shows) -> String {
    let dry_run = shows.dry_run;
    let all = |value: fn(&CopyProgress) -> u64| -> u64 {
        copies.ended.iter().map(|ended| value(&ended.progress)).sum()
    };
    let moved = all(bytes_moved);
    let fared = [
        (copies.succeeded, "succeeded"),
        (hosts - copies.succeeded, "failed"),
    ];
    let fared = fared.iter().filter(|(count, _)| *count > 0);
    let fared: Vec<String> = fared.map(|(count, how)| format!("{count} {how}")).collect();
    let mut text = format!(
        "{} in {:.1} s: {}; ",
        count_of(hosts, "host"),
        elapsed.as_secs_f64(),
        fared.join(", ")
    );
    let files = all(|copy| copy.files);
    text += &match (files, dry_run) {
        (0, false) => "nothing copied".into(),
        (_, true) => format!("{files} would be copied, {}", BinaryBytes(moved)),
        (_, false) => format!("{files} copied, {}", BinaryBytes(moved)),
    };
    if !dry_run && moved > 0 {
        text += &format!(" ({}/s)", BinaryBytes(rate(moved, elapsed)));
    }
    for (count, what) in [
        (all(|copy| copy.deleted), "deleted"),
        (all(|copy| copy.adjusted), "adjusted"),
        (all(|copy| copy.skipped), shows.skipped_text()),
        (all(|copy| copy.failed), "failed"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text
}

/// Returns how many of the names found are done.
fn names_done(checks: bool, done: u64, found: u64, more: &str) -> String {
    match checks {
        true => format!(
            "checked {} of {}{more} files",
            HumanCount(done),
            HumanCount(found)
        ),
        false => format!("{done}/{found}{more}"),
    }
}

/// Describes a copy of which nothing has moved for so long.
fn silent(current: &str, silence: Duration) -> String {
    let silence = format!("nothing moved for {} s; Ctrl-C interrupts", silence.as_secs());
    match current {
        "" => silence,
        current => format!("{}: {silence}", live::short_path(current)),
    }
}

/// Describes why a copy waits.
fn waits(waiting: &Waiting) -> String {
    match waiting {
        Waiting::Connecting { host } => format!("connecting to {}", Printable::line(host.as_bytes())),
        Waiting::Lost { host, seconds } => {
            let host = Printable::line(host.as_bytes());
            format!("{host}: connection lost; trying again for {seconds} s")
        }
        Waiting::Checking { bytes, done } => format!(
            "checking what is there: {} of {}",
            BinaryBytes(*done),
            BinaryBytes(*bytes)
        ),
    }
}

/// Returns a bar on standard error, hidden unless `shown`.
fn bar(shown: bool, resumed: &Arc<AtomicU64>) -> ProgressBar {
    let target = match shown {
        true => live::target(),
        false => ProgressDrawTarget::hidden(),
    };
    ProgressBar::with_draw_target(Some(1), target).with_style(style(false, resumed))
}

/// Returns the style of a bar, or of words alone.
fn style(has_bar: bool, resumed: &Arc<AtomicU64>) -> ProgressStyle {
    let with_resumed = |of: fn(&ProgressState) -> u64| {
        let resumed = Arc::clone(resumed);
        move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Errors cannot be shown.
            let _ = write!(
                out,
                "{}",
                BinaryBytes(of(state) + resumed.load(Ordering::Relaxed))
            );
        }
    };
    let template = match has_bar {
        true => "{bar:12} {there}/{whole} {speed}{wide_msg}",
        false => "{wide_msg}",
    };
    ProgressStyle::with_template(template)
        .expect("the template's keys are indicatif's own, or those below")
        .with_key("there", with_resumed(ProgressState::pos))
        .with_key("whole", with_resumed(|state| state.len().unwrap_or_default()))
        .with_key("speed", speed)
}

/// Writes the rate and the remaining time, once known.
fn speed(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // The initial estimate is half a byte a second.
    if state.per_sec() >= 1.0 {
        let rate = BinaryBytes(state.per_sec() as u64);
        let left = HumanDuration(state.eta());
        // Errors cannot be shown.
        let _ = write!(out, "{rate}/s {left:#} ");
    }
}

/// Returns, for example, `3 copied, 1.20 GiB in 2.1 s (585.14 MiB/s), 2 sessions, aes128-gcm@openssh.com`.
fn summary(ended: &CopyEnd, shows: Shows) -> String {
    let dry_run = shows.dry_run;
    let CopyEnd {
        progress,
        elapsed,
        ciphers,
    } = ended;
    if shows.check {
        return describe_check(progress);
    }
    let moved = bytes_moved(progress);
    let mut parts = vec![match dry_run {
        true => format!("{} would be copied, {}", progress.files, BinaryBytes(moved)),
        false if moved == 0 => format!("{} copied", progress.files),
        false => format!(
            "{} copied, {} in {:.1} s ({}/s)",
            progress.files,
            BinaryBytes(moved),
            elapsed.as_secs_f64(),
            BinaryBytes(rate(moved, *elapsed))
        ),
    }];
    if progress.deleted > 0 {
        let would_be = if dry_run { "would be " } else { "" };
        parts.push(format!("{} {would_be}deleted", progress.deleted));
    }
    if progress.resumed > 0 {
        parts.push(format!(
            "{} were there from an earlier copy",
            BinaryBytes(progress.resumed)
        ));
    }
    if progress.adjusted > 0 {
        let would_be = if dry_run { "would be " } else { "" };
        parts.push(format!("{} {would_be}adjusted", progress.adjusted));
    }
    if progress.skipped > 0 {
        parts.push(format!("{} {}", progress.skipped, shows.skipped_text()));
    }
    if progress.failed > 0 {
        parts.push(format!("{} failed", progress.failed));
    }
    if !dry_run {
        parts.push(count_of(progress.streams, "session"));
        parts.extend(ciphers.iter().map(ToString::to_string));
    }
    if progress.compressed {
        parts.push("compressed".into());
    }
    parts.join(", ")
}

impl Shows {
    /// Returns the word for skipped names.
    fn skipped_text(self) -> &'static str {
        if self.compares { "up to date" } else { "skipped" }
    }

    /// Returns an event's path and its line, if it has one.
    fn line(self, event: &CopyEvent) -> Option<(Vec<u8>, String)> {
        let (path, changes) = match event {
            CopyEvent::Copied { path, changes, .. } | CopyEvent::Adjusted { path, changes } => {
                let words: Vec<&str> = changes.words().collect();
                (path, words.join(","))
            }
            CopyEvent::Deleted { path } if self.check => (path, "extra".to_owned()),
            CopyEvent::Deleted { path } => (path, "delete".to_owned()),
            CopyEvent::Skipped { path } if self.names => (path, "-".to_owned()),
            _ => return None,
        };
        let name = Printable::line(path);
        let line = match event {
            _ if self.changes => format!("{changes:<12} {name}"),
            _ if !self.names => return None,
            CopyEvent::Deleted { .. } => format!("deleting {name}"),
            CopyEvent::Skipped { .. } => format!("{name}: {}", self.skipped_text()),
            CopyEvent::Adjusted { .. } => format!("{name}: {changes}"),
            _ => name.to_string(),
        };
        Some((path.to_vec(), line))
    }
}

/// Returns, for example, `12 the same, 2 differ or are missing, 1 extra`.
fn describe_check(progress: &CopyProgress) -> String {
    let differ = progress.files + progress.adjusted;
    let counts = [
        (progress.skipped, "the same"),
        (differ, "differ or are missing"),
        (progress.deleted, "extra"),
        (progress.failed, "failed"),
    ];
    let mut parts = counts.iter().enumerate();
    let parts = parts.by_ref().filter(|(nth, (count, _))| *nth == 0 || *count > 0);
    let parts: Vec<String> = parts
        .map(|(_, (count, what))| format!("{count} {what}"))
        .collect();
    parts.join(", ")
}

/// Returns the counts of a copy, one line each.
fn stats(ended: &CopyEnd) -> String {
    let CopyEnd {
        progress, elapsed, ..
    } = ended;
    let rows = [
        ("names found", progress.total_files),
        ("copied", progress.files),
        ("adjusted", progress.adjusted),
        ("skipped", progress.skipped),
        ("deleted", progress.deleted),
        ("failed", progress.failed),
        ("bytes found", progress.found_bytes),
        ("bytes copied", progress.bytes),
        ("bytes resumed", progress.resumed),
        ("bytes a second", rate(bytes_moved(progress), *elapsed)),
        ("sessions", progress.streams),
    ];
    let rows = rows.map(|(what, count)| format!("{what:<15}{count:>16}\n"));
    rows.concat() + &format!("{:<15}{:>16.3}\n", "seconds", elapsed.as_secs_f64())
}

/// Returns the bytes that went over the network, before compression.
fn bytes_moved(progress: &CopyProgress) -> u64 {
    progress.bytes - progress.resumed.min(progress.bytes)
}

/// Returns bytes per second.
fn rate(bytes: u64, elapsed: Duration) -> u64 {
    (bytes as f64 / elapsed.as_secs_f64().max(1e-3)) as u64
}

fn json_event(target: &str, event: &CopyEvent) -> serde_json::Value {
    let (what, path, more) = match event {
        CopyEvent::Note { message } => {
            return serde_json::json!({ "event": "note", "target": target, "message": message });
        }
        CopyEvent::Copied {
            path,
            length,
            changes,
        } => {
            let changes: Vec<&str> = changes.words().collect();
            (
                "copied",
                path,
                serde_json::json!({ "bytes": length, "changes": changes }),
            )
        }
        CopyEvent::Adjusted { path, changes } => {
            let changes: Vec<&str> = changes.words().collect();
            ("adjusted", path, serde_json::json!({ "changes": changes }))
        }
        CopyEvent::Skipped { path } => ("skipped", path, serde_json::json!({})),
        CopyEvent::Deleted { path } => ("deleted", path, serde_json::json!({})),
        CopyEvent::Failed {
            path,
            message,
            obstacle,
            ..
        } => {
            let error = hints::of_file(message, *obstacle);
            ("failed", path, serde_json::json!({ "error": error }))
        }
    };
    let mut line = serde_json::json!({ "event": what, "target": target });
    // A path that is not UTF-8 is also given in base64.
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
        "adjusted": progress.adjusted,
        "skipped": progress.skipped,
        "deleted": progress.deleted,
        "failed": progress.failed,
        "sessions": progress.streams,
        "compressed": progress.compressed,
        "ciphers": ended.ciphers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "seconds": ended.elapsed.as_secs_f64(),
        "bytes_per_second": rate(bytes_moved(progress), ended.elapsed),
    })
}

#[cfg(test)]
mod tests {
    use trunkline_control::protocol::CopyCipher;

    use super::*;
    use crate::report::forms::forms;

    fn shows(dry_run: bool) -> Shows {
        Shows {
            progress: false,
            lines: false,
            json: false,
            names: false,
            changes: dry_run,
            compares: false,
            check: false,
            stats: false,
            quiet: false,
            dry_run,
            stdout_is_taken: false,
        }
    }

    fn end(files: u64, bytes: u64, failed: u64) -> CopyEnd {
        CopyEnd {
            progress: CopyProgress {
                files,
                bytes,
                failed,
                streams: 1,
                ..CopyProgress::default()
            },
            elapsed: Duration::from_millis(2100),
            ciphers: vec![CopyCipher {
                name: "aes128-gcm@openssh.com".into(),
                compressed: false,
            }],
        }
    }

    #[test]
    fn a_check_of_what_is_there_counts_and_nothing_is_said_to_be_moved() {
        let (hashing, lost) = (
            Waiting::Checking {
                bytes: 280 << 20,
                done: 120 << 20,
            },
            Waiting::Lost {
                host: "web1".into(),
                seconds: 24,
            },
        );
        let said = [
            names_done(true, 5000, 20_000, "+"),
            names_done(false, 5000, 20_000, ""),
            waits(&hashing),
            waits(&lost),
        ];
        assert_eq!(
            said,
            [
                "checked 5,000 of 20,000+ files",
                "5000/20000",
                "checking what is there: 120.00 MiB of 280.00 MiB",
                "web1: connection lost; trying again for 24 s"
            ]
        );
    }

    #[test]
    fn a_copy_that_does_not_move_says_so_until_it_does() {
        let (mut copies, begun) = (Copies::default(), Instant::now());
        let mut silence = |moved, after| copies.silence([moved, 0, 1], begun + Duration::from_secs(after));
        let said = [(0, 0), (0, 4), (0, 5), (0, 60), (1, 61), (1, 65), (1, 67)];
        let said = said.map(|(moved, after)| silence(moved, after).map(|silence| silence.as_secs()));
        assert_eq!(said, [None, None, Some(5), Some(60), None, None, Some(6)]);
        assert_eq!(
            silent("kmsg", Duration::from_secs(60)),
            "kmsg: nothing moved for 60 s; Ctrl-C interrupts"
        );
        assert_eq!(silent("", SILENT), "nothing moved for 5 s; Ctrl-C interrupts");
    }

    #[test]
    fn a_copy_ends_in_one_line() {
        let all = end(3, 1_288_490_189, 0);
        let mut part = end(3, 50_000_000, 2);
        part.progress.resumed = 20_000_000;
        part.progress.skipped = 4;
        part.progress.deleted = 1;
        part.progress.streams = 2;
        part.progress.compressed = true;
        let nothing = end(0, 0, 0);
        let lines = [
            (&all, false),
            (&all, true),
            (&part, false),
            (&part, true),
            (&nothing, false),
        ];
        insta::assert_snapshot!(forms(|width, _| {
            let lines = lines.iter().map(|(end, dry_run)| summary(end, shows(*dry_run)));
            lines.map(|line| wrap(&line, 2, width) + "\n").collect()
        }));
    }

    #[test]
    fn what_fails_alike_in_a_directory_has_one_reason() {
        let denied = |name: &str| {
            let path = format!("srv/{name}");
            reason_of(
                path.as_bytes(),
                &format!("web1:/srv/{name}: Permission denied"),
                Some(13),
            )
        };
        assert_eq!(denied("a"), denied("b"));
        let at_home = |name: &str| {
            let message = format!("web1:{name}: Permission denied");
            reason_of(name.as_bytes(), &message, Some(13))
        };
        assert_eq!(at_home("a"), at_home("b"));
        let full = |directory: &str, name: &str| {
            let path = format!("{directory}/{name}");
            let message = format!("no space left in web1:/{directory} for {name} (1.0 MiB)");
            reason_of(path.as_bytes(), &message, Some(28))
        };
        assert_eq!(full("srv", "a"), full("srv", "b"));
        assert_ne!(full("srv", "a"), full("opt", "a"));
    }

    #[test]
    fn copies_to_many_hosts_end_in_one_line_and_a_table_of_what_failed() {
        let copies = |ended: Vec<CopyEnd>| Copies {
            succeeded: ended.iter().filter(|end| end.progress.failed == 0).count(),
            ended,
            ..Copies::default()
        };
        let failed = |name: &str, host: &str| {
            format!("{name}:/srv/{host}/app.tar.gz: No such file or directory; --mkdir creates its directory")
        };
        let failures = [
            ("web1", failed("web1", "web1")),
            ("web2", failed("web2", "web2")),
            ("nope", "looking up nope: Name or service not known".into()),
        ];
        let failures: BTreeMap<String, Vec<String>> = failures
            .map(|(host, message)| (host.to_owned(), vec![message]))
            .into();
        let line = |copies: &Copies, hosts, dry_run| {
            summary_of_all(copies, hosts, Duration::from_millis(2100), shows(dry_run))
        };
        let shown = forms(|width, _| {
            let lines = [
                line(&copies(vec![end(1, 5 << 20, 0), end(1, 5 << 20, 0)]), 2, false),
                line(&copies(vec![end(1, 5 << 20, 0), end(1, 5 << 20, 0)]), 2, true),
                line(
                    &copies(vec![end(1, 5 << 20, 0), end(0, 0, 1), end(0, 0, 1)]),
                    4,
                    false,
                ),
                line(&copies(vec![end(0, 0, 1)]), 3, false),
            ];
            let lines = lines.map(|line| wrap(&line, 2, width) + "\n");
            lines.concat() + &table_of_failures(failures.clone(), width)
        });
        insta::assert_snapshot!(shown);
    }
}
