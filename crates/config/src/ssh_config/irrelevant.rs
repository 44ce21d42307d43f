//! What `ssh -G` prints and nobody needs.

/// Directives that decide nothing by themselves, and why each may be passed over.
///
/// Everything that `ssh -G` prints is a field of [`HostConfig`](super::HostConfig), or here, or concerns only what a master of
/// ssh's does ([`FIXED_BY_MASTER`](super::fixed_by_master::FIXED_BY_MASTER)), or is a [`Reason`](super::Reason).
pub(super) const IRRELEVANT: &[(&str, &str)] = &[
    (
        "canonicaldomains",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizefallbacklocal",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizehostname",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizemaxdots",
        "ssh -G has already made the host name canonical",
    ),
    (
        "canonicalizepermittedcnames",
        "ssh -G has already made the host name canonical",
    ),
    ("ignoreunknown", "ssh -G has already ignored what it names"),
    ("logverbose", "selects debug messages of ssh's own source files"),
    (
        "syslogfacility",
        "ssh uses it with -y only; the engine logs through tracing",
    ),
    ("tag", "read by Match tagged, which ssh -G has evaluated"),
];
