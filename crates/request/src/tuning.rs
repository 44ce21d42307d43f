//! What was found best for a path, as it is remembered and told.

use serde::{Deserialize, Serialize};

/// What is best for moving data on one path. Kept in host memory as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// Seconds since 1970 when it was measured.
    pub measured: u64,
    /// The cipher, by SSH's name.
    pub cipher: String,
    /// The cipher that the engine takes on its own.
    pub usual_cipher: String,
    /// Whether to compress whatever is moved.
    pub compression: bool,
    /// The largest SFTP request, in bytes; `None` for as large as the server takes.
    pub request_size: Option<u32>,
    /// Sessions for a large file from the server, and towards it; `None` where it was not measured.
    pub streams_down: Option<usize>,
    /// See `streams_down`.
    pub streams_up: Option<usize>,
    /// What one session moves with these settings, and with those that it would have had.
    pub rates: Rates,
    /// See `rates`.
    pub usual_rates: Rates,
    /// rsync's own options that paid for whatever it copies.
    pub rsync: Vec<String>,
}

impl Choice {
    /// Sessions for a large file towards the server, or from it.
    pub fn streams(&self, upload: bool) -> Option<usize> {
        if upload {
            self.streams_up
        } else {
            self.streams_down
        }
    }

    /// In words, for people.
    pub fn describe(&self) -> String {
        let number =
            |streams: Option<usize>| streams.map_or_else(|| "?".into(), |streams| streams.to_string());
        let mut parts = vec![
            self.cipher.clone(),
            if self.compression {
                "compressed"
            } else {
                "not compressed"
            }
            .into(),
        ];
        if let Some(size) = self.request_size {
            parts.push(format!("requests of {} KiB", f64::from(size) / 1024.0));
        }
        if self.streams_down.is_some() || self.streams_up.is_some() {
            parts.push(format!(
                "{} sessions down and {} up",
                number(self.streams_down),
                number(self.streams_up)
            ));
        }
        parts.join(", ")
    }
}

/// Bytes a second in each direction; `None` where it was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From the server to here.
    pub down: Option<f64>,
    /// From here to the server.
    pub up: Option<f64>,
}

impl Rates {
    /// The rate of as many bytes down as up, one after the other; that of one direction where the other was not measured.
    pub fn both(self) -> Option<f64> {
        match (self.down, self.up) {
            (Some(down), Some(up)) => Some(2.0 / (1.0 / down + 1.0 / up)),
            (one, other) => one.or(other),
        }
    }
}
