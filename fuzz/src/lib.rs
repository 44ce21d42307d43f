//! What is fuzzed: a function for each parser of what others send, in a file of its name.
//!
//! `make test` runs each on its seeds and on some generated input, in the ordinary build; `make fuzz` has libFuzzer look for
//! more, with AddressSanitizer (`fuzz/libfuzzer`).

#![expect(
    clippy::unwrap_used,
    reason = "a target panics where what it checks does not hold"
)]

use arbitrary::{Arbitrary, Unstructured};

macro_rules! targets {
    ($($name:ident $generated:literal)*) => {
        $(mod $name;)*

        /// Each target's name, and what runs it on the input that bytes stand for.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), |bytes| take($name::fuzz, bytes))),*];

        #[cfg(test)]
        mod tests {
            $(
                #[test]
                fn $name() {
                    super::generated::survives(stringify!($name), $generated, |bytes| super::take(super::$name::fuzz, bytes));
                }
            )*
        }
    };
}

// With how many generated inputs a test runs it: a second's worth, or less, of an unoptimised build.
targets! {
    agent 20_000
    channels 2_000
    control_protocol 20_000
    host_lists 5_000
    identification 5_000
    key_exchange 100
    key_files 5_000
    known_hosts 5_000
    messages 5_000
    mux_frames 5_000
    packets 2_000
    proxy_mode 20_000
    sftp_bridge 5_000
    sftp_replies 2_000
    ssh_config_dump 2_000
}

/// Runs a target with the input that the bytes stand for, if they stand for one.
fn take<'a, T: Arbitrary<'a>>(target: impl Fn(T), bytes: &'a [u8]) {
    if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) {
        target(input);
    }
}

#[cfg(test)]
mod generated {
    use std::fs;
    use std::path::Path;

    use trunkline_testkit::noise;

    /// Runs a target on its seeds, and then on so many inputs: noise, and seeds of which some bytes are others. They are the
    /// same each time.
    pub(super) fn survives(name: &str, generated: u64, target: impl Fn(&[u8])) {
        let seeds = seeds(name);
        seeds.iter().for_each(|seed| target(seed));
        for number in 0..generated {
            let numbers = noise(64, number);
            let length = usize::from(u16::from_le_bytes([numbers[0], numbers[1]]) % 512);
            let input = match usize::from(numbers[2]) % (seeds.len() + 1) {
                0 => noise(length, !number),
                place => changed(&seeds[place - 1], &numbers[3..]),
            };
            target(&input);
        }
    }

    /// A seed with bytes replaced, left out and put in, or cut off.
    fn changed(seed: &[u8], numbers: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        let changes = 1 + usize::from(numbers[0] % 8);
        for change in numbers[1..].chunks_exact(5).take(changes) {
            let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % (bytes.len() + 1);
            match change[2] % 8 {
                0..4 if place < bytes.len() => bytes[place] = change[3],
                4 if place < bytes.len() => bytes[place] ^= 1 << (change[3] % 8),
                5 if place < bytes.len() => drop(bytes.remove(place)),
                6 => bytes.insert(place, change[3]),
                7 if change[4] < 64 => bytes.truncate(place),
                _ => {}
            }
        }
        bytes
    }

    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let Ok(files) = fs::read_dir(directory) else {
            return Vec::new();
        };
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files.iter().map(|file| fs::read(file).unwrap()).collect()
    }
}
