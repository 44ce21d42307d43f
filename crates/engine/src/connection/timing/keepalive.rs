//! Decides when to check that a silent server is still there, and when to give it up, on simulated time.
//!
//! Two rules apply: the host's ServerAliveInterval and ServerAliveCountMax, and the engine's own check, which finds
//! dead connections without such a setting.
//!
//! A server that owes an answer is asked sooner. If it stays silent, the connection is retired, and then its unanswered
//! requests end. The connection itself is kept, because its network and everything on it may come back. It is given up
//! if a copy or a sender waits for it: these can start again, and a cut cable should be reported quickly.

use std::time::{Duration, Instant};

use crate::config::HostConfig;
use crate::settings::Settings;

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Nothing,
    /// Request an answer from the server.
    Ask,
    /// Retire the connection: the server has been silent although it owes an answer and was asked.
    Doubt,
    /// End the unanswered requests: the server is still silent.
    Forsake {
        silent: Duration,
    },
    /// Give the connection up.
    GiveUp {
        rule: Rule,
        silent: Duration,
    },
}

/// The rule behind a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    ServerAliveInterval,
    Check,
}

/// The watches over a connection's silent server.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    heard: Instant,
    rules: [Option<(Rule, Watch)>; 2],
    /// Set while the server may owe an answer to a request.
    owed: Option<Watch>,
    /// The number of clients that cannot progress without an answer: SFTP sessions.
    waiting: u32,
    /// The socket takes nothing more.
    is_blocked: bool,
    /// Set while a client waits for the server.
    expected: Option<Watch>,
    /// The time limit for an answer.
    limit: Duration,
}

/// A limit on silence.
#[derive(Debug)]
struct Watch {
    /// The silence after which the server is asked.
    silence: Duration,
    /// The time it then has to answer, before it is asked again or has failed.
    patience: Duration,
    /// The most questions before it has failed.
    most: u32,
    asked: u32,
    due: Instant,
}

/// The next step of a [`Watch`].
enum Step {
    Nothing,
    Ask,
    Over,
}

/// Practically for ever: a program may set Duration::MAX, which cannot be added to a time.
const LONGEST: Duration = Duration::from_secs(1 << 31);

/// The number of further halves of `probe_limit` that a server may owe an answer in silence. The total is that of a
/// copy.
const QUESTIONS: u32 = 3;

impl Watch {
    fn new(silence: Duration, patience: Duration, most: u32, now: Instant) -> Self {
        let (silence, patience) = (silence.min(LONGEST), patience.min(LONGEST));
        Self {
            silence,
            patience,
            most,
            asked: 0,
            due: now + silence,
        }
    }

    fn note_answer(&mut self, now: Instant) {
        self.asked = 0;
        self.due = now + self.silence;
    }

    fn step(&mut self, now: Instant) -> Step {
        if now < self.due {
            return Step::Nothing;
        }
        if self.asked >= self.most {
            return Step::Over;
        }
        self.asked += 1;
        // From now on: even if this process was stopped for long, the server gets its time.
        self.due = now + self.patience;
        Step::Ask
    }
}

impl KeepAlive {
    pub(crate) fn new(host: &HostConfig, settings: &Settings, now: Instant) -> Self {
        let server_alive = host.server_alive_interval.map(|interval| {
            let watch = Watch::new(interval, interval, host.server_alive_count_max, now);
            (Rule::ServerAliveInterval, watch)
        });
        let check = (!settings.probe_after.is_zero()).then(|| {
            let watch = Watch::new(settings.probe_after, settings.probe_limit, 1, now);
            (Rule::Check, watch)
        });
        Self {
            heard: now,
            rules: [server_alive, check],
            owed: None,
            waiting: 0,
            is_blocked: false,
            expected: None,
            limit: settings.probe_limit,
        }
    }

    /// Counts one more (`true`) or one less client that depends on the server.
    pub(crate) fn change_waiting(&mut self, awaited: bool, now: Instant) {
        self.waiting = match awaited {
            true => self.waiting.saturating_add(1),
            false => self.waiting.saturating_sub(1),
        };
        self.expect(now);
    }

    /// Notes whether the socket is blocked.
    pub(crate) fn sends(&mut self, is_blocked: bool, now: Instant) {
        if self.is_blocked
            && !is_blocked
            && let Some(watch) = &mut self.expected
        {
            // The blocked data is being sent, however slowly.
            watch.note_answer(now);
        }
        self.is_blocked = is_blocked;
        self.expect(now);
    }

