//! Commands: running, following and stopping them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use trunkline::ExitStatus;
use trunkline_request::destination::Destination;
use trunkline_text::{Printable, count_of};

use crate::arguments::LONGEST_WAIT;
use crate::call::{Call, Problem};
use crate::jobs::{Job, Order, state_words};
use crate::rules::Action;
use crate::shown::{BUDGET, Encoding, Marks, printable};
use crate::tools::Done;
use crate::{answers, arguments, words};

/// The longest input of a command, in bytes.
const LONGEST_INPUT: usize = 1 << 20;

/// The interval of progress reports.
const PROGRESS: Duration = Duration::from_secs(1);

pub(crate) async fn run(call: &Call<'_>, arguments: arguments::Run) -> Result<Done, Problem> {
    let limits = call.rules.limits;
    let most = limits.hosts.clamp(1, 1000);
    if arguments.hosts.is_empty() || arguments.hosts.len() > most {
        return Err(Problem::new(format!("hosts: give 1 to {most}; nothing was done")));
    }
    if arguments.input.len() > LONGEST_INPUT {
        return Err(Problem::new("input: at most 1 MiB; nothing was done"));
    }
    if arguments.wait_seconds > LONGEST_WAIT {
        return Err(Problem::new(format!(
            "wait_seconds: at most {LONGEST_WAIT}; nothing was done"
        )));
    }
    let mut destinations: Vec<Destination> = Vec::new();
    for name in &arguments.hosts {
        let destination = call.destination(name).await?;
        if !destinations.contains(&destination) {
            destinations.push(destination);
        }
    }
    let (action, line) = plan_action(&arguments)?;
    let wants: Vec<_> = destinations
        .iter()
        .map(|host| (host.clone(), action.clone()))
        .collect();
    let permit = call.permit(&wants).await?;
    let time = match arguments.timeout_seconds {
        0 => limits.time(),
        seconds => limits.time().min(Duration::from_secs(seconds.into())),
    };
    let input = Bytes::from(arguments.input);
    let mut jobs = Vec::new();
    for (destination, entry) in destinations.iter().zip(permit.entries) {
        let order = Order {
            host: call.host(destination).await?,
            line: line.clone(),
            input: input.clone(),
            time,
            output: limits.output(),
            keeps: arguments.keep_running,
        };
        jobs.push(call.state.jobs.start(order, Some(entry)));
    }
    let wait = Duration::from_secs(arguments.wait_seconds.into());
    wait_for_all(call, &jobs, wait, arguments.keep_running).await?;
    answer(call, &jobs)
}

/// Returns the action, and its line for the remote shell.
fn plan_action(arguments: &arguments::Run) -> Result<(Action, String), Problem> {
    if arguments.shell {
        let line = arguments.command.clone();
        let is_bad = |c: char| c.is_control() && c != '\n' && c != '\t';
        if line.trim().is_empty() || line.contains(is_bad) {
            return Err(Problem::new(
                "command: a line of text without control characters; nothing was done",
            ));
        }
        if arguments.sudo {
            return Err(Problem::new("sudo: not with shell; nothing was done"));
        }
        return Ok((Action::Shell(line.clone()), line));
    }
    let words = words::parse(&arguments.command)
        .map_err(|error| Problem::new(format!("command: {error}; nothing was done")))?;
    let line = match arguments.sudo {
        true => format!("sudo -n -- {}", words::quote(&words)),
        false => words::quote(&words),
    };
    let sudo = arguments.sudo;
    Ok((Action::Run { words, sudo }, line))
}

/// Waits for commands, for at most `wait`. If the call is cancelled they are stopped, unless they are to continue.
async fn wait_for_all(
    call: &Call<'_>,
    jobs: &[Arc<Job>],
    wait: Duration,
    keeps: bool,
) -> Result<(), Problem> {
    let all = async {
        for job in jobs {
            job.wait_for_end().await;
        }
    };
    tokio::pin!(all);
    let deadline = Instant::now() + wait;
    let begun = Instant::now();
    let mut next = begun + PROGRESS;
    loop {
        tokio::select! {
            biased;
            () = &mut all => return Ok(()),
            () = call.context.ct.cancelled() => {
                if !keeps {
                    jobs.iter().for_each(|job| job.stop());
                }
                // The answer to a cancelled call is not read.
                return Err(Problem::new("the call was cancelled"));
            }
            () = tokio::time::sleep_until(deadline) => return Ok(()),
            () = tokio::time::sleep_until(next) => {
                next += PROGRESS;
                let ended = jobs.iter().filter(|job| job.state().end.is_some()).count();
                let printed: u64 = jobs.iter().map(|job| job.state().printed).sum();
                let words = format!("{ended} of {} done, {}", count_of(jobs.len(), "command"), count_of(printed, "byte"));
                call.progress(begun.elapsed().as_secs_f64(), words).await;
            }
        }
    }
}

/// Returns the commands' results so far. Those whose output is complete are forgotten.
fn answer(call: &Call<'_>, jobs: &[Arc<Job>]) -> Result<Done, Problem> {
    let most = (BUDGET / (jobs.len().max(1) * 2)).max(64);
    let marks = Marks::new();
    let mut hosts = Vec::new();
    let mut text = String::new();
    let mut failed = false;
    for job in jobs {
        let mut ran = report(job, [most; 2]);
        if ran.state != "running" && ran.stdout.omitted_bytes + ran.stderr.omitted_bytes == 0 {
            call.state.jobs.forget(&job.id);
            ran.job.clear();
        }
        failed |= !ran.error.is_empty();
        text.push_str(&render_ran(&ran, &marks));
        hosts.push(ran);
    }
    let mut done = Done::new(format!("{}\n{text}", marks.notice()), &answers::Run { hosts })?;
    done.failed = failed;
    Ok(done)
}

