//! `trunkline cp`: files and trees to and from hosts.

mod ends;
mod filters;
mod paths;
mod view;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal as _, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::error::ErrorKind;
use futures_util::StreamExt as _;
use serde_bytes::ByteBuf;
use trunkline_control::client::ClientError;
use trunkline_control::protocol::{
    CopyEnd, CopyOptions, CopyPlace, CopyRequest, HostRequest, Reply, Request,
};
use trunkline_request::World;
use trunkline_request::copy::{Backup, Comparison};
use trunkline_request::destination::Destination;
use trunkline_request::failure;
use trunkline_request::mode::ModeChange;
use trunkline_text::Printable;

use crate::backend::{Backend, Daemon, request_for, runtime};
use crate::commands::run::{ManyHosts, warn_of};
use crate::hints::Refused;
use crate::questions::Conversation;
use crate::ssh_options::{HOSTS, HostOptions};
use crate::terminal::can_be_drawn_on;
use crate::terminal::interrupts::{Interrupts, status_of};
use filters::{CHOOSING, FilterArgs};
use paths::{STDOUT, open_passed};
use view::{Shows, View};

/// Headings of `--help`.
const COPYING: &str = "Copying";
const REPLACED: &str = "Deleted and replaced files";

/// Arguments of `trunkline cp`.
#[derive(Debug, clap::Args)]
// `-P` is scp's letter for the port; -p means something else there.
#[command(
    override_usage = "trunkline cp [OPTIONS] SOURCE… TARGET",
    mut_arg("port", |port| port.short('P')),
    // rsync's users type both: -ra.
    group = clap::ArgGroup::new("directories").multiple(true)
)]
pub(crate) struct Args {
    /// Copy directories and everything in them; symbolic links in them are copied as links.
    #[arg(help_heading = COPYING, short, long, group = "directories")]
    recursive: bool,
    /// Copy directories as they are: -r and -p, owners and groups if you are root at the target, and skip files that
    /// the target has with the same size and time, as rsync does. A source that ends in a slash stands for what is in
    /// it.
    #[arg(help_heading = COPYING, short, long, group = "directories")]
    archive: bool,
    /// Keep times and permissions, as scp does.
    #[arg(help_heading = COPYING, short, long)]
    preserve: bool,
    /// With -a: keep owners and groups by their numbers, not by their names. On the target's side you have to be root.
    #[arg(help_heading = COPYING, long, requires = "archive")]
    numeric_ids: bool,
    /// With -a, as root on the target's side: do not keep owners and groups.
    #[arg(help_heading = COPYING, long, requires = "archive", conflicts_with = "numeric_ids")]
    no_owner: bool,
    /// Change permissions before they count, as rsync does: Dg+s,ug+w,o-rwx,F644. D is for directories, F for files.
    #[arg(help_heading = COPYING, long, value_name = "CHANGES")]
    chmod: Option<String>,
    /// Names of one file become names of one file at the target; from this machine to a server. (-H is for hosts.)
    #[arg(help_heading = COPYING, long, requires = "directories")]
    hard_links: bool,
    /// Skip files that exist on the target with the same time or a later one; with -a or --delete, those with a later
    /// one.
    #[arg(help_heading = CHOOSING, short, long)]
    update: bool,
    /// Skip files that exist on the target with the same content, whatever their times; both ends hash those of the
    /// same size.
    #[arg(help_heading = CHOOSING, long)]
    checksum: bool,
    /// Skip files that exist on the target with the same size.
    #[arg(help_heading = CHOOSING, long, conflicts_with = "checksum")]
    size_only: bool,
    /// Copy files that exist on the target with the same size and time, too.
    #[arg(help_heading = CHOOSING, short = 'I', long, conflicts_with_all = ["checksum", "size_only"])]
    ignore_times: bool,
    /// Keep partial large files when a copy is interrupted, and resume from what both ends' hashes show to be right.
    /// This is the default.
    #[arg(help_heading = COPYING, long, overrides_with = "no_partial")]
    partial: bool,
    /// Do not keep partial files.
    #[arg(help_heading = COPYING, long)]
    no_partial: bool,
    /// Skip files that exist on the target, whatever is in them.
    #[arg(help_heading = CHOOSING, long)]
    ignore_existing: bool,
    #[command(flatten)]
    filters: FilterArgs,
    /// Copy only what this file lists: paths below the source directory, one a line; `-` is standard input. They keep
    /// their directories. With -r, listed directories are copied with their contents.
    #[arg(help_heading = CHOOSING, long, value_name = "FILE", requires = "directories")]
    files_from: Option<PathBuf>,
    /// The names of --files-from end in NUL bytes.
    #[arg(help_heading = CHOOSING, short = '0', long, requires = "files_from")]
    from0: bool,
    /// Skip files that are smaller; K, M and G are powers of 1,024.
    #[arg(help_heading = CHOOSING, long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// Skip files that are larger.
    #[arg(help_heading = CHOOSING, long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Skip symbolic links that lead out of the tree.
    #[arg(help_heading = CHOOSING, long)]
    safe_links: bool,
    /// Delete files in copied directories that the source does not have, and skip files with the same size and time, as
    /// -a does. Nothing is deleted unless everything was copied.
    #[arg(help_heading = REPLACED, long, requires = "directories")]
    delete: bool,
    /// Delete names that --exclude skips, too.
    #[arg(help_heading = REPLACED, long, requires = "delete")]
    delete_excluded: bool,
    /// Keep what is replaced or deleted, with ~ behind its name.
    #[arg(help_heading = REPLACED, long)]
    backup: bool,
    /// Keep what is replaced or deleted in this directory, under its own name; a relative path begins at the target.
    #[arg(help_heading = REPLACED, long, value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// Append this to the names of backups; nothing where there is a --backup-dir.
    #[arg(help_heading = REPLACED, long, value_name = "TEXT")]
    suffix: Option<OsString>,
    /// Create the target's directory and those above it.
    #[arg(help_heading = COPYING, long)]
    mkdir: bool,
    /// Compress, as -o Compression=yes does.
    #[arg(help_heading = COPYING, short = 'C')]
    compress: bool,
    /// Limit the rate, in bytes a second, of all hosts together; K, M and G are powers of 1,024.
    #[arg(help_heading = COPYING, long, value_name = "RATE", value_parser = size)]
    bwlimit: Option<u64>,
    /// Write each file to the target's disk (fsync) before renaming it into place.
    #[arg(help_heading = COPYING, long)]
    fsync: bool,
    /// When everything is copied, hash every copied file on both ends and compare. Needs a shell on the server.
    #[arg(help_heading = COPYING, long)]
    verify: bool,
    /// Compare source and target by hashes, or with --size-only by sizes, and change nothing: the exit status is 1
    /// where anything differs.
    #[arg(help_heading = COPYING, long, conflicts_with_all = ["dry_run", "update", "ignore_existing", "ignore_times", "delete"])]
    check: bool,
    /// Show what would be copied and deleted, why, and how much, without doing it.
    #[arg(help_heading = COPYING, short = 'n', long)]
    dry_run: bool,
    /// Name everything that changes, and why: new, size, time, mode, owner, link, content.
    #[arg(help_heading = "Output", long, visible_alias = "itemize-changes")]
    itemize: bool,
    /// End with a table of what was found, copied and deleted.
    #[arg(help_heading = "Output", long)]
    stats: bool,
    /// Name everything that is copied or skipped.
    #[arg(help_heading = "Output", short, long)]
    verbose: bool,
    /// Show errors and nothing else.
    #[arg(help_heading = "Output", short, long, conflicts_with_all = ["verbose", "progress"])]
    quiet: bool,
    /// Show progress even if standard error is not a terminal, as one line a second.
    #[arg(help_heading = "Output", long)]
    progress: bool,
    /// Print one JSON object for each name, and a summary at the end.
    #[arg(help_heading = "Output", long, conflicts_with = "progress")]
    json: bool,
    /// The most sessions for a large file. By default, as many as the distance makes worthwhile.
    #[arg(help_heading = COPYING, long, value_name = "NUMBER")]
    streams: Option<usize>,
    #[command(flatten)]
    many: ManyHosts,
    /// Hosts to copy to or from at the same time.
    #[arg(help_heading = HOSTS, short, long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    #[command(flatten)]
    ssh: HostOptions,
    /// Sources and a target: local paths, HOST:PATH, USER@HOST:PATH, scp:// and sftp:// URIs, or - for standard input
    /// or output. With -H or -i, `:PATH` is a path on each of the hosts, and `{host}` the host's name. Write a local
    /// path that contains a colon with a slash before it, as ./a:b.
    // Options may stand between paths, which `num_args` would take for the end.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn main(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(run(args, backend))
}