    fn expect(&mut self, now: Instant) {
        let [_, check] = &self.rules;
        match (self.waiting > 0 || self.is_blocked) && check.is_some() {
            true => {
                let (silence, patience) = (self.limit / 2, self.limit.saturating_mul(3) / 2);
                self.expected
                    .get_or_insert_with(|| Watch::new(silence, patience, 1, now));
            }
            false => self.expected = None,
        }
    }

    /// Notes a request that the server answers at once.
    pub(crate) fn note_question(&mut self, now: Instant) {
        let half = self.limit / 2;
        self.owed
            .get_or_insert_with(|| Watch::new(half, half, QUESTIONS, now));
    }

    /// Notes that the server has answered all requests.
    pub(crate) fn note_settled(&mut self) {
        self.owed = None;
    }

    /// Notes that something came from the server.
    pub(crate) fn note_answer(&mut self, now: Instant) {
        self.heard = now;
        let rules = self.rules.iter_mut().flatten().map(|(_, watch)| watch);
        for watch in rules.chain(&mut self.expected).chain(&mut self.owed) {
            watch.note_answer(now);
        }
    }

    /// Returns when the next step may be due if the server stays silent.
    pub(crate) fn due(&self) -> Option<Instant> {
        let rules = self.rules.iter().flatten().map(|(_, watch)| watch);
        rules
            .chain(&self.owed)
            .chain(&self.expected)
            .map(|watch| watch.due)
            .min()
    }

