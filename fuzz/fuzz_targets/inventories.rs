//! Ansible's inventories in each of their forms, and lists of hosts.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    trunkline::fuzzing::inventory(text);
    // An expression that names a file reads it: none is to be found there.
    if !text.contains('@') {
        let _ = trunkline::hosts::expand(text, Path::new("/nowhere"));
    }
});
