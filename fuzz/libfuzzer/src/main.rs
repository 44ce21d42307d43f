//! All fuzz targets in one program, so that what they share is built and linked once: FUZZ_TARGET names the one to run,
//! a file beside this one. `scripts/fuzz` builds and runs it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;

macro_rules! targets {
    ($($name:ident)*) => {
        $(mod $name;)*

        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), |bytes| take($name::fuzz, bytes))),*];
    };
}

targets! {
    agent
    channels
    control_protocol
    host_lists
    identification
    key_exchange
    key_files
    known_hosts
    messages
    mux_frames
    packets
    proxy_mode
    sftp_replies
    ssh_config_dump
}

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let named = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(name, _)| *name == named);
    found.unwrap_or_else(|| panic!("no target {named:?}")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));

/// Runs a target with the input that the bytes stand for, if they stand for one.
fn take<'a, T: Arbitrary<'a>>(target: impl Fn(T), bytes: &'a [u8]) {
    if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) {
        target(input);
    }
}
