//! A known_hosts file of any content: it is read line by line, and no question about it panics.

use std::path::Path;

use trunkline::known_hosts::{KnownHosts, Verdict};

pub(crate) fn fuzz(input: (&str, u16, &[u8], &[u8])) {
    let (host, port, key, content) = input;
    let mut known = KnownHosts::default();
    known.add_file(Path::new("known_hosts"), content);
    let lines = content.split(|byte| *byte == b'\n').count();
    assert!(known.problems().count() <= lines);
    let verdict = known.check(host, port, None, key);
    // Nothing can be trusted that no line holds.
    if content.is_empty() {
        assert_eq!(verdict, Verdict::Unknown);
    }
    let name = trunkline::known_hosts::lookup_name(host, port, None);
    let types = known.key_types_for(&name);
    assert!(types.plain.len() <= lines);
    let order = known.order_algorithms(&name, &["ssh-ed25519", "rsa-sha2-512"]);
    assert_eq!(order.len(), 2);
}