async fn run(args: Args, backend: &Backend) -> anyhow::Result<ExitCode> {
    let world = World::current().context("reading the environment")?;
    let (sources, target) = args.ends();
    let (sources, target) = (&*sources, &target);
    let (copies, skipped) = args.copies(sources, target, &world, backend).await?;
    let mut options = args.options(&world)?;
    let Some(first) = copies.first() else {
        warn_of(&skipped);
        bail!("no hosts match")
    };
    // A directory for each host does not exist yet.
    options.mkdir |= args.many.are_given() && matches!(first.target, CopyPlace::Local(_));
    let opened = open_passed(&first.sources, &first.target)?;
    ensure!(
        args.files_from.is_none() || sources.len() == 1,
        "--files-from lists paths below one source directory, and there are {}",
        sources.len()
    );
    ensure!(
        opened.is_empty() || copies.len() == 1,
        "standard input and pipes can be read once, and there are {} hosts",
        copies.len()
    );
    let fds: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
    let view = View::new(args.shows(&first.target), copies.len() + skipped.len());
    let questions = backend.questions();
    questions.hide_while_asking(view.bar()).await;
    let mut hosts = Vec::new();
    for copy in &copies {
        hosts.extend(copy.host());
    }
    questions.name_hosts(hosts).await;
    let mut interrupts = Interrupts::watch()?;
    let rate = (copies.len() > 1 && args.bwlimit.is_some()).then(rand::random);
    let again = &args.again(sources, target);
    let copies = copies.into_iter().enumerate().map(|(place, copy)| {
        let request = CopyRequest {
            sources: copy.sources,
            target: copy.target,
            options: options.clone(),
            names: args.json || args.verbose || args.is_dry() || args.itemize,
            rate,
        };
        let (view, fds, name) = (&view, &fds, copy.name);
        async move {
            let ended = converse(backend, request, fds, (place, &name), view, again).await;
            (name, ended)
        }
    });
    let mut copies = futures_util::stream::iter(copies).buffer_unordered(args.jobs.into());
    for host in &skipped {
        view.report_broken(&host.name, &anyhow!("{}", host.why));
    }
    let mut success = skipped.is_empty();
    loop {
        let ended = match interrupts.or(copies.next()).await {
            Ok(ended) => ended,
            Err(signal) => {
                view.report_interrupt(match args.is_dry() || args.no_partial {
                    true => "not everything was done",
                    false => again,
                });
                return Ok(ExitCode::from(status_of(signal)));
            }
        };
        match ended {
            None => break,
            Some((name, Ok(ended))) => success &= view.report_end(&name, ended)?,
            Some((name, Err(error))) if view.several() => {
                success = false;
                view.report_broken(&name, &error);
            }
            Some((_, Err(error))) => {
                view.finish();
                return Err(error);
            }
        }
    }
    view.finish();
    Ok(if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Args {
    /// Returns the sources of a copy, and its target.
    fn ends(&self) -> (Vec<OsString>, OsString) {
        let (target, sources) = match &*self.paths {
            [sources @ .., target] if !sources.is_empty() => (target, sources),
            _ => clap::Error::raw(
                ErrorKind::TooFewValues,
                "cp needs a source and a target: trunkline cp SOURCE… TARGET\n",
            )
            .exit(),
        };
        let mut sources = sources.to_vec();
        let is_only = sources.len() == 1;
        for source in &mut sources {
            match ends_with(source, b"/") {
                // As in rsync: a second run does the same as the first, although the target then exists.
                true if self.mirrors() || self.files_from.is_some() => source.push("."),
                // Listed paths go into the target itself.
                false if is_only && self.files_from.is_some() => source.push("/."),
                _ => {}
            }
        }
        (sources, target.clone())
    }

    fn options(&self, world: &World) -> anyhow::Result<CopyOptions> {
        let mut options = CopyOptions::default();
        options.recursive = self.recursive || self.archive || self.check;
        options.preserve = self.preserve || self.archive;
        options.owners = self.archive && !self.no_owner;
        options.numeric_ids = self.numeric_ids;
        if let Some(changes) = &self.chmod {
            options.chmod = ModeChange::read(changes, world.umask)?;
        }
        options.hard_links = self.hard_links;
        options.backup = self.backup()?;
        options.update = self.update;
        options.compare = self.comparison();
        options.partial = !self.no_partial;
        options.sync = self.fsync;
        options.verify = self.verify;
        options.dry_run = self.is_dry();
        options.only = self.only()?;
        // As in rsync: -a alone does not imply it.
        options.only_recursive = self.recursive;
        options.min_size = self.min_size;
        options.max_size = self.max_size;
        options.safe_links = self.safe_links;
        options.filters = self.filters.rules()?;
        // Extra files of the target are reported.
        options.delete = self.delete || self.check;
        options.delete_excluded = self.delete_excluded;
        options.ignore_existing = self.ignore_existing;
        options.mkdir = self.mkdir;
        options.limit = self.bwlimit;
        options.streams = self.streams;
        options.umask = world.umask;
        Ok(options)
    }

    /// Returns the place for replaced and deleted files.
    fn backup(&self) -> anyhow::Result<Option<Backup>> {
        if !self.backup && self.backup_dir.is_none() {
            ensure!(self.suffix.is_none(), "--suffix is for --backup");
            return Ok(None);
        }
        let directory = self.backup_dir.as_ref();
        let directory = directory.map(|path| ByteBuf::from(path.as_os_str().as_bytes()));
        let usual = if directory.is_some() { "" } else { "~" };
        let suffix = self.suffix.as_deref().unwrap_or(OsStr::new(usual)).as_bytes();
        ensure!(
            directory.is_some() || !suffix.is_empty(),
            "without a suffix or --backup-dir a backup would have the name of the file"
        );
        ensure!(!suffix.contains(&b'/'), "a suffix has no slash");
        let suffix = ByteBuf::from(suffix);
        Ok(Some(Backup { directory, suffix }))
    }

    /// Returns true if options mean the same as in rsync.
    fn mirrors(&self) -> bool {
        self.archive || self.delete || self.check
    }

    /// Returns true if nothing is changed.
    fn is_dry(&self) -> bool {
        self.dry_run || self.check
    }

    /// Returns the names that --files-from lists.
    fn only(&self) -> anyhow::Result<Option<Vec<ByteBuf>>> {
        let Some(path) = &self.files_from else {
            return Ok(None);
        };
        let read = match path.as_os_str().as_bytes() {
            b"-" => {
                let mut list = Vec::new();
                std::io::stdin().read_to_end(&mut list).map(|_| list)
            }
            _ => std::fs::read(path),
        };
        let list = read.with_context(|| format!("reading {}", path.display()))?;
        let end = if self.from0 { 0 } else { b'\n' };
        let names = list.split(|byte| *byte == end);
        let names = names.map(|name| match self.from0 {
            true => name,
            false => name.strip_suffix(b"\r").unwrap_or(name),
        });
        let is_comment = |name: &[u8]| !self.from0 && matches!(name.first(), Some(b'#' | b';'));
        let names = names.filter(|name| !name.is_empty() && !is_comment(name));
        Ok(Some(names.map(|name| ByteBuf::from(name.to_vec())).collect()))
    }

    fn comparison(&self) -> Comparison {
        let mirrors = (self.archive || self.delete) && !self.ignore_times;
        match (self.checksum || self.check && !self.size_only, self.size_only) {
            (true, _) => Comparison::Content,
            (_, true) => Comparison::Size,
            _ if mirrors => Comparison::SizeAndTime,
            _ => Comparison::Nothing,
        }
    }

    /// Returns the advice after an interrupted copy. A directory that was to get a new name may exist by then, and the
    /// same command would copy into it.
    fn again(&self, sources: &[OsString], target: &OsStr) -> String {
        let same = "run the same command again to copy the rest";
        let is_new_name = (self.recursive || self.archive) && !self.mkdir && !self.many.are_given();
        let is_content = |source: &OsStr| source == "." || ends_with(source, b"/.");
        match sources {
            [source] if is_new_name && !is_content(source) && !ends_with(target, b"/") => {
                let (source, target) = (
                    Printable::line(source.as_bytes()),
                    Printable::line(target.as_bytes()),
                );
                format!(
                    "{same}; if {source} is a directory and {target} is new, with {source}/. in its place"
                )
            }
            _ => same.to_owned(),
        }
    }

    fn shows(&self, target: &CopyPlace) -> Shows {
        let on_terminal = can_be_drawn_on(&std::io::stderr());
        let stdout_is_taken = matches!(target, CopyPlace::Passed(path) if path.as_os_str() == STDOUT);
        // A bar does not mix with output on the terminal.
        let is_seen = stdout_is_taken && std::io::stdout().is_terminal();
        let progress = !self.json && !self.quiet && (self.progress || on_terminal && !is_seen);
        Shows {
            progress,
            lines: progress && !on_terminal,
            json: self.json,
            names: self.verbose,
            changes: (self.itemize || self.is_dry()) && !self.quiet,
            check: self.check,
            compares: !self.update && !self.ignore_existing && self.comparison() != Comparison::Nothing,
            stats: self.stats,
            quiet: self.quiet,
            dry_run: self.is_dry(),
            stdout_is_taken,
        }
    }

    /// Returns the request for a host, which may have options of its own.
    fn host(&self, destination: Destination, own: &[OsString]) -> anyhow::Result<HostRequest> {
        let mut ssh_args = self.ssh.to_session_args();
        ssh_args.extend_from_slice(own);
        if self.compress {
            // The first option wins, and as in ssh, the letter takes precedence over -o.
            ssh_args.splice(..0, ["-o".into(), "Compression=yes".into()]);
        }
        request_for(destination, ssh_args)
    }
}

fn ends_with(path: &OsStr, end: &[u8]) -> bool {
    path.as_bytes().ends_with(end)
}

/// Parses a size such as `10M` into bytes.
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
    (place, name): (usize, &str),
    view: &View,
    again: &str,
) -> anyhow::Result<CopyEnd> {
    let client = backend.connect(Daemon::Usual).await?;
    let keeps_parts = request.options.partial && !request.options.dry_run;
    let mut has_begun = false;
    client.send_with(&Request::Copy(Box::new(request)), fds).await?;
    let mut talk = Conversation::new(client, backend.questions()).with_place(place);
    loop {
        let reply = match talk.next().await {
            Err(ClientError::Gone) => {
                bail!("the daemon ended; {again}")
            }
            reply => reply?,
        };
        let _quiet = talk.quiet().await?;
        match reply {
            Reply::Progress(progress) => {
                has_begun |= progress.total_files > 0;
                view.progress(name, progress);
            }
            Reply::Names(events) => view.names(name, events)?,
            Reply::Copied(ended) => return Ok(ended),
            Reply::Notice(text) => view.line(text.trim_end()),
            Reply::Failed(failure) => {
                let is_lost = matches!(
                    failure.kind,
                    failure::ErrorKind::Network | failure::ErrorKind::Timeout
                );
                if is_lost && has_begun && keeps_parts {
                    bail!("{}; {again}", Refused(failure))
                }
                bail!(Refused(failure))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
