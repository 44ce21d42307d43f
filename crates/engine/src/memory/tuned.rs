//! The remembered results of tuning for a host, applied to the connections and copies that move data.

use std::sync::Arc;

use trunkline_proto::cipher::Cipher;
pub use trunkline_request::tuning::{Choice, Rates};

use crate::config::{HostConfig, Request};
use crate::memory::{HostFacts, HostId, Memory};

/// The most sessions at once.
pub(crate) const MOST_STREAMS: usize = 16;

/// The smallest request size of a choice: below this, headers outweigh data.
pub(crate) const SMALLEST_REQUEST: u32 = 1024;

/// Returns the remembered choice for a host.
pub fn recall(memory: &Memory, config: &HostConfig) -> Option<Choice> {
    from_facts(&memory.facts(&HostId::from_config(config))?)
}

/// Returns the choice in the facts about a host.
pub fn from_facts(facts: &HostFacts) -> Option<Choice> {
    let choice: Choice = serde_json::from_str(facts.tuning.as_ref()?)
        .inspect_err(|error| tracing::debug!("what tuning found cannot be read: {error}"))
        .ok()?;
    Some(Choice {
        request_size: choice.request_size.map(|size| size.max(SMALLEST_REQUEST)),
        streams_down: choice.streams_down.map(|streams| streams.clamp(1, MOST_STREAMS)),
        streams_up: choice.streams_up.map(|streams| streams.clamp(1, MOST_STREAMS)),
        ..choice
    })
}

/// Replaces the remembered choice, or removes it.
pub fn remember(choice: Option<&Choice>, memory: &Memory, config: &HostConfig) {
    let json = choice.and_then(|choice| serde_json::to_string(choice).ok());
    memory.update(&HostId::from_config(config), |facts| facts.tuning = json);
}

/// Returns the configuration for connections that move data. A cipher is only used if ssh_config allows it, and the
/// caller's own options are kept. If nothing differs, returns the same configuration, so that existing connections are
/// used.
pub(crate) fn apply(choice: &Choice, config: Arc<HostConfig>, request: &Request) -> Arc<HostConfig> {
    let mut tuned = (*config).clone();
    if choice.cipher != choice.usual_cipher
        && !request.sets("ciphers")
        && Cipher::from_name(&choice.cipher).is_some()
        && let Some(at) = tuned.ciphers.iter().position(|name| *name == choice.cipher)
    {
        Arc::make_mut(&mut tuned.ciphers)[..=at].rotate_right(1);
    }
    if !request.sets("compression") {
        tuned.compression = choice.compression;
    }
    if tuned == *config { config } else { Arc::new(tuned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_comes_back_within_bounds() {
        let memory = Memory::in_memory();
        let config = HostConfig::explicit("db1.example", 22, "me").unwrap();
        assert_eq!(recall(&memory, &config), None);
        let mut choice = Choice {
            cipher: "aes256-ctr".into(),
            streams_up: Some(3),
            ..Choice::default()
        };
        remember(Some(&choice), &memory, &config);
        assert_eq!(recall(&memory, &config).as_ref(), Some(&choice));
        choice.streams_up = Some(1_000_000);
        choice.request_size = Some(0);
        remember(Some(&choice), &memory, &config);
        let bounded = recall(&memory, &config).unwrap();
        assert_eq!(
            (bounded.streams_up, bounded.request_size),
            (Some(MOST_STREAMS), Some(SMALLEST_REQUEST))
        );
        remember(None, &memory, &config);
        assert_eq!(recall(&memory, &config), None);
    }
}
