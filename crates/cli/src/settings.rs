//! `config.toml`: the user's settings for trunkline itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use trunkline::Settings;

/// The file. Every key may be left out; unknown keys are errors, so that a misspelt one is not silently nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    idle_timeout: Option<u64>,
    max_lanes: Option<usize>,
    sessions_per_lane: Option<u32>,
    spare_sessions: Option<u32>,
    busy_above: Option<u64>,
    busy_below: Option<u64>,
    handshakes_per_server: Option<usize>,
    handshakes: Option<usize>,
    early_flights: Option<bool>,
    early_stdin: Option<bool>,
    probe_after: Option<u64>,
    probe_limit: Option<u64>,
    openssh_hosts: Option<Vec<String>>,
    confirm_hosts: Option<Vec<String>>,
}

/// Every setting: its key, its default and what it means.
pub(crate) fn documentation() -> Vec<(&'static str, String, &'static str)> {
    let d = Settings::default();
    let seconds = |time: Duration| time.as_secs().to_string();
    vec![
        (
            "idle_timeout",
            seconds(d.idle_timeout),
            "Seconds that a connection without sessions is kept, where ControlPersist of ssh_config says nothing.",
        ),
        (
            "max_lanes",
            d.max_lanes.to_string(),
            "The most connections to one host.",
        ),
        (
            "sessions_per_lane",
            d.sessions_per_lane.to_string(),
            "Sessions that a connection is expected to carry until the server has shown another limit (sshd's MaxSessions).",
        ),
        (
            "spare_sessions",
            d.spare_sessions.to_string(),
            "The most sessions opened ahead on one connection, so that a command needs one round trip. 0 for none.",
        ),
        (
            "busy_above",
            d.busy_above.to_string(),
            "A connection that carries more than this many bits a second gets no new sessions: they go to a quiet one.",
        ),
        (
            "busy_below",
            d.busy_below.to_string(),
            "A busy connection counts as quiet again below this many bits a second.",
        ),
        (
            "handshakes_per_server",
            d.handshakes_per_server.to_string(),
            "Handshakes at once to one server. sshd's MaxStartups begins to drop at ten.",
        ),
        (
            "handshakes",
            d.handshakes.to_string(),
            "Handshakes at once in all.",
        ),
        (
            "early_flights",
            d.early_flights.to_string(),
            "Let what needs no answer leave without waiting for one, to servers that are OpenSSH.",
        ),
        (
            "early_stdin",
            d.early_stdin.to_string(),
            "Let up to 64 KiB of a command's input leave right behind the command, to servers that are OpenSSH.",
        ),
        (
            "probe_after",
            seconds(d.probe_after),
            "Seconds of silence after which a connection is asked for a sign of life.",
        ),
        (
            "probe_limit",
            seconds(d.probe_limit),
            "Seconds after which a connection that does not answer is given up.",
        ),
        (
            "openssh_hosts",
            "[]".to_owned(),
            "Patterns of hosts that go through the system's ssh, although the engine could do them: [\"*.example.com\"].",
        ),
        (
            "confirm_hosts",
            "[]".to_owned(),
            "Patterns of hosts whose connections are used only after a question through SSH_ASKPASS each time, as with `ControlMaster ask` of ssh_config.",
        ),
    ]
}

/// Reads the file; a missing one means defaults.
pub(crate) fn load(path: &Path) -> anyhow::Result<Settings> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Settings::default()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    parse(&text).with_context(|| format!("{} (see `trunkline settings`)", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Settings> {
    let file: File = toml::from_str(text)?;
    let d = Settings::default();
    let seconds = |value: Option<u64>, default| value.map_or(default, Duration::from_secs);
    let settings = Settings {
        idle_timeout: seconds(file.idle_timeout, d.idle_timeout),
        max_lanes: file.max_lanes.unwrap_or(d.max_lanes),
        sessions_per_lane: file.sessions_per_lane.unwrap_or(d.sessions_per_lane),
        spare_sessions: file.spare_sessions.unwrap_or(d.spare_sessions),
        busy_above: file.busy_above.unwrap_or(d.busy_above),
        busy_below: file.busy_below.unwrap_or(d.busy_below),
        handshakes_per_server: file.handshakes_per_server.unwrap_or(d.handshakes_per_server),
        handshakes: file.handshakes.unwrap_or(d.handshakes),
        early_flights: file.early_flights.unwrap_or(d.early_flights),
        early_stdin: file.early_stdin.unwrap_or(d.early_stdin),
        probe_after: seconds(file.probe_after, d.probe_after),
        probe_limit: seconds(file.probe_limit, d.probe_limit),
        openssh_hosts: file.openssh_hosts.unwrap_or_default(),
        confirm_hosts: file.confirm_hosts.unwrap_or_default(),
    };
    anyhow::ensure!(settings.max_lanes > 0, "max_lanes must be at least 1");
    anyhow::ensure!(
        settings.busy_below <= settings.busy_above,
        "busy_below must not be above busy_above"
    );
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_file_is_documented_and_read() {
        for (key, default, meaning) in documentation() {
            assert!(!meaning.is_empty());
            assert_eq!(
                parse(&format!("{key} = {default}")).unwrap(),
                Settings::default(),
                "{key}"
            );
        }
        assert_eq!(
            parse("idle_timeout = 5").unwrap().idle_timeout,
            Duration::from_secs(5)
        );
    }

    #[test]
    fn misspelt_keys_and_impossible_values_are_errors() {
        assert!(parse("idle_timeot = 5").is_err());
        assert!(parse("max_lanes = 0").is_err());
        assert!(parse("busy_below = 2000000").is_err());
    }
}
