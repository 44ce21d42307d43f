//! Turns, medians, and the resources that child processes used.

use std::cell::RefCell;
use std::collections::HashMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::resource::{UsageWho, getrusage};

/// One of those that are measured in turns: a name and what makes one round's samples.
pub(crate) struct Contestant<'a> {
    pub(crate) name: String,
    round: Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>,
}

impl<'a> Contestant<'a> {
    pub(crate) fn new(name: impl Into<String>, round: impl FnMut() -> anyhow::Result<Vec<f64>> + 'a) -> Self {
        Self {
            name: name.into(),
            round: Box::new(round),
        }
    }
}

/// The samples of one contestant, in the unit of its row.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    pub(crate) name: String,
    /// By round.
    pub(crate) rounds: Vec<Vec<f64>>,
    /// The reason why there is less than was wanted.
    pub(crate) failure: Option<String>,
}

impl Samples {
    /// The median of the rounds' medians; `None` where no round succeeded.
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.round_medians())
    }

    /// The lowest and the highest of the rounds' medians.
    pub(crate) fn spread(&self) -> Option<(f64, f64)> {
        let medians = self.round_medians();
        let lowest = medians.iter().copied().reduce(f64::min)?;
        Some((lowest, medians.iter().copied().reduce(f64::max)?))
    }

    fn round_medians(&self) -> Vec<f64> {
        self.rounds.iter().filter_map(|round| median(round)).collect()
    }
}

/// A second figure of the same rounds: CPU time beside throughput, warm beside cold.
#[derive(Debug, Default)]
pub(crate) struct Aside(RefCell<Vec<Samples>>);

impl Aside {
    /// One round's samples.
    pub(crate) fn note(&self, name: &str, round: Vec<f64>) {
        let mut all = self.0.borrow_mut();
        match all.iter_mut().find(|samples| samples.name == name) {
            Some(samples) => samples.rounds.push(round),
            None => all.push(Samples {
                name: name.to_owned(),
                rounds: vec![round],
                failure: None,
            }),
        }
    }

    /// Everybody's, in the order of `like`.
    pub(crate) fn into_samples(self, like: &[Samples]) -> Vec<Samples> {
        let noted = self.0.into_inner();
        let find = |name: &str| {
            noted
                .iter()
                .find(|samples| samples.name == name)
                .map(|found| found.rounds.clone())
        };
        like.iter()
            .map(|samples| Samples {
                rounds: find(&samples.name).unwrap_or_default(),
                ..samples.clone()
            })
            .collect()
    }
}

