//! A connection's life in the log: one line when it is over.

use std::time::Instant;

use super::info::ConnectionInfo;
use crate::config::HostConfig;
use crate::error::{Error, ErrorKind};
use crate::metrics::ConnectionMetrics;

/// A connection that has begun.
pub(super) struct Life<'a> {
    host: &'a HostConfig,
    begun: Instant,
}

impl<'a> Life<'a> {
    pub(super) fn begin(host: &'a HostConfig) -> Self {
        Self {
            host,
            begun: Instant::now(),
        }
    }

    /// Logs the end. It is a warning if work may be lost, or if the user should look at the server's keys or their own.
    pub(super) fn log_end(&self, info: Option<&ConnectionInfo>, metrics: &ConnectionMetrics, end: &Error) {
        let was_made = info.is_some();
        let matters = match end.root() {
            Error::Closed { .. } => false,
            _ if was_made => true,
            _ => matches!(end.kind(), ErrorKind::HostKey | ErrorKind::Authentication),
        };
        let line = self.line(info, metrics, end);
        let host = &self.host.original_host;
        match matters {
            true => tracing::warn!(%host, "{line}"),
            false => tracing::info!(%host, "{line}"),
        }
    }

    fn line(&self, info: Option<&ConnectionInfo>, metrics: &ConnectionMetrics, end: &Error) -> String {
        let HostConfig {
            user, hostname, port, ..
        } = self.host;
        let address = info.and_then(|info| info.address);
        let place = address.map_or_else(
            || format!("{hostname} port {port}"),
            |address| address.to_string(),
        );
        let seconds = self.begun.elapsed().as_secs_f64();
        match info {
            None => format!("no connection to {user} at {place} after {seconds:.3} s: {end}"),
            Some(_) => format!(
                "connection to {user} at {place} ended after {seconds:.3} s, {sessions} sessions, {sent} bytes sent and \
                 {received} received: {end}",
                sessions = metrics.sessions.value(),
                sent = metrics.bytes_sent.value(),
                received = metrics.bytes_received.value(),
            ),
        }
    }
}
