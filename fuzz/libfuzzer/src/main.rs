//! All fuzz targets in one program, so that what they share is built and linked once: FUZZ_TARGET names the one to run, a file of
//! `fuzz/src`. `scripts/fuzz` builds and runs it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trunkline_fuzz::TARGETS;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let named = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let found = TARGETS.iter().find(|(name, _)| *name == named);
    found.unwrap_or_else(|| panic!("no target {named:?}")).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
