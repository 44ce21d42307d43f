//! Runs of zeros in a file's data: version 3 cannot ask for holes, so they are seen when they come.

use bytes::Bytes;

use crate::data::Data;

/// A hole is reported in whole blocks, of the size that file systems allocate.
const BLOCK: u64 = 4096;

/// A piece of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Run {
    Data { offset: u64, data: Data },
    Zeros { offset: u64, length: u64 },
}

/// Cuts data into runs that may be left out of a file and runs that may not. Only whole blocks within one slice count
/// as zeros.
pub(super) fn runs(mut offset: u64, data: Data) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for mut chunk in data.into_chunks() {
        while !chunk.is_empty() {
            let (zeros, length) = first_run(offset, &chunk);
            let part = chunk.split_to(length);
            match (runs.last_mut(), zeros) {
                (Some(Run::Zeros { length: run, .. }), true) => *run += length as u64,
                (Some(Run::Data { data, .. }), false) => data.push(part),
                (_, true) => runs.push(Run::Zeros {
                    offset,
                    length: length as u64,
                }),
                (_, false) => runs.push(Run::Data {
                    offset,
                    data: part.into(),
                }),
            }
            offset += length as u64;
        }
    }
    runs
}

/// Whether a slice begins with blocks of zeros, and the length of that run, or of the one of data.
fn first_run(offset: u64, chunk: &Bytes) -> (bool, usize) {
    let aligned = |at: usize| (offset + at as u64).is_multiple_of(BLOCK);
    let hole_at = |at: usize| {
        aligned(at)
            && chunk
                .get(at..at + BLOCK as usize)
                .is_some_and(|block| block.iter().all(|byte| *byte == 0))
    };
    let zeros = hole_at(0);
    let mut at = 0;
    while at < chunk.len() && hole_at(at) == zeros {
        let to_next_block = BLOCK - (offset + at as u64) % BLOCK;
        at += usize::try_from(to_next_block)
            .expect("a block has 4,096 bytes")
            .min(chunk.len() - at);
    }
    (zeros, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_blocks_of_zeros_are_holes() {
        let mut data = Data::from(Bytes::from([&[1; 96][..], &[0; 8192]].concat()));
        data.push(Bytes::from(vec![0; 5000]));
        let runs = runs(4000, data);
        assert_eq!(runs.len(), 3);
        assert!(matches!(runs[0], Run::Data { offset: 4000, .. }));
        assert_eq!(
            runs[1],
            Run::Zeros {
                offset: 4096,
                length: 8192 + 4096
            }
        );
        assert!(matches!(runs[2], Run::Data { offset: 16384, .. }));
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