/// Runs all contestants round by round, each round beginning with another one. Who fails is out.
pub(crate) fn in_turns(rounds: usize, contestants: &mut [Contestant<'_>]) -> Vec<Samples> {
    let mut all: Vec<Samples> = contestants
        .iter()
        .map(|contestant| Samples {
            name: contestant.name.clone(),
            rounds: Vec::new(),
            failure: None,
        })
        .collect();
    let count = contestants.len();
    for round in 0..rounds {
        for n in 0..count {
            let n = (n + round) % count;
            if all[n].failure.is_some() {
                continue;
            }
            match (contestants[n].round)() {
                Ok(samples) => all[n].rounds.push(samples),
                Err(error) => {
                    eprintln!("  {}: {error:#}", all[n].name);
                    all[n].failure = Some(format!("{error:#}"));
                }
            }
        }
    }
    all
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the time that a program takes from its start to its end, in seconds. It reads nothing and its output goes
/// nowhere.
pub(crate) fn time(command: &mut Command) -> anyhow::Result<f64> {
    command.stdout(Stdio::null());
    Ok(time_with_output(command)?.0)
}

/// The same, with what it has printed, unless that was sent elsewhere.
fn time_with_output(command: &mut Command) -> anyhow::Result<(f64, String)> {
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let output = command.spawn().and_then(Child::wait_with_output);
    let elapsed = begun.elapsed();
    let name = command.get_program().display().to_string();
    let output = output.with_context(|| format!("running {name}"))?;
    Ok((elapsed.as_secs_f64(), output_text(&name, output)?))
}

/// Returns the output of a program, if it succeeded.
pub(crate) fn output_text(name: &str, output: Output) -> anyhow::Result<String> {
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        complaint.trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Starts programs all at once and waits for all: the seconds that took, and how each ended. Their output goes nowhere.
pub(crate) fn time_at_once(
    count: usize,
    command: impl Fn() -> Command,
) -> anyhow::Result<(f64, Vec<Output>)> {
    let begun = Instant::now();
    let children: Vec<Child> = (0..count)
        .map(|_| {
            command()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let ended = children.into_iter().map(Child::wait_with_output);
    let outputs = ended.collect::<Result<_, _>>()?;
    Ok((begun.elapsed().as_secs_f64(), outputs))
}

/// The resources that a program has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    /// Seconds of CPU time.
    pub(crate) cpu: f64,
}

/// Runs a program to its end. `output` sees what it prints; without it, the output goes to /dev/null.
pub(crate) fn usage(command: &mut Command, output: Option<&mut String>) -> anyhow::Result<Usage> {
    let before = cpu_of_children()?;
    let seconds = match output {
        None => time(command)?,
        Some(output) => {
            let (seconds, text) = time_with_output(command.stdout(Stdio::piped()))?;
            *output = text;
            seconds
        }
    };
    Ok(Usage {
        seconds,
        cpu: (cpu_of_children()? - before).as_secs_f64(),
    })
}

/// The CPU time of the children that have ended and been waited for.
pub(crate) fn cpu_of_children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .sum::<i64>();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

/// The CPU time of a process that runs (`utime` and `stime` of proc_pid_stat(5)), to 10 ms.
pub(crate) fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    Ok(Stat::read(pid)?.cpu)
}

/// The CPU time of a process, of all below it, and of those of them that have ended and were waited for.
pub(crate) fn cpu_of_family(pid: u32) -> anyhow::Result<Duration> {
    let entries =
        std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // One that has just ended counts where it was waited for.
    let all: HashMap<u32, Stat> = entries
        .filter_map(|pid| Some((pid, Stat::read(pid).ok()?)))
        .collect();
    let is_below = |mut one: u32| {
        while one != pid {
            match all.get(&one) {
                Some(stat) => one = stat.parent,
                None => return false,
            }
        }
        true
    };
    let family = all.iter().filter(|(one, _)| is_below(**one));
    Ok(family.map(|(_, stat)| stat.cpu + stat.cpu_of_ended).sum())
}

/// The facts of proc_pid_stat(5) about a process, times to 10 ms.
struct Stat {
    parent: u32,
    cpu: Duration,
    /// Of its children that have ended and were waited for, and of theirs.
    cpu_of_ended: Duration,
}

impl Stat {
    fn read(pid: u32) -> anyhow::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, after_name) = stat.rsplit_once(')').context("stat has no name")?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let number = |field: usize| -> anyhow::Result<u64> {
            Ok(fields.get(field).context("stat is too short")?.parse()?)
        };
        // USER_HZ, the unit of these fields, is 100 on every Linux of today.
        let time = |user: u64, system: u64| Duration::from_millis((user + system) * 10);
        Ok(Self {
            parent: u32::try_from(number(1)?)?,
            cpu: time(number(11)?, number(12)?),
            cpu_of_ended: time(number(13)?, number(14)?),
        })
    }
}

/// The most resident memory that a process has had, in bytes (`VmHWM` of proc_pid_status(5)).
pub(crate) fn peak_memory_of(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = number.context("status tells no VmHWM")?.parse()?;
    Ok(kib * 1024)
}

/// Returns the load of the machine, in processes (`/proc/loadavg`, the last minute).
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn who_fails_is_out_and_keeps_what_it_has_shown() {
        let mut turns = 0;
        let failing = Contestant::new("failing", || {
            turns += 1;
            ensure!(turns < 2, "tired");
            Ok(vec![1.0])
        });
        let samples = in_turns(3, &mut [failing, Contestant::new("steady", || Ok(vec![2.0]))]);
        assert_eq!(
            (samples[0].rounds.len(), samples[0].failure.as_deref()),
            (1, Some("tired"))
        );
        assert_eq!((samples[1].rounds.len(), samples[1].median()), (3, Some(2.0)));
    }

    #[test]
    fn the_cpu_time_of_a_running_process_is_read() {
        let own = std::process::id();
        let alone = cpu_of(own).unwrap();
        assert!(cpu_of_family(own).unwrap() >= alone);
    }
}
