//! Data to measure with.

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use bytes::{Bytes, BytesMut};

/// The length of each sample: many times zlib's window, so that repeating a sample compresses no better.
pub(super) const LENGTH: usize = 4 * 1024 * 1024;

/// The two kinds of data.
#[derive(Clone)]
pub(crate) struct Samples {
    /// Log lines of a web server. Zeros would compress to a thousandth, unlike real data.
    pub(crate) text: Bytes,
    pub(crate) random: Bytes,
}

impl Samples {
    pub(crate) fn new() -> Self {
        Self {
            text: text(LENGTH),
            random: random(LENGTH),
        }
    }

    pub(super) fn sample(&self, compressible: bool) -> &Bytes {
        if compressible { &self.text } else { &self.random }
    }
}

fn random(length: usize) -> Bytes {
    let mut bytes = BytesMut::zeroed(length);
    // The system's source does not fail once it works, and zeros would show in the figures.
    let _ = SystemRandom::new().fill(&mut bytes);
    bytes.freeze()
}

fn text(length: usize) -> Bytes {
    const PATHS: [&str; 8] = [
        "/",
        "/index.html",
        "/api/v2/orders",
        "/api/v2/items",
        "/static/app.js",
        "/login",
        "/search?q=",
        "/health",
    ];
    const AGENTS: [&str; 4] = [
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36",
        "curl/7.88.1",
        "kube-probe/1.29",
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)",
    ];
    // xorshift64: the same lines every time, so that runs are comparable.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut lines = String::with_capacity(length + 256);
    let mut second = 0_u64;
    while lines.len() < length {
        second += next() % 3;
        let (a, b) = (next(), next());
        lines += &format!(
            "10.{}.{}.{} - - [21/Nov/2026:{:02}:{:02}:{:02} +0000] \"GET {}{} HTTP/1.1\" {} {} \"-\" \"{}\" {:.3}\n",
            a % 4,
            a / 4 % 256,
            a / 1024 % 256,
            second / 3600 % 24,
            second / 60 % 60,
            second % 60,
            PATHS[(b % 8) as usize],
            b / 8 % 5000,
            [200, 200, 200, 304, 404][(b / 40_000 % 5) as usize],
            next() % 60_000,
            AGENTS[(next() % 4) as usize],
            (next() % 2000) as f64 / 1000.0,
        );
    }
    lines.truncate(length);
    lines.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length after zlib at its default level, which sshd uses.
    fn compressed_length(data: &[u8]) -> usize {
        let mut out = Vec::with_capacity(data.len() * 2);
        flate2::Compress::new(flate2::Compression::new(6), true)
            .compress_vec(data, &mut out, flate2::FlushCompress::Finish)
            .unwrap();
        out.len()
    }

    #[test]
    fn one_sample_compresses_as_logs_do_and_the_other_does_not() {
        let samples = Samples::new();
        assert_eq!((samples.text.len(), samples.random.len()), (LENGTH, LENGTH));
        let ratio = LENGTH as f64 / compressed_length(&samples.text) as f64;
        assert!((3.0..8.0).contains(&ratio), "{ratio}");
        assert!(compressed_length(&samples.random) > LENGTH);
    }
}