/// Returns a command's exit status and its output, with the middle left out if long.
fn report(job: &Job, most: [usize; 2]) -> answers::Ran {
    let [stdout, stderr] = [0, 1].map(|which| {
        let spool = job.output(which);
        let part = spool.summary(most[which]);
        let (mut text, mut encoding) = printable(&part.bytes[..part.cut]);
        if part.left_out > 0 {
            let (tail, other) = printable(&part.bytes[part.cut..]);
            text.push_str(&format!(
                "\n[… {} left out …]\n{tail}",
                count_of(part.left_out, "byte")
            ));
            if other != Encoding::Utf8 {
                encoding = other;
            }
        }
        answers::Output {
            text,
            encoding,
            total_bytes: spool.total(),
            omitted_bytes: part.left_out,
            next_offset: if part.left_out > 0 {
                part.cut as u64
            } else {
                spool.total()
            },
        }
    });
    answer_for(job, stdout, stderr)
}

fn answer_for(job: &Job, stdout: answers::Output, stderr: answers::Output) -> answers::Ran {
    let state = job.state();
    let (mut exit_status, mut signal, mut error) = (None, String::new(), String::new());
    match &state.end {
        None => {}
        Some((Ok(ExitStatus::Exited(status)), _)) => exit_status = Some(*status),
        Some((Ok(ExitStatus::Signaled { signal: by, .. }), _)) => signal = Printable::line(by).into_string(),
        Some((Ok(ExitStatus::Unknown), _)) => error = "the server did not say how it ended".into(),
        Some((Err(failure), _)) => error = Printable::text(failure.to_string()).into_string(),
    }
    answers::Ran {
        host: job.host.clone(),
        state: state_words(&state).into(),
        exit_status,
        signal,
        error,
        stdout,
        stderr,
        job: job.id.clone(),
    }
}

/// Formats the result as text.
fn render_ran(ran: &answers::Ran, marks: &Marks) -> String {
    let mut text = format!("{}: {}", ran.host, ran.state);
    if let Some(status) = ran.exit_status {
        text.push_str(&format!(", exit status {status}"));
    }
    if !ran.signal.is_empty() {
        text.push_str(&format!(", ended by SIG{}", ran.signal));
    }
    if !ran.error.is_empty() {
        text.push_str(&format!(": {}", ran.error));
    }
    if !ran.job.is_empty() {
        text.push_str(&format!("; 'follow' with job {} has more", ran.job));
    }
    text.push('\n');
    for (name, output) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        if !output.text.is_empty() {
            text.push_str(&marks.wrap(&format!("{} {name}", ran.host), &output.text));
        }
    }
    text
}

fn find_job(call: &Call<'_>, id: &str) -> Result<Arc<Job>, Problem> {
    call.state.jobs.find(id).ok_or_else(|| {
        Problem::new(
            "there is no such job: its output was given whole, or it ended more than ten minutes ago",
        )
    })
}

pub(crate) async fn follow(call: &Call<'_>, arguments: arguments::Follow) -> Result<Done, Problem> {
    let job = find_job(call, &arguments.job)?;
    let offsets = [arguments.stdout_offset, arguments.stderr_offset];
    let has_more = || (0..2).any(|which| job.output(which).kept_bytes() > offsets[which]);
    let wait = Duration::from_secs(arguments.wait_seconds.min(LONGEST_WAIT).into());
    if !has_more() {
        let mut changes = job.changes();
        let more = async {
            // The sender is the job's own.
            let _ = changes.wait_for(|state| state.end.is_some() || has_more()).await;
        };
        tokio::select! {
            biased;
            () = more => {}
            () = call.context.ct.cancelled() => return Err(Problem::new("the call was cancelled")),
            () = tokio::time::sleep(wait) => {}
        }
    }
    let mut outputs = Vec::new();
    for (which, offset) in offsets.into_iter().enumerate() {
        let spool = job.output(which);
        let bytes = spool.read(offset, BUDGET / 2);
        let bytes =
            bytes.map_err(|error| Problem::new(format!("what was printed cannot be read: {error}")))?;
        let next_offset = offset + bytes.len() as u64;
        let (text, encoding) = printable(&bytes);
        outputs.push(answers::Output {
            text,
            encoding,
            total_bytes: spool.total(),
            omitted_bytes: spool.total() - spool.kept_bytes(),
            next_offset,
        });
    }
    let (stderr, stdout) = (
        outputs.pop().unwrap_or_default(),
        outputs.pop().unwrap_or_default(),
    );
    let marks = Marks::new();
    let ran = answer_for(&job, stdout, stderr);
    Done::new(format!("{}\n{}", marks.notice(), render_ran(&ran, &marks)), &ran)
}

pub(crate) async fn stop(call: &Call<'_>, arguments: &arguments::Stop) -> Result<Done, Problem> {
    let job = find_job(call, &arguments.job)?;
    job.stop();
    job.wait_for_end().await;
    let marks = Marks::new();
    let ran = report(&job, [BUDGET / 4; 2]);
    Done::new(format!("{}\n{}", marks.notice(), render_ran(&ran, &marks)), &ran)
}