    /// Returns the first step that is due. Call it until there is none.
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        let mut asks = false;
        let rules = self.rules.iter_mut().flatten();
        let rules = rules.map(|(rule, watch)| (*rule, watch));
        for (rule, watch) in rules.chain(self.expected.as_mut().map(|watch| (Rule::Check, watch))) {
            match watch.step(now) {
                Step::Nothing => {}
                Step::Ask => asks = true,
                Step::Over => {
                    return Turn::GiveUp {
                        rule,
                        silent: now - self.heard,
                    };
                }
            }
        }
        if asks {
            return Turn::Ask;
        }
        let Some(owed) = &mut self.owed else {
            return Turn::Nothing;
        };
        match owed.step(now) {
            Step::Nothing => Turn::Nothing,
            Step::Ask if owed.asked == 2 => Turn::Doubt,
            Step::Ask => Turn::Ask,
            Step::Over => {
                self.owed = None;
                match self.rules {
                    [_, Some(_)] => Turn::Forsake {
                        silent: now - self.heard,
                    },
                    _ => Turn::Nothing,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keepalive(server_alive: Option<(u32, u32)>, start: Instant) -> KeepAlive {
        let mut host = HostConfig::explicit("host", 22, "user").unwrap();
        host.server_alive_interval = server_alive.map(|(interval, _)| SECOND * interval);
        host.server_alive_count_max = server_alive.map_or(3, |(_, most)| most);
        KeepAlive::new(&host, &Settings::default(), start)
    }

    /// Returns the steps while the server is silent, with their seconds.
    fn silence(keepalive: &mut KeepAlive, start: Instant) -> Vec<(u64, Turn)> {
        let mut turns = Vec::new();
        while !matches!(turns.last(), Some((_, Turn::GiveUp { .. }))) {
            let now = keepalive.due().unwrap();
            turns.push(((now - start).as_secs(), keepalive.turn(now)));
        }
        turns
    }

    fn give_up(rule: Rule, seconds: u32) -> Turn {
        Turn::GiveUp {
            rule,
            silent: SECOND * seconds,
        }
    }

    #[test]
    fn a_silent_server_is_asked_and_given_up() {
        let start = Instant::now();
        assert_eq!(
            silence(&mut keepalive(None, start), start),
            [(60, Turn::Ask), (70, give_up(Rule::Check, 70))]
        );
        let rule = Rule::ServerAliveInterval;
        assert_eq!(
            silence(&mut keepalive(Some((15, 2)), start), start),
            [(15, Turn::Ask), (30, Turn::Ask), (45, give_up(rule, 45))]
        );
        assert_eq!(
            silence(&mut keepalive(Some((5, 0)), start), start),
            [(5, give_up(rule, 5))]
        );
    }

    #[test]
    fn no_silence_is_no_check_and_the_longest_never_ends() {
        let (host, start) = (HostConfig::explicit("host", 22, "user").unwrap(), Instant::now());
        let with = |probe_after, probe_limit| {
            let settings = Settings {
                probe_after,
                probe_limit,
                ..Settings::default()
            };
            KeepAlive::new(&host, &settings, start)
        };
        assert_eq!(with(Duration::ZERO, SECOND).due(), None);
        let mut never = with(Duration::MAX, Duration::MAX);
        never.note_answer(start + SECOND);
        never.note_question(start + SECOND);
        assert_eq!(never.turn(start + 1_000_000_000 * SECOND), Turn::Nothing);
    }

    #[test]
    fn whatever_comes_from_the_server_starts_the_silence_anew() {
        let start = Instant::now();
        let mut keepalive = keepalive(Some((15, 1)), start);
        assert_eq!(keepalive.turn(start + 15 * SECOND), Turn::Ask);
        keepalive.note_answer(start + 16 * SECOND);
        assert_eq!(keepalive.due(), Some(start + 31 * SECOND));
        assert_eq!(keepalive.turn(start + 30 * SECOND), Turn::Nothing);
        assert_eq!(keepalive.turn(start + 31 * SECOND), Turn::Ask);
    }

    #[test]
    fn a_server_that_owes_an_answer_is_asked_sooner_doubted_and_forsaken_before_it_is_given_up() {
        let start = Instant::now();
        let mut keepalive = keepalive(None, start);
        keepalive.note_question(start + 20 * SECOND);
        keepalive.note_question(start + 22 * SECOND);
        let expected = [
            (25, Turn::Ask),
            (30, Turn::Doubt),
            (35, Turn::Ask),
            (40, Turn::Forsake { silent: SECOND * 40 }),
            (60, Turn::Ask),
            (70, give_up(Rule::Check, 70)),
        ];
        assert_eq!(silence(&mut keepalive, start), expected);
    }

    #[test]
    fn a_server_that_somebody_waits_for_is_given_up_sooner() {
        let start = Instant::now();
        let gone = |seconds| {
            vec![
                (seconds - 15, Turn::Ask),
                (seconds, give_up(Rule::Check, seconds as u32)),
            ]
        };
        let mut copied = keepalive(None, start);
        copied.change_waiting(true, start);
        assert_eq!(silence(&mut copied, start), gone(20));
        let mut sent = keepalive(None, start);
        sent.sends(true, start);
        sent.sends(false, start + 3 * SECOND);
        sent.sends(true, start + 3 * SECOND);
        assert_eq!(silence(&mut sent, start), gone(23));
        // Nobody waits any more.
        let mut done = keepalive(None, start);
        done.change_waiting(true, start);
        done.change_waiting(false, start + 8 * SECOND);
        assert_eq!(done.due(), Some(start + 60 * SECOND));
    }

    #[test]
    fn whatever_comes_from_the_server_is_a_sign_of_life_where_it_owes_an_answer_too() {
        let start = Instant::now();
        let mut keepalive = keepalive(None, start);
        keepalive.note_question(start);
        assert_eq!(keepalive.turn(start + 5 * SECOND), Turn::Ask);
        keepalive.note_answer(start + 6 * SECOND);
        assert_eq!(keepalive.turn(start + 10 * SECOND), Turn::Nothing);
        // It may have answered another question.
        assert_eq!(keepalive.due(), Some(start + 11 * SECOND));
        keepalive.note_settled();
        assert_eq!(keepalive.due(), Some(start + 66 * SECOND));
    }

    #[test]
    fn a_doubt_that_is_due_together_with_a_question_keeps_it_from_nobody() {
        let start = Instant::now();
        let mut keepalive = keepalive(Some((30, 1)), start);
        keepalive.note_question(start + 20 * SECOND);
        assert_eq!(keepalive.turn(start + 25 * SECOND), Turn::Ask);
        let both = start + 30 * SECOND;
        assert_eq!(keepalive.turn(both), Turn::Ask);
        assert_eq!(keepalive.due(), Some(both));
        assert_eq!(keepalive.turn(both), Turn::Doubt);
        assert_eq!(keepalive.turn(both), Turn::Nothing);
    }

    #[test]
    fn a_server_has_its_time_to_answer_after_a_stop_of_this_process() {
        let start = Instant::now();
        let mut keepalive = keepalive(Some((15, 3)), start);
        let late = start + 3600 * SECOND;
        assert_eq!(keepalive.turn(late), Turn::Ask);
        assert_eq!(keepalive.turn(late), Turn::Nothing);
        assert_eq!(keepalive.due(), Some(late + 10 * SECOND));
    }
}
