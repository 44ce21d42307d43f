//! ChannelTimeout: closes channels that have carried nothing for some time (ssh_config(5)).
//!
//! It applies to each request separately, even on a shared connection: `global` counts the channels of one request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::hosts;

use crate::config::HostConfig;

/// The pattern of the timeout for all channels of a request together.
const GLOBAL: &str = "global";

/// The time of the last traffic. The lock is held only to read or set it.
#[derive(Debug, Clone)]
pub(crate) struct Activity(Arc<Mutex<Instant>>);

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_traffic(&self, now: Instant) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = now.max(*last);
    }
}

/// The limits on how long one channel may carry nothing.
#[derive(Debug)]
pub(crate) struct Idle(Vec<(Duration, Activity)>);

impl Idle {
    /// Returns the limits for a channel of type `kind` (ssh's name): that of the first matching pattern, and that for
    /// all channels `together`. `None` for no limit.
    pub(crate) fn for_channel(config: &HostConfig, kind: &str, together: &Activity) -> Option<Box<Self>> {
        let timeouts = &config.channel_timeouts;
        let own = timeouts
            .iter()
            .find(|(pattern, _)| pattern != GLOBAL && hosts::in_list(kind, pattern))
            .map(|(_, limit)| (*limit, Activity::new()));
        let global = timeouts
            .iter()
            .rfind(|(pattern, _)| pattern == GLOBAL)
            .map(|(_, limit)| (*limit, together.clone()));
        let limits: Vec<_> = own
            .into_iter()
            .chain(global)
            .filter(|(limit, _)| !limit.is_zero())
            .collect();
        (!limits.is_empty()).then(|| Box::new(Self(limits)))
    }

    /// Notes that the channel has carried something, or begins.
    pub(crate) fn note_traffic(&self, now: Instant) {
        self.0.iter().for_each(|(_, activity)| activity.note_traffic(now));
    }

    /// Returns when it has to be closed, unless it carries something before.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0
            .iter()
            .map(|(limit, activity)| activity.last() + *limit)
            .min()
    }

    pub(crate) fn reached_limit(&self, now: Instant) -> Option<Duration> {
        self.0
            .iter()
            .find(|(limit, activity)| activity.last() + *limit <= now)
            .map(|(limit, _)| *limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config(timeouts: &[(&str, u64)]) -> HostConfig {
        let mut config = HostConfig::explicit("host", 22, "user").unwrap();
        config.channel_timeouts = timeouts
            .iter()
            .map(|(pattern, seconds)| ((*pattern).to_owned(), SECOND * u32::try_from(*seconds).unwrap()))
            .collect();
        config
    }

    fn limit(timeouts: &[(&str, u64)], kind: &str) -> Option<u64> {
        let activity = Activity::new();
        let idle = Idle::for_channel(&config(timeouts), kind, &activity)?;
        idle.note_traffic(Instant::now());
        idle.reached_limit(Instant::now() + SECOND * 10_000)
            .map(|limit| limit.as_secs())
    }

    #[test]
    fn the_first_pattern_that_matches_says_how_long() {
        let timeouts = [("direct-*", 1), ("session", 0), ("*", 3), ("session", 4)];
        assert_eq!(limit(&timeouts, "direct-streamlocal@openssh.com"), Some(1));
        assert_eq!(limit(&timeouts, "session"), None, "0 is for ever");
        assert_eq!(limit(&timeouts, "forwarded-tcpip"), Some(3));
        assert_eq!(limit(&[], "session"), None);
    }

    #[test]
    fn a_wildcard_does_not_stand_for_all_together() {
        assert_eq!(limit(&[("glob*", 1)], "session"), None);
        assert_eq!(limit(&[("global", 7)], "session"), Some(7));
    }

    #[test]
    fn traffic_of_one_channel_keeps_the_others_of_its_request_open() {
        let (config, together) = (config(&[("global", 10), ("session", 30)]), Activity::new());
        let start = Instant::now() + SECOND;
        let session = Idle::for_channel(&config, "session", &together).unwrap();
        let tunnel = Idle::for_channel(&config, "direct-tcpip", &together).unwrap();
        session.note_traffic(start);
        tunnel.note_traffic(start + SECOND * 9);
        assert_eq!(session.due(), Some(start + SECOND * 19));
        assert_eq!(session.reached_limit(start + SECOND * 18), None);
        tunnel.note_traffic(start + SECOND * 25);
        assert_eq!(session.reached_limit(start + SECOND * 30), Some(SECOND * 30));
        let other = Idle::for_channel(&config, "session", &Activity::new()).unwrap();
        other.note_traffic(start);
        assert_eq!(
            other.reached_limit(start + SECOND * 10),
            Some(SECOND * 10),
            "another request's"
        );
    }
}
