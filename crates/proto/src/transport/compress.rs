//! Compression of payloads: `zlib` (RFC 4253 section 6.2), and `zlib@openssh.com`, which begins after authentication.
//!
//! Each direction is one zlib stream for the whole connection, flushed after every packet, so that each can be read at
//! once.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The least room added when an output buffer is full.
const MIN_ROOM: usize = 4096;

/// Compresses consecutive payloads.
pub(crate) struct Compressor {
    stream: Compress,
}

impl Compressor {
    /// Starts a stream at zlib's level 6, as OpenSSH does.
    pub(crate) fn new() -> Self {
        Self {
            stream: Compress::new(Compression::new(6), true),
        }
    }

    /// Appends the compressed form of `payload`, which must not be empty, to `out`.
    pub(crate) fn compress(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let before = self.stream.total_in();
        // zlib hardly lengthens data: 5 bytes in 16 KiB and the flush.
        out.reserve(payload.len() + payload.len() / 1024 + 64);
        loop {
            let rest = &payload[consumed_bytes(before, self.stream.total_in())..];
            // RFC 4253 section 6.2 requires a partial flush.
            self.stream
                .compress_vec(rest, out, FlushCompress::Partial)
                .expect("compression fails only where a stream is misused, and this one is never finished");
            // If room is left, zlib has no more output for this payload.
            if out.len() < out.capacity() {
                return;
            }
            out.reserve(MIN_ROOM);
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compressor(..)")
    }
}

/// The reason why a payload cannot be decompressed. The stream cannot continue after any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DecompressError {
    /// The payload exceeds the maximum.
    #[error("it expands to more than {max} bytes")]
    TooLong {
        /// The caller's maximum.
        max: usize,
    },
    /// The payload is not a piece of the zlib stream.
    #[error("it is not valid zlib data")]
    Corrupt,
    /// The stream has ended, which never happens in SSH.
    #[error("the zlib stream has ended")]
    Ended,
}

/// Decompresses consecutive payloads.
pub(crate) struct Decompressor {
    stream: Decompress,
}

impl Decompressor {
    /// Starts a stream.
    pub(crate) fn new() -> Self {
        Self {
            stream: Decompress::new(true),
        }
    }

    /// Appends the decompressed `payload`, at most `max` bytes, to `out`. Memory grows with the output, not with the
    /// peer's claims, and never exceeds `max` by more than a few KiB.
    pub(crate) fn decompress(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
        max: usize,
    ) -> Result<(), DecompressError> {
        let start = out.len();
        let before = self.stream.total_in();
        let mut room = payload.len().saturating_mul(2);
        loop {
            // One more byte than allowed, to distinguish the longest payload from one that is too long.
            let allowed = max.saturating_add(1).saturating_sub(out.len() - start);
            out.reserve_exact(room.clamp(MIN_ROOM, allowed.max(MIN_ROOM)));
            let rest = &payload[consumed_bytes(before, self.stream.total_in())..];
            let status = self
                .stream
                .decompress_vec(rest, out, FlushDecompress::Sync)
                .map_err(|_| DecompressError::Corrupt)?;
            if out.len() - start > max {
                return Err(DecompressError::TooLong { max });
            }
            if status == Status::StreamEnd {
                return Err(DecompressError::Ended);
            }
            // If room is left, zlib has no more output for this payload.
            if out.len() < out.capacity() {
                let all = consumed_bytes(before, self.stream.total_in()) == payload.len();
                return if all {
                    Ok(())
                } else {
                    Err(DecompressError::Corrupt)
                };
            }
            room = out.len() - start;
        }
    }
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decompressor(..)")
    }
}

/// Returns how much of the current payload a stream has consumed, from its totals before and now.
fn consumed_bytes(before: u64, now: u64) -> usize {
    usize::try_from(now - before).expect("a payload fits in memory, and so does what was taken of it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 1 << 20;

    #[test]
    fn a_zip_bomb_is_refused_before_it_fills_memory() {
        let mut packed = Vec::new();
        Compressor::new().compress(&vec![0; 64 << 20], &mut packed);
        assert!(packed.len() < 100_000);
        let mut out = Vec::new();
        let refused = Decompressor::new().decompress(&packed, &mut out, 35_000);
        assert_eq!(refused, Err(DecompressError::TooLong { max: 35_000 }));
        assert!(out.capacity() < 100_000);
    }

    #[test]
    fn the_longest_allowed_payload_passes_and_one_byte_more_does_not() {
        let payload: Vec<u8> = (0..35_000u32)
            .flat_map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes())
            .collect();
        let mut packed = Vec::new();
        Compressor::new().compress(&payload, &mut packed);
        let mut out = Vec::new();
        assert_eq!(
            Decompressor::new().decompress(&packed, &mut out, payload.len()),
            Ok(())
        );
        assert_eq!(out, payload);
        let max = payload.len() - 1;
        let refused = Decompressor::new().decompress(&packed, &mut Vec::new(), max);
        assert_eq!(refused, Err(DecompressError::TooLong { max }));
    }

    #[test]
    fn later_packets_profit_from_earlier_ones() {
        let mut compressor = Compressor::new();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let payload = b"the quick brown fox jumps over the lazy dog";
        compressor.compress(payload, &mut first);
        compressor.compress(payload, &mut second);
        assert!(second.len() < first.len() / 2);
    }

    #[test]
    fn a_stream_that_ends_is_refused() {
        let mut packed = Vec::with_capacity(100);
        Compress::new(Compression::new(6), true)
            .compress_vec(b"the end", &mut packed, FlushCompress::Finish)
            .unwrap();
        let refused = Decompressor::new().decompress(&packed, &mut Vec::new(), MAX);
        assert_eq!(refused, Err(DecompressError::Ended));
    }

    #[test]
    fn a_sync_flush_is_understood_too() {
        // Some servers flush like this; RFC 4253 allows the sender any flush that a receiver can read.
        let mut stream = Compress::new(Compression::new(6), true);
        let mut opener = Decompressor::new();
        for payload in [&b"first"[..], b"second"] {
            let (mut packed, mut out) = (Vec::with_capacity(100), Vec::new());
            stream
                .compress_vec(payload, &mut packed, FlushCompress::Sync)
                .unwrap();
            opener.decompress(&packed, &mut out, MAX).unwrap();
            assert_eq!(out, payload);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_packet_expands_by_itself_to_what_was_sent(
            payloads in proptest::collection::vec(
                prop_oneof![
                    proptest::collection::vec(any::<u8>(), 1..5000),
                    (any::<u8>(), 1usize..300_000).prop_map(|(byte, n)| vec![byte; n]),
                ],
                1..6,
            ),
        ) {
            let (mut compressor, mut decompressor) = (Compressor::new(), Decompressor::new());
            for payload in &payloads {
                // Both append.
                let (mut packed, mut out) = (vec![1, 2, 3], vec![4, 5]);
                compressor.compress(payload, &mut packed);
                prop_assert_eq!(decompressor.decompress(&packed[3..], &mut out, MAX), Ok(()));
                prop_assert_eq!(&out[2..], &payload[..]);
            }
        }

        #[test]
        fn no_bytes_panic_or_expand_beyond_the_limit(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            max in 0usize..10_000,
        ) {
            let headed = [&[0x78, 0x9c], &bytes[..]].concat();
            for bytes in [bytes, headed] {
                let mut out = Vec::new();
                if Decompressor::new().decompress(&bytes, &mut out, max).is_ok() {
                    prop_assert!(out.len() <= max);
                }
            }
        }
    }
}
