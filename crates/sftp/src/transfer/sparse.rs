//! Runs of zeros in a file's data. Version 3 cannot ask for holes, so they are detected in the data that arrives.

use bytes::Bytes;

use crate::data::Data;

/// A hole is reported in whole blocks, of the size that file systems allocate.
const BLOCK: u64 = 4096;

/// A run of data or of zeros.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Run {
    Data { offset: u64, data: Data },
    Zeros { offset: u64, length: u64 },
}

/// Splits data into runs that may be left out of a file and runs that may not.
pub(super) fn runs(mut offset: u64, data: Data) -> Vec<Run> {
    let lengths = lengths(offset, data.chunks());
    let mut chunks = data.into_chunks().into_iter();
    let mut chunk = Bytes::new();
    let mut runs = Vec::with_capacity(lengths.len());
    for (zeros, length) in lengths {
        let mut data = Data::default();
        while data.len() < length {
            if chunk.is_empty() {
                chunk = chunks.next().expect("the runs are as long as the data");
            }
            data.push(chunk.split_to(chunk.len().min(length - data.len())));
        }
        let length = length as u64;
        runs.push(if zeros {
            Run::Zeros { offset, length }
        } else {
            Run::Data { offset, data }
        });
        offset += length;
    }
    runs
}

/// Returns whether each run is zeros, and its length. A block may span slices: channel packets end anywhere in it.
fn lengths(mut offset: u64, chunks: &[Bytes]) -> Vec<(bool, usize)> {
    let mut lengths: Vec<(bool, usize)> = Vec::new();
    let mut rest = chunks.iter().map(|chunk| &chunk[..]);
    let mut slice = rest.next().unwrap_or_default();
    while !slice.is_empty() {
        let block = usize::try_from(BLOCK - offset % BLOCK).expect("a block has 4,096 bytes");
        let (mut zeros, mut length) = (true, 0);
        while length < block && !slice.is_empty() {
            let (part, behind) = slice.split_at(slice.len().min(block - length));
            // This is memcmp, which is fast in every profile.
            zeros = zeros && *part == ZEROS[..part.len()];
            length += part.len();
            slice = if behind.is_empty() {
                rest.next().unwrap_or_default()
            } else {
                behind
            };
        }
        zeros = zeros && length == ZEROS.len();
        match lengths.last_mut() {
            Some((kind, run)) if *kind == zeros => *run += length,
            _ => lengths.push((zeros, length)),
        }
        offset += length as u64;
    }
    lengths
}

static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_blocks_of_zeros_are_holes_however_they_are_sliced() {
        let mut data = Data::from(Bytes::from([&[1; 96][..], &[0; 8192]].concat()));
        data.push(Bytes::from(vec![0; 5000]));
        data.push(Bytes::from(vec![0; 3192]));
        let runs = runs(4000, data);
        assert_eq!(runs.len(), 2);
        assert!(matches!(runs[0], Run::Data { offset: 4000, .. }));
        assert_eq!(
            runs[1],
            Run::Zeros {
                offset: 4096,
                length: 4 * 4096
            }
        );
    }

    proptest! {
        #[test]
        fn runs_are_the_data_in_order(
            offset in 0..10_000u64,
            parts in prop::collection::vec((any::<bool>(), 1..12_000usize), 0..6),
        ) {
            let mut data = Data::default();
            for (zeros, length) in parts {
                data.push(Bytes::from(vec![u8::from(!zeros); length]));
            }
            let whole = data.clone().into_bytes();
            let mut at = offset;
            for run in runs(offset, data) {
                let (start, bytes) = match run {
                    Run::Data { offset, data } => (offset, data.into_bytes()),
                    Run::Zeros { offset, length } => (offset, Bytes::from(vec![0; length as usize])),
                };
                prop_assert_eq!(start, at);
                let from = (at - offset) as usize;
                prop_assert_eq!(&whole[from..from + bytes.len()], &bytes[..]);
                at += bytes.len() as u64;
            }
            prop_assert_eq!(at - offset, whole.len() as u64);
        }
    }
}
